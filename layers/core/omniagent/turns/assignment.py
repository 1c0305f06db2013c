"""`Assignment`: what one turn is given when it begins."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omniagent.session.manager import SessionState
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.setup import TurnPlan

if TYPE_CHECKING:  # imported at run time only after a crash
    from omniagent.turns.dead_turn import DeadTurn


@dataclass(frozen=True, slots=True)
class Assignment:
    """One turn: its id, its plan, its initial state and its time limit."""

    turn_id: str
    plan: TurnPlan
    state: SessionState
    limit: TimeLimit
    refusal: BaseException | None = None
    """Ends a queued message's turn before it calls the model, such as a stop."""
    was_posted: bool = False
    """The message was queued in the inbox."""
    dead: "DeadTurn | None" = None
    """Set for a turn that is continued."""
    attempt: int = 0
    run_queued: Callable[[], Awaitable[None]] | None = None
    """Runs the messages that are queued behind the turn. None: their own processes do."""
