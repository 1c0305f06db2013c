"""How long a turn may take."""

import math
import time
from dataclasses import dataclass, field

STORE_SECONDS_WITHOUT_DEADLINE = 30.0
SECONDS_TO_TELL = 1.0
"""Kept at the very end to tell the client that its answer could not be stored."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """`deadline` is the `time.monotonic()` by which everything must be stored; None for no limit."""

    deadline: float | None
    margin_seconds: float
    started_at: float = field(default_factory=time.monotonic)

    @property
    def stop_at(self) -> float:
        """When the answer has to end. Some of the time is kept for storing, never more than a quarter of it."""
        if self.deadline is None:
            return math.inf
        whole = self.deadline - self.started_at
        return self.started_at + whole - min(self.margin_seconds, whole / 4)

    @property
    def give_up_at(self) -> float:
        """When it is too late to store: a little time is left to say so."""
        if self.deadline is None:
            return time.monotonic() + STORE_SECONDS_WITHOUT_DEADLINE
        return self.deadline - min(SECONDS_TO_TELL, (self.deadline - self.stop_at) / 4)

    def time_left(self) -> float:
        """Seconds until the answer has to end."""
        return self.stop_at - time.monotonic()
