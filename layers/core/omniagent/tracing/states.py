"""The states of a session and of a turn, as events of the span in which they change."""

from typing import Literal

from .attributes import FINISH_REASON, STOP_REASON, TURN_STATUS
from .spans import current_span, track_state_change

SessionPhase = Literal["idle", "running", "waiting"]
TurnEnding = Literal["complete", "waiting", "cancelled", "failed", "interrupted"]
TurnPhase = Literal["planned", "running", "stopping"] | TurnEnding


def session_state(before: SessionPhase, after: SessionPhase) -> None:
    """Record that the session is held by a turn, free again, or waiting for a human or a client."""
    track_state_change("session", before, after)


def turn_state(before: TurnPhase, after: TurnPhase, *, stop_reason: str | None = None) -> None:
    """Record a step of the turn's life. `stop_reason` says who or what stopped it."""
    track_state_change("turn", before, after, **{STOP_REASON: stop_reason})


def turn_ended(
    before: TurnPhase, status: TurnEnding, *, finish_reason: str | None = None, stop_reason: str | None = None
) -> None:
    """Record the turn's last change of state. Its status and the reasons also become attributes of the current span."""
    reasons = {FINISH_REASON: finish_reason, STOP_REASON: stop_reason}
    current_span().set_many({TURN_STATUS: status, **reasons})
    track_state_change("turn", before, status, **reasons)
