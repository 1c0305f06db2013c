"""The work beside and after an answer that no reader waits for: its summary, the session's name, callbacks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from omniagent.ai.context import RunContext
from omniagent.ai.result import RunResult
from omniagent.aio import cancelled, ensure_not_cancelled, within
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


def start_summary(run: TurnRun) -> None:
    """Start the summary beside the answer if one is due."""
    setup, state = run.setup, run.state
    before = state.before(run.turn.number)
    if window.summary_is_due(before, setup.window_limits, summarized_to=state.summarized_to):
        run.summary = asyncio.create_task(_summarize(run), name="summary")


async def _summarize(run: TurnRun) -> Summarized:
    return await run.setup.summaries().update(at=run.turn.asked_at, most=1, prompt=shared_prompt(run))


async def hand_over(run: TurnRun) -> None:
    """Have another process go on with the turn. Then finish the summary."""
    await _in_time(run, run.setup.hooks.on_work)
    await _finish_summary(run)


async def announce(run: TurnRun, context: RunContext | None, result: RunResult) -> None:
    """Have the messages in line answered, and call `on_finish`. Readers of the stream have already seen the end."""
    head = run.head
    is_free = head.turn is None or is_over(head, run.setup.session.now())
    if result.stored and head.queue and is_free:
        await _in_time(run, run.setup.hooks.on_work)
    if context is not None:
        await _in_time(run, run.setup.agent.callbacks.on_finish, context, result)


async def finish(run: TurnRun, result: RunResult) -> None:
    """Do the work after the answer that nobody waits for."""
    await _name_session(run, result)
    result = replace(result, summary_missed=await _finish_summary(run))
    await _in_time(run, run.setup.hooks.on_end, result)
    if not result.stored:
        from omniagent.turns.watch.deletion import erase_late_chunks  # needed only after a lost turn

        await _in_time(run, erase_late_chunks, run.setup.session, run.setup.registry)


async def _in_time(run: TurnRun, callback: Callable[..., Awaitable[None]] | None, *arguments: Any) -> None:
    """Await a callback, with a timeout: the end of the turn waits for it."""
    if callback is None:
        return
    task = asyncio.create_task(call_back(callback, *arguments), name="callback")
    try:
        await asyncio.wait([task], timeout=run.limit.closing_seconds(CALLBACK_SECONDS))
    finally:
        if not task.done():
            logger.warning("callback takes too long and is cancelled")
            await cancelled(task)


async def _name_session(run: TurnRun, result: RunResult) -> None:
    """Name a session that has none after a complete answer."""
    name, seconds = run.setup.name, min(NAME_SECONDS, run.limit.time_left())
    if name is None or run.state.head.name or result.status != "complete" or seconds <= 0:
        return
    try:
        await within(seconds, name())
    except (Exception, asyncio.CancelledError) as exc:  # a team's provider may raise anything
        ensure_not_cancelled()
        logger.warning("session not named", extra={"cause": f"{type(exc).__name__}: {exc}"})


async def _finish_summary(run: TurnRun) -> bool:
    """Wait for the summary: one tick if missed summaries are generated elsewhere, otherwise while there is time.

    Returns whether a due summary was not generated.
    """
    task, setup = run.summary, run.setup
    if task is None:
        return False
    left = max(0.0, run.limit.time_left())
    patience = min(left, setup.settings.tick_seconds) if setup.hooks.leaves_summaries else left
    try:
        await asyncio.wait([task], timeout=None if patience == float("inf") else patience)
    finally:
        if not task.done():
            await cancelled(task)
    if not task.done() or task.cancelled():
        logger.info("summary left to the queue")
    elif (exc := task.exception()) is not None:
        logger.warning("summary failed", extra={"cause": f"{type(exc).__name__}: {exc}"})
    else:
        return not task.result().is_done
    return True
