"""Answers of a running turn, to follow."""

from functools import partial

from omniagent.session.live import LiveTurn, SessionHead
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.engine.turn import Turn
from omniagent.turns.journal.follow import FollowedAnswer
from omniagent.turns.setup import TurnSetup


async def followed(
    setup: TurnSetup,
    turn: LiveTurn,
    limit: TimeLimit,
    run: "Turn | None" = None,
    *,
    is_counted: bool = False,
) -> FollowedAnswer | None:
    """Return the answer of a running turn to read. None if it has ended meanwhile.

    `is_counted`: the request counts as a reader already.
    """
    from omniagent.turns.watch.takeover import go_on  # needed only if its process dies

    answer = FollowedAnswer(setup, turn, limit, partial(go_on, setup, limit), run=run)
    if turn.is_continued:
        from omniagent.turns.engine.waiting import base_of, frames_before  # needed only for a turn that waited

        base = await setup.session.node(turn.id)
        if base is None or base.status != "waiting":
            return None
        answer.begin_with(base, base_of(base), frames_before(base))
    return answer if is_counted or run is not None else await answer.opened()


async def joined(
    setup: TurnSetup, head: SessionHead, limit: TimeLimit, *, is_dead: bool | None = None
) -> FollowedAnswer | None:
    """Return the answer of the session's running turn, after taking it over if its process died. None if none runs.

    `is_dead` is what the journal was found to say. None: it is read.
    """
    turn, run = head.running, None
    if turn is None:
        return None
    if is_dead or (is_dead is None and not await setup.is_alive(turn)):
        from omniagent.turns.watch.takeover import go_on  # needed only after a crash

        run = await go_on(setup, limit, head)
        turn = turn if run is None else run.turn
    return await followed(setup, turn, limit, run)
