"""How much time a request has."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

SENDING_SECONDS: Final = 3.0
"""Reserved for the response, out of the invocation's remaining time."""


def deadline_of(scope: Mapping[str, Any]) -> float | None:
    """Return the `time.monotonic()` at which Lambda ends this invocation, or None outside of Lambda."""
    context = scope.get("aws.context")
    if context is None:
        return None
    seconds_left: float = context.get_remaining_time_in_millis() / 1000
    return time.monotonic() + seconds_left


def time_left(scope: Mapping[str, Any]) -> Callable[[], float]:
    """Return a function that returns the seconds left for work before the response must be sent."""
    deadline = deadline_of(scope)
    end = math.inf if deadline is None else deadline - SENDING_SECONDS
    return lambda: end - time.monotonic()
