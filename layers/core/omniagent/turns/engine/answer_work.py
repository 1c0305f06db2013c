"""The task that generates an answer: completed, stopped early with its partial text, or handed over."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from omniagent.aio import STOP_SECONDS, cancelled
from omniagent.errors import BudgetExceeded, ModelError, OmniAgentError
from omniagent.messages import FinishReason, Status, StopReason
from omniagent.tracing import turn_state
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.engine.tool_loop import HandOver, ToolLoop

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

    def __init__(self, loop: ToolLoop, answer: Coroutine[Any, Any, FinishReason], limit: TimeLimit) -> None:
        self._loop = loop
        self._limit = limit
        self._task = asyncio.create_task(answer, name="answer")
        self._stopped = asyncio.Event()
        self._is_cut = False
        self.stop_reason: StopReason | None = None
        self.has_open_calls = False
        """After a hand-over: the tools of the last step have not been started."""

    @property
    def is_closing(self) -> bool:
        """Whether no new work may start here, because another process will continue the turn."""
        return self._limit.is_closing and self.stop_reason is None and self._loop.may_hand_over(self._limit)

    def stop(self, reason: StopReason) -> None:
        """End the answer early and keep its text. Does nothing if it is already ending."""
        if self._may_be_ended():
            turn_state("running", "stopping", stop_reason=reason)
            self.stop_reason = reason
            self._end_early()

    async def ending(self) -> Ending | None:
        """Wait for the end and return how it ended: exactly one of complete, waiting, cancelled, failed.

        None if another process continues the answer.
        """
        task, timer = self._task, self._deadline_timer()
        try:
            await self._wait()
        except asyncio.CancelledError:
            # The event loop is closing: store what was streamed first.
            self.stop("shutdown")
            await asyncio.wait([task], timeout=STOP_SECONDS)
        finally:
            if timer is not None:
                timer.cancel()
        if not task.done() or task.cancelled():
            return None if self._is_cut else Ending("cancelled", "other", self.stop_reason or "cancelled")
        try:
            return Ending("waiting" if self._loop.progress.is_waiting else "complete", task.result())
        except HandOver as exc:
            self.has_open_calls = exc.has_open_calls
            return None
        except (ModelError, BudgetExceeded) as exc:
            logger.warning("turn failed", extra={"code": exc.code, "cause": str(exc)})
            return Ending("failed", "error", error=exc)
        except OmniAgentError as exc:
            logger.exception("turn failed")
            return Ending("failed", "error", error=exc)

    async def _wait(self) -> None:
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait([self._task, stopped], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([self._task], timeout=STOP_SECONDS)
        finally:
            await cancelled(stopped)
        if not self._task.done():
            logger.warning("a tool ignores its cancellation and is left behind")
            if not self._is_cut:
                self._loop.seal()

    def _deadline_timer(self) -> asyncio.TimerHandle | None:
        if self._limit.deadline is None:
            return None
        return asyncio.get_running_loop().call_later(max(0.0, self._limit.time_left()), self._time_is_over)

    def _time_is_over(self) -> None:
        """At the deadline, stop the answer, or cut it off where it is for another process to continue."""
        if not self._loop.may_hand_over(self._limit):
            self.stop("deadline")
        elif self._may_be_ended():
            self._is_cut = True
            self._end_early()

    def _may_be_ended(self) -> bool:
        return not self._task.done() and self.stop_reason is None

    def _end_early(self) -> None:
        self._stopped.set()
        self._task.cancel()
