"""When Lambda ends the current invocation, and so how much time is left for work in it."""

import math
import time
from contextvars import ContextVar
from typing import Final

RESPONSE_SECONDS: Final = 3.0
"""Reserved at the end of an invocation for the response."""
invocation_end: ContextVar[float | None] = ContextVar("omniagent_invocation_end", default=None)
"""The `time.monotonic()` at which Lambda ends this invocation, None outside of Lambda. Each invocation is a task that
sets it, for the tasks that it starts."""


def deadline(margin: float) -> float:
    """Return the `time.monotonic()` so many seconds before Lambda ends this invocation, infinite outside of Lambda."""
    end = invocation_end.get()
    return math.inf if end is None else end - margin


def time_left() -> float:
    """Return the seconds left for work before the response must be sent."""
    return deadline(RESPONSE_SECONDS) - time.monotonic()
