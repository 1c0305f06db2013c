"""When Lambda ends this invocation, and so how long a call may be retried."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

RESPONSE_SECONDS: Final = 3.0
"""Reserved at the end of an invocation for the response, however long calls are retried."""
_invocation_ends: ContextVar[float] = ContextVar("omniagent_invocation_ends", default=math.inf)


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Set when Lambda ends this invocation. Patient calls in it, and in tasks that it starts, give up before."""
    token = _invocation_ends.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _invocation_ends.reset(token)


def patience(most_seconds: float) -> float:
    """Return how long a call of this invocation may be retried: the time left, up to `most_seconds`."""
    return max(0.0, min(most_seconds, _invocation_ends.get() - RESPONSE_SECONDS - time.monotonic()))
