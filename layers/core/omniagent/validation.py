"""What is wrong with a value, in words."""

from collections.abc import Sequence
from typing import Any, Protocol

MAX_PROBLEMS = 5


class Invalid(Protocol):
    """The error of pydantic, or FastAPI's of the same shape."""

    def errors(self) -> Sequence[Any]: ...


def problems_of(exc: Invalid, *, whole: str = "body", at: str = "") -> str:
    """Describe what is wrong and where, without repeating the input.

    `whole` names the value itself, and `at` is its place in a larger one.
    """
    prefix = [at] if at else []
    errors = [(".".join(map(str, (*prefix, *each["loc"]))), each["msg"]) for each in exc.errors()[:MAX_PROBLEMS]]
    return "; ".join(f"{place or whole}: {text.removeprefix('Value error, ')}" for place, text in errors)


def first_problem(exc: Invalid) -> str:
    """Describe the first mistake with the value, for the developer who wrote it."""
    error = exc.errors()[0]
    name, *keys = error["loc"]
    text = error["msg"].replace("Input should be", "must be")
    return f"{name}{keys[:1] or ''} {text}, not {error['input']!r:.100}"
