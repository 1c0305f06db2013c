"""How much time Lambda leaves for a request."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

RESPONSE_SECONDS: Final = 3.0
"""Kept for the response, out of what Lambda leaves."""


def deadline_of(scope: Mapping[str, Any]) -> float | None:
    """Return the `time.monotonic()` at which Lambda ends this invocation; None elsewhere."""
    context = scope.get("aws.context")
    if context is None:
        return None
    seconds_left: float = context.get_remaining_time_in_millis() / 1000
    return time.monotonic() + seconds_left


def time_left(scope: Mapping[str, Any]) -> Callable[[], float]:
    """Return a function that tells the seconds left for work before the response must be sent."""
    deadline = deadline_of(scope)
    end = math.inf if deadline is None else deadline - RESPONSE_SECONDS
    return lambda: end - time.monotonic()
