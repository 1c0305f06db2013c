"""Closes turns from outside: a dead one, with what it had shown, and a waiting one whose requests have expired."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omniagent.errors import StorageRejected
from omniagent.messages import Status, Usage
from omniagent.session.ids import new_id
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage
from omniagent.tracing import session_state, turn_state
from omniagent.turns.journal.fold import Draft, fold
from omniagent.turns.journal.records import RunStarted, record_line
from omniagent.turns.registry import SHORT_RUN, Chunk
from omniagent.turns.setup import SessionSetup
from omniagent.turns.state import Moved, closed_by_message, is_over
from omniagent.turns.state_events import Close, End, TakeOver

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """A turn that this process has taken from a dead one."""

    head: SessionHead
    turn: LiveTurn
    chunks: Sequence[Chunk]
    """What the dead processes have written."""
    first: Chunk
    """This process's first record, which ends its journal for now."""
    base: SessionMessage | None
    """The answer of a turn that waited."""

    def draft(self, *, takes_over: bool = True) -> Draft:
        """Fold the journal."""
        if self.base is None:
            return fold(self.chunks, takes_over=takes_over)
        from omniagent.turns.engine.waiting import base_of  # needed only for a turn that waited

        return fold(self.chunks, base_of(self.base), takes_over=takes_over)


async def close_expired(setup: SessionSetup, head: SessionHead) -> bool:
    """Close a waiting turn whose requests expired or were interrupted. False if somebody may still reply.

    Raises `Moved` if the session has moved on.
    """
    turn, now = head.waiting, setup.session.now()
    if turn is None or not is_over(head, now):
        return False
    answer = await setup.session.node(turn.id)
    if answer is None or answer.status != "waiting":
        return False
    closed = closed_by_message(turn, answer, now)
    await setup.apply(head, Close(closed))
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
    while (turn := after.turn) is not None:
        chunks = await registry.read(session.key, turn.journal)
        line = record_line(RunStarted(turn.run, turn.attempt, time.time()))
        number = chunks[-1].number + 1 if chunks else 0
        first = Chunk(number, turn.run[:SHORT_RUN], session.now(), line)
        if await registry.append(session.key, turn.journal, first):
            return Taken(after, turn, chunks, first, await session.node(turn.id) if turn.is_continued else None)
        fresh = await session.head()
        if fresh is None or fresh.turn is None or fresh.turn.run != turn.run:
            return None
    return None


async def close_turn(setup: SessionSetup, taken: Taken, status: Status) -> None:
    """Store what a dead turn had shown as a cancelled or interrupted answer."""
    turn, answer = taken.turn, _closed_answer(setup, taken, status)
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


def _closed_answer(setup: SessionSetup, taken: Taken, status: Status) -> SessionMessage:
    turn, base, draft = taken.turn, taken.base, taken.draft(takes_over=False)
    usage = sum(draft.calls, base.usage if base is not None else Usage())
    before: Mapping[str, Any] = base.metadata if base is not None else {}
    draft.recorder.close()
    metadata = {
        **before,
        "sessionId": setup.session.session_id,
        "turnNumber": turn.number,
        "status": status,
        "finishReason": "other",
        "stopReason": status,
    }
    if draft.calls:
        metadata |= {"stepCount": int(before.get("stepCount", 0)) + len(draft.calls), "usage": usage.to_dict()}
    return turn.answer(draft.recorder.parts, status, metadata, usage=usage)
