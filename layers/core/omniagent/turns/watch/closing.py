"""Closes turns from outside: a dead one, with what it had shown, and a waiting one whose requests have expired."""

import logging
import time
from dataclasses import dataclass, replace

from omniagent.errors import StorageRejected
from omniagent.messages import Part, Status, Usage
from omniagent.session.ids import new_id
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage
from omniagent.tracing import session_state, turn_state
from omniagent.turns.journal.fold import Draft, fold
from omniagent.turns.journal.records import RunStarted, record_line
from omniagent.turns.registry import SHORT_RUN, Chunk
from omniagent.turns.setup import SessionSetup
from omniagent.turns.state import Close, End, Moved, TakeOver, closed_by_message, is_over

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """A turn that this process has taken from a dead one."""

    head: SessionHead
    turn: LiveTurn
    chunks: list[Chunk]
    """Its journal, which ends with this process's first record."""


async def close_expired(setup: SessionSetup, head: SessionHead) -> bool:
    """Close a waiting turn whose requests expired or were interrupted. False if somebody may still reply."""
    turn, now = head.waiting, setup.session.now()
    if turn is None or not is_over(head, now):
        return False
    answer = await setup.session.node(turn.id)
    if answer is None or answer.status != "waiting":
        return False
    closed = closed_by_message(turn, answer, now)
    if await setup.apply(head, Close(closed)) is not None:
        turn_state("waiting", "cancelled", stop_reason=closed.metadata["stopReason"])
        session_state("waiting", "idle")
    return True


async def close_dead(setup: SessionSetup, head: SessionHead) -> None:
    """Close a turn whose process died, because it was stopped, unless another process has it."""
    taken = await taken_over(setup, head)
    if taken is not None:
        await close_turn(setup, taken, "cancelled")


async def taken_over(setup: SessionSetup, head: SessionHead) -> Taken | None:
    """Take the session's turn from a dead process.

    None if another process has it. The dead process may still write chunks until that record is written.
    """
    session, registry = setup.session, setup.registry
    try:
        after = await setup.apply(head, TakeOver(new_id()))
    except Moved:
        return None
    while after is not None and after.turn is not None:
        turn = after.turn
        chunks = await registry.read(session.key, turn.journal)
        line = record_line(RunStarted(turn.run, turn.attempt, time.time()))
        number = chunks[-1].number + 1 if chunks else 0
        first = Chunk(number, turn.run[:SHORT_RUN], session.now(), line)
        if await registry.append(session.key, turn.journal, first):
            return Taken(after, turn, [*chunks, first])
        fresh = await session.head()
        if fresh is None or fresh.turn is None or fresh.turn.run != turn.run:
            return None
    return None


async def close_turn(setup: SessionSetup, taken: Taken, status: Status) -> None:
    """Store what a dead turn had shown as a cancelled or interrupted answer."""
    turn = taken.turn
    base = await setup.session.node(turn.id) if turn.is_continued else None
    draft = fold(taken.chunks[:-1], base_parts(base), takes_over=False)
    answer = _closed_answer(setup, turn, draft, base, status)
    try:
        after = await setup.settle(lambda _: End(turn.run, answer), taken.head)
    except StorageRejected:
        from omniagent.turns.engine.reduced_parts import reduced_parts

        logger.exception("interrupted answer cannot be stored as it is")
        answer = replace(answer, parts=reduced_parts(answer.parts))
        after = await setup.settle(lambda _: End(turn.run, answer), taken.head)
    if after is not None:
        turn_state("running", status)
        session_state("running", "idle")
        logger.warning("dead turn closed", extra={"turn_id": answer.id, "status": status, "parts": len(answer.parts)})


def base_parts(base: SessionMessage | None) -> list[Part]:
    """Return the parts that a turn that waited goes on with."""
    if base is None:
        return []
    from omniagent.turns.engine.waiting import base_of  # needed only for a turn that waited

    return base_of(base)


def _closed_answer(
    setup: SessionSetup, turn: LiveTurn, draft: Draft, base: SessionMessage | None, status: Status
) -> SessionMessage:
    usage = sum(draft.calls, base.usage if base is not None else Usage())
    steps = int(base.metadata.get("stepCount", 0)) if base is not None else 0
    draft.recorder.close()
    metadata = {
        **(base.metadata if base is not None else {}),
        "sessionId": setup.session.session_id,
        "turnNumber": turn.number,
        "status": status,
        "finishReason": "other",
        "stopReason": status,
        **({"stepCount": steps + len(draft.calls), "usage": usage.to_dict()} if draft.calls else {}),
    }
    return turn.answer(draft.recorder.parts, status, metadata, usage=usage)
