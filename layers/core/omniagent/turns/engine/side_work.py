"""The work beside and after an answer: its summary, the session's name, callbacks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from omniagent.ai.providers.llm_provider import Purpose
from omniagent.ai.result import RunResult
from omniagent.aio import cancelled, ensure_not_cancelled, within
from omniagent.messages import Usage
from omniagent.session import window
from omniagent.session.summaries import Summarized
from omniagent.turns.engine.prompt import shared_prompt
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.hooks import call_back
from omniagent.turns.state import is_over

logger = logging.getLogger(__name__)

CALLBACK_SECONDS = 60.0
"""Timeout of a callback that no reader waits for."""
NAME_SECONDS = 12.0
"""Slightly more than `naming.MAX_SECONDS`, after which the name is made of the first words."""


class SummaryBeside:
    """A summary that runs beside the answer and stores itself when it is ready."""

    def __init__(self, run: TurnRun) -> None:
        self._run = run
        self._setup = run.setup
        self._task: asyncio.Task[Summarized] | None = None
        self._cost = Usage()
        """Of the model calls so far. Reported after the answer, also if the summary fails or is given up."""
        self._given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.missed = False
        """A due summary was not generated."""

    @property
    def end_turn_number(self) -> int:
        """The last turn that the new summary covers; 0 while there is none."""
        task = self._task
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return 0
        return task.result().end_turn_number

    def start(self) -> None:
        """Start the summary if one is due."""
        state = self._run.state
        before = state.before(self._run.turn.number)
        if window.summary_is_due(before, self._setup.window_limits, summarized_to=state.summarized_to):
            self._task = asyncio.create_task(self._summarize(), name="summary")

    async def _summarize(self) -> Summarized:
        pipeline = self._setup.summaries(self._note_cost)
        return await pipeline.update(at=self._run.turn.asked_at, most=1, prompt=shared_prompt(self._run))

    def _note_cost(self, _: Purpose, usage: Usage) -> None:
        self._cost += usage

    def give_up(self) -> None:
        """Stop waiting for the summary: the process ends."""
        if not self._given_up.done():
            self._given_up.set_result(None)

    async def finish(self) -> None:
        """Wait for the summary: one tick if missed summaries are generated elsewhere, otherwise while there is time."""
        task, hooks = self._task, self._setup.hooks
        if task is None:
            return
        left = max(0.0, self._run.limit.time_left())
        patience = min(left, self._setup.settings.tick_seconds) if hooks.leaves_summaries else left
        ends: list[asyncio.Future[Any]] = [task, self._given_up]
        timeout = None if patience == float("inf") else patience
        try:
            await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                await cancelled(task)
            hooks.note_cost("summary", self._cost)
        if not task.done() or task.cancelled():
            logger.info("summary left to the queue")
            self.missed = True
        elif (exc := task.exception()) is not None:
            logger.warning("summary failed", extra={"cause": f"{type(exc).__name__}: {exc}"})
            self.missed = True
        else:
            self.missed = not task.result().is_done


class SideWork:
    """The work beside and after a turn that no reader waits for: summary, name, callbacks."""

    def __init__(self, run: TurnRun) -> None:
        self.summary = SummaryBeside(run)
        self._run = run
        self._setup = run.setup

    async def hand_over(self) -> None:
        """Have another process go on with the turn. Then finish the summary."""
        await self._in_time(self._setup.hooks.on_work)
        await self.summary.finish()

    async def announce(self, result: RunResult) -> None:
        """Have the messages in line answered, and call `on_finish`. Readers of the stream have already seen the end."""
        head = self._run.keeper.head
        is_free = head.turn is None or is_over(head, self._setup.session.now())
        if result.stored and head.queue and is_free:
            await self._in_time(self._setup.hooks.on_work)
        if self._run.context is not None:
            await self._in_time(self._setup.agent.callbacks.on_finish, self._run.context, result)

    async def finish(self, result: RunResult) -> None:
        """Do the work after the answer that nobody waits for."""
        await self._name_session(result)
        await self.summary.finish()
        result = replace(result, summary_missed=self.summary.missed)
        await self._in_time(self._setup.hooks.on_end, result)
        if not result.stored:
            from omniagent.turns.watch.deletion import erase_late_chunks  # needed only after a lost turn

            await self._in_time(erase_late_chunks, self._setup.session, self._setup.registry)

    async def _in_time(self, callback: Callable[..., Awaitable[None]] | None, *arguments: Any) -> None:
        """Await a callback, with a timeout: the end of the turn waits for it."""
        task = asyncio.create_task(call_back(callback, *arguments), name="callback")
        try:
            await asyncio.wait([task], timeout=self._run.limit.closing_seconds(CALLBACK_SECONDS))
        finally:
            if not task.done():
                logger.warning("callback takes too long and is cancelled")
                await cancelled(task)

    async def _name_session(self, result: RunResult) -> None:
        """Name a session that has none after a complete answer."""
        name, seconds = self._setup.name, min(NAME_SECONDS, self._run.limit.time_left())
        if name is None or self._run.state.head.name or result.status != "complete" or seconds <= 0:
            return
        try:
            await within(seconds, name())
        except (Exception, asyncio.CancelledError) as exc:  # a team's provider may raise anything
            ensure_not_cancelled()
            logger.warning("session not named", extra={"cause": f"{type(exc).__name__}: {exc}"})
