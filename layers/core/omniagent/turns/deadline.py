"""`TimeLimit`: when a turn must end, hand over or give up."""

import math
import time
from dataclasses import dataclass, field

STORE_SECONDS_WITHOUT_DEADLINE = 30.0
CLOSING_SECONDS = 60.0
MARGIN_SECONDS = 8.0
"""Time reserved before the Lambda deadline to store the answer."""
REPORT_SECONDS = 1.0
"""Time reserved at the very end to tell the client that its answer could not be stored."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """`deadline` is the `time.monotonic()` by which everything must be stored; None for no limit."""

    deadline: float | None
    margin_seconds: float = MARGIN_SECONDS
    started_at: float = field(default_factory=time.monotonic)
    most_seconds: float = math.inf
    """Maximum length of the turn in all its processes. Infinite if no other one may continue it."""
    opened_at: float = field(default_factory=time.monotonic)
    """When this process began to work on the turn."""

    @property
    def stop_at(self) -> float:
        """When the answer must end.

        Some of this process's time is reserved for storing, at most a quarter.
        """
        if self.deadline is None:
            return math.inf
        kept = min(self.margin_seconds, (self.deadline - self.opened_at) / 4)
        return min(self.deadline - kept, self.started_at + self.most_seconds)

    @property
    def may_hand_over(self) -> bool:
        """Whether another process may continue the turn if it runs out of time in this one."""
        return math.isfinite(self.most_seconds) and self.stop_at < self.started_at + self.most_seconds

    @property
    def is_closing(self) -> bool:
        """Whether so little time is left that a turn which can be handed over starts nothing new here."""
        return self.time_left() < min(CLOSING_SECONDS, (self.stop_at - self.opened_at) / 4)

    @property
    def give_up_at(self) -> float:
        """When to stop trying to store the answer, with time left to tell the client."""
        if self.deadline is None:
            return time.monotonic() + STORE_SECONDS_WITHOUT_DEADLINE
        return self.deadline - min(REPORT_SECONDS, (self.deadline - self.stop_at) / 4)

    def closing_seconds(self, most: float) -> float:
        """How long the release of the session may take. The readers must still see the end in time."""
        if self.deadline is None:
            return most
        return max(0.0, min(most, (self.deadline - time.monotonic()) / 2))

    def time_left(self) -> float:
        """Seconds until the answer must end."""
        return self.stop_at - time.monotonic()
