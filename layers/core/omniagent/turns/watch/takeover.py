"""Deals with turns from outside: stops them, closes expired requests, and finishes what a process left behind."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from omniagent.ai.result import AnswerSource
from omniagent.messages import Status, Usage
from omniagent.session.ids import new_id
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage
from omniagent.tracing import bind_context, turn_state
from omniagent.turns.engine.turn import Turn, begin_queued, turn_span
from omniagent.turns.journal.readers import Draft, fold
from omniagent.turns.journal.records import RunStarted, line_of
from omniagent.turns.journal.replay import base_of
from omniagent.turns.registry import SHORT_RUN, Chunk
from omniagent.turns.setup import SessionSetup, TimeLimit, TurnSetup, call_back
from omniagent.turns.state import STOPPED_ERROR, Moved, closed, closed_by_message, is_over
from omniagent.turns.state_events import Close, StopQueued, TakeOver

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
"""Maximum takeovers of a turn whose processes die. Then it is closed as interrupted."""


async def stop_session(setup: SessionSetup, message_id: str | None) -> bool:
    """Stop the running or waiting turn and all messages in line, or only what a message names. See `Runner.stop`."""
    session, is_stopped = setup.session, False
    while (head := await session.head()) is not None:
        try:
            if any(message_id in (None, message.id) and not message.is_stopped for message in head.queue):
                await setup.apply(head, StopQueued(message_id))
                is_stopped = True
                continue
            turn = head.turn
            if turn is None or not await _is_meant(setup, turn, message_id):
                return is_stopped
            if turn.state == "waiting":
                if await _stop_waiting(setup, head, turn):
                    await call_back(setup.hooks.on_work)
                return True
            await setup.registry.signal(session.key, turn.journal, stop=True)
            if not await setup.is_alive(turn) and (taken := await taken_over(setup, head)) is not None:
                await close_turn(setup, taken, "cancelled")
            is_stopped, message_id, head = True, turn.id, await session.head()
            # It may have begun to wait before it could read the signal.
            if head is None or head.waiting is None or head.waiting.id != turn.id:
                return True
        except Moved:
            continue
    return is_stopped


async def withdraw(setup: SessionSetup, answer_id: str) -> None:
    """Close the turn that waits with this answer, before the answer is deleted."""
    while (head := await setup.session.head()) is not None and head.waiting is not None:
        if head.waiting.id != answer_id:
            return
        with suppress(Moved):
            await _stop_waiting(setup, head, head.waiting)
            return


async def _stop_waiting(setup: SessionSetup, head: SessionHead, turn: LiveTurn) -> bool:
    """Close a waiting turn because it was stopped. Returns whether messages are in line."""
    answer = await setup.session.node(turn.id)
    return answer is not None and await _close(setup, head, closed(answer, "cancelled", STOPPED_ERROR))


async def _is_meant(setup: SessionSetup, turn: LiveTurn, message_id: str | None) -> bool:
    """Whether the turn is the one to stop. A message that it answers may be in the history."""
    if message_id is None or turn.is_named(message_id):
        return True
    found = await setup.session.find(message_id, at=turn.place)
    return any(message.node in (turn.id, turn.question) for message in found)


async def close_expired(setup: SessionSetup, head: SessionHead) -> bool:
    """Close a waiting turn whose requests expired or were interrupted. False if somebody may still reply.

    Raises `Moved` if the session has moved on.
    """
    turn, now = head.waiting, setup.session.now()
    if turn is None or not is_over(head, now):
        return False
    answer = closed_by_message(turn, await setup.session.node(turn.id), now)
    if answer is not None:
        await _close(setup, head, answer)
    return answer is not None


async def _close(setup: SessionSetup, head: SessionHead, answer: SessionMessage) -> bool:
    """Close a waiting turn with its closed answer. Returns whether messages are in line."""
    after = await setup.apply(head, Close(answer))
    turn_state("waiting", "cancelled", stop_reason=answer.metadata["stopReason"])
    return bool(after.queue)


async def take_up(setup: TurnSetup, limit: TimeLimit) -> AnswerSource | None:
    """Do what the session needs next: finish a dead turn, close expired requests, begin the first message in line.

    None if there is nothing to do, or another process does it. Raises the error that refuses a message's turn.
    """
    while (head := await setup.session.head()) is not None:
        if (turn := head.running) is not None:
            return None if await setup.is_alive(turn) else await go_on(setup, limit, head)
        with suppress(Moved):
            if head.waiting is not None:
                if not await close_expired(setup, head):
                    return None
            elif not head.queue:
                return None
            else:
                return await begin_queued(setup, head, limit)
    return None


@dataclass(frozen=True, slots=True)
class Taken:
    """A turn that this process has taken from a dead one."""

    head: SessionHead
    turn: LiveTurn
    chunks: Sequence[Chunk]
    """Its journal. The last chunk is this process's own: its first record."""
    base: SessionMessage | None
    """The answer of a turn that waited."""

    def draft(self, *, closes: bool = False) -> Draft:
        """Fold the journal. A turn that is closed keeps its unfinished step."""
        base = base_of(self.base.parts) if self.base is not None else ()
        return fold(self.chunks[:-1] if closes else self.chunks, base)


async def taken_over(setup: SessionSetup, head: SessionHead) -> Taken | None:
    """Take the session's turn from a dead process.

    None if another process has it. The dead process may still write chunks until this one's first record is written.
    """
    session, registry = setup.session, setup.registry
    try:
        after = await setup.apply(head, TakeOver(new_id()))
    except Moved:
        return None
    while (turn := after.turn) is not None:
        chunks = await registry.read(session.key, turn.journal)
        line = line_of(RunStarted(turn.run, turn.attempt, time.time()))
        number = chunks[-1].number + 1 if chunks else 0
        first = Chunk(number, turn.run[:SHORT_RUN], session.now(), line)
        if await registry.append(session.key, turn.journal, first):
            base = await session.node(turn.id) if turn.is_continued else None
            return Taken(after, turn, [*chunks, first], base)
        fresh = await session.head()
        if fresh is None or fresh.turn is None or fresh.turn.run != turn.run:
            return None
    return None


async def close_turn(setup: SessionSetup, taken: Taken, status: Status) -> None:
    """Store what a dead turn had shown as a cancelled or interrupted answer."""
    turn, base, draft = taken.turn, taken.base, taken.draft(closes=True)
    usage = sum(draft.calls, base.usage if base is not None else Usage())
    before: Mapping[str, Any] = base.metadata if base is not None else {}
    draft.recorder.close()
    ids = {"sessionId": setup.session.session_id, "turnNumber": turn.number}
    metadata = {**before, **ids, "status": status, "finishReason": "other", "stopReason": status}
    if draft.calls:
        metadata |= {"stepCount": int(before.get("stepCount", 0)) + len(draft.calls), "usage": usage.to_dict()}
    answer = turn.answer(draft.recorder.parts, status, metadata, usage=usage)
    after, answer = await setup.end(taken.head, turn.run, answer)
    if after is not None:
        turn_state("running", answer.status)
        # An alarm counts those that are interrupted, whatever of their answers could be stored.
        details = {"turn_id": answer.id, "status": status, "parts": len(answer.parts)}
        logger.warning("dead turn closed", extra=details)


async def go_on(setup: TurnSetup, limit: TimeLimit, head: SessionHead) -> Turn | None:
    """Take over the session's running turn, whose process died. None if another process does, or it was closed.

    A turn that was stopped is closed as cancelled; one that cannot be continued, as interrupted.
    """
    session = setup.session
    with bind_context(session_id=session.session_id, user_id=session.user_id, user_category=session.category):
        taken = await taken_over(setup, head)
        if taken is None:
            return None
        turn, base, draft = taken.turn, taken.base, taken.draft()
        previous = await session.node(turn.replaces) if turn.replaces is not None and base is None else None
        signals, state = await setup.registry.signals(session.key, turn.journal), await session.load()
        details = {"turn_id": turn.id, "attempt": turn.attempt}
        if signals.stop or not draft.is_readable or turn.attempt - draft.hand_overs > MAX_ATTEMPTS:
            if not signals.stop:
                logger.error("dead turn not continued", extra=details)
            await close_turn(setup, taken, "cancelled" if signals.stop else "interrupted")
            return None
        if draft.handed_over is not None:
            logger.info("turn goes on", extra=details)
        else:
            logger.warning("dead turn continued", extra=details)
        limit = replace(limit, started_at=time.monotonic() - max(0.0, time.time() - draft.begun_at))
        with turn_span(setup, turn.number) as span:
            question = turn.message or state.question
            return Turn(setup, taken.head, state, limit, span, question, previous, base=base, draft=draft)
