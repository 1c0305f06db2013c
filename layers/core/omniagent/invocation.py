"""When Lambda ends the current invocation, and so how much time is left for work in it."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

RESPONSE_SECONDS: Final = 3.0
"""Reserved at the end of an invocation for the response."""
_invocation_ends: ContextVar[float | None] = ContextVar("omniagent_invocation_ends", default=None)


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Set when Lambda ends this invocation, for the work in it and for the tasks that it starts."""
    token = _invocation_ends.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _invocation_ends.reset(token)


def invocation_end() -> float | None:
    """Return the `time.monotonic()` at which Lambda ends this invocation, or None outside of Lambda."""
    return _invocation_ends.get()


def deadline(margin: float) -> float:
    """Return the `time.monotonic()` so many seconds before Lambda ends this invocation, infinite outside of Lambda."""
    end = _invocation_ends.get()
    return math.inf if end is None else end - margin


def time_left() -> float:
    """Return the seconds left for work before the response must be sent."""
    return deadline(RESPONSE_SECONDS) - time.monotonic()
