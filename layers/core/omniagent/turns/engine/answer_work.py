"""The task that generates an answer: completed, stopped early with its partial text, or handed over."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from omniagent.aio import STOP_SECONDS
from omniagent.errors import BudgetExceeded, ModelError, OmniAgentError
from omniagent.messages import FinishReason, Status, StopReason
from omniagent.tracing import turn_state
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.engine.tool_loop import HandOver

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """How the answer ended."""

    status: Status
    reason: FinishReason
    stop_reason: StopReason | None = None
    error: OmniAgentError | None = None


class AnswerWork:
    """The task that generates the answer. It can be stopped, and ends at its deadline."""

    def __init__(self, run: TurnRun, answer: Coroutine[Any, Any, FinishReason]) -> None:
        self._run = run
        self._task = asyncio.create_task(answer, name="answer")
        self._ended_early: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_cut = False
        self.has_open_calls = False
        """After a hand-over: the tools of the last step have not been started."""

    def stop(self, reason: StopReason) -> None:
        """End the answer early and keep its text. Does nothing if it is already ending."""
        if self._end_early():
            turn_state("running", "stopping", stop_reason=reason)
            self._run.stop_reason = reason

    async def ending(self) -> Ending | None:
        """Wait for the end and return how it ended: exactly one of complete, waiting, cancelled, failed.

        None if another process continues the answer.
        """
        task, limit, timer = self._task, self._run.limit, None
        if limit.deadline is not None:
            timer = asyncio.get_running_loop().call_later(max(0.0, limit.time_left()), self._time_is_over)
        try:
            work: list[asyncio.Future[Any]] = [task, self._ended_early]
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([task], timeout=STOP_SECONDS)
        except asyncio.CancelledError:
            # The event loop is closing: store what was streamed first.
            self.stop("shutdown")
            await asyncio.wait([task], timeout=STOP_SECONDS)
        finally:
            if timer is not None:
                timer.cancel()
        if not task.done():
            logger.warning("a tool ignores its cancellation and is left behind")
            if not self._is_cut:
                self._run.recorder.seal()
        if not task.done() or task.cancelled():
            return None if self._is_cut else Ending("cancelled", "other", self._run.stop_reason or "cancelled")
        try:
            return Ending("waiting" if self._run.progress.is_waiting else "complete", task.result())
        except HandOver as exc:
            self.has_open_calls = exc.has_open_calls
            return None
        except OmniAgentError as exc:
            if isinstance(exc, ModelError | BudgetExceeded):
                logger.warning("turn failed", extra={"code": exc.code, "cause": str(exc)})
            else:
                logger.exception("turn failed")
            return Ending("failed", "error", error=exc)

    def _time_is_over(self) -> None:
        """At the deadline, stop the answer, or cut it off where it is for another process to continue."""
        if self._run.may_hand_over:
            self._is_cut = self._end_early()
        else:
            self.stop("deadline")

    def _end_early(self) -> bool:
        """Cancel the answer. False if it is already ending."""
        if self._task.done() or self._ended_early.done():
            return False
        self._ended_early.set_result(None)
        self._task.cancel()
        return True
