"""The rest of an answer, for a reader that has seen its beginning."""

from omniagent.ai.result import StreamPosition
from omniagent.protocol import sse
from omniagent.session.live import LiveTurn, SessionHead
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.engine.joining import joined
from omniagent.turns.journal.follow import FollowedAnswer
from omniagent.turns.journal.positions import count_events
from omniagent.turns.setup import TurnSetup


async def rest_of(
    setup: TurnSetup, head: SessionHead, limit: TimeLimit, position: StreamPosition
) -> FollowedAnswer | None:
    """Return the rest of the answer of a running turn, or of one that has ended. None if nothing is left of it."""
    is_running = head.running is not None and position.journal in ("", head.running.journal)
    if position.seen is None:
        return None if is_running or head.running is None else await joined(setup, head, limit)
    answer = await joined(setup, head, limit) if is_running else None
    turn = head.running if answer is not None else await _ended_turn(setup, head, position.journal)
    if turn is None:
        return None
    seen = position.seen
    if seen < 0 or answer is None:
        chunks = await setup.registry.read(setup.session.key, turn.journal)
        events = count_events(chunks)
        # The session says that a turn has ended before the end of its journal is written.
        has_end = any(chunk.lines.endswith(sse.DONE_LINE) for chunk in chunks)
        if answer is None and has_end and seen >= events:
            return None
        seen = max(0, events + seen) if seen < 0 else seen
    if answer is None:
        answer = await FollowedAnswer(setup, turn, limit, _never).opened()
    return answer.begin_after(seen)


async def _ended_turn(setup: TurnSetup, head: SessionHead, journal: str) -> LiveTurn | None:
    """Return the turn of an answer that has ended: the one with this journal, or the latest."""
    session = setup.session
    answer = (await session.node(journal) if journal else None) or await session.node(head.leaf.node)
    if answer is None or answer.role != "assistant":
        return None
    return LiveTurn(answer.id, answer.turn_number, "", journal or answer.id, "", session.now())


async def _never(_: SessionHead) -> None:
    """A turn that has ended is not taken over."""
