"""The summary that is made beside an answer. The answer never waits for it."""

import asyncio
import logging

from omniagent.session import window
from omniagent.session.summaries import Summarized
from omniagent.turns.setup import Assignment, TurnSetup
from omniagent.turns.tasks import cancelled
from omniagent.turns.time_limit import TimeLimit

logger = logging.getLogger(__name__)


class SummaryBeside:
    """Starts when the turn has begun and stores itself, whenever it is ready."""

    def __init__(self, setup: TurnSetup, assignment: Assignment) -> None:
        self._setup = setup
        self._state = assignment.state
        self._number = assignment.plan.number
        self._task: asyncio.Task[Summarized] | None = None
        self.missed = False
        """A summary was due and was not made."""

    @property
    def end_turn_number(self) -> int:
        """The last turn that the new summary covers; 0 while there is none."""
        task = self._task
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return 0
        return task.result().end_turn_number

    def start(self) -> None:
        """Start the summary if one is due."""
        settings = self._setup.settings
        limits = window.Limits(settings.summary_after_turns, settings.summary_after_tokens)
        before = self._state.before(self._number)
        if window.summary_is_due(before, summarized_to=self._state.summarized_to, limits=limits):
            self._task = asyncio.create_task(self._setup.summaries.update(most=1), name="summary")

    async def finish(self, limit: TimeLimit) -> None:
        """Wait for the summary: a tick where somebody else makes those that are missed, else while there is time."""
        task, hooks = self._task, self._setup.hooks
        if task is None:
            return
        left = max(0.0, limit.time_left())
        patience = min(left, self._setup.settings.tick_seconds) if hooks.leaves_summaries else left
        await asyncio.wait([task], timeout=None if patience == float("inf") else patience)
        if not task.done():
            await cancelled(task)
        if task.cancelled():
            logger.info("summary left to the queue")
            self.missed = True
        elif (exc := task.exception()) is not None:
            logger.warning("summary failed", extra={"cause": f"{type(exc).__name__}: {exc}"})
            self.missed = True
        else:
            summarized = task.result()
            self.missed = not summarized.is_done
            if hooks.on_model_call is not None and summarized.written:
                hooks.on_model_call("summary", summarized.usage)
