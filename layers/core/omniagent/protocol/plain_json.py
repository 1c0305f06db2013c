"""Converts any value to plain JSON within the limits of BSON, safe to store, to stream and to send to a model."""

import json
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import date, time
from enum import Enum
from itertools import count
from typing import Any

from pydantic import BaseModel

from omniagent.messages import plain_text

MAX_DEPTH = 32
MAX_VALUES = 250_000
"""Objects that refer to each other multiply with every level, so a limit on the depth is not enough."""
_INT64 = 2**63


def parse(text: str) -> Any:
    """Parse JSON that a model wrote. Raises ValueError if it is not JSON."""
    try:
        return plain(json.loads(text))
    except RecursionError as exc:
        raise ValueError("nested too deep") from exc


def plain(value: Any, depth: int = 0, counted: Callable[[], int] | None = None) -> Any:  # noqa: C901, PLR0911 - one case a kind
    """Return the value as plain JSON: models and dataclasses become objects, anything unknown becomes text.

    Raises ValueError for more than `MAX_VALUES` values, and whatever an object's own code raises. `counted` counts the
    values of all levels.
    """
    counted = counted or count(1).__next__
    if counted() > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values: too many, or objects that refer to each other")
    match value:
        case Enum():
            return plain(value.value, depth, counted)
        case None | bool():
            return value
        case int():
            return value if -_INT64 <= value < _INT64 else _digits(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return plain_text(value)
        case _ if depth == MAX_DEPTH:
            return plain_text(str(value))
        case dict():
            return {
                plain_text(str(key)).replace("\0", ""): plain(item, depth + 1, counted) for key, item in value.items()
            }
        case list() | tuple() | set() | frozenset():
            return [plain(item, depth + 1, counted) for item in value]
        case BaseModel():
            return plain(_dumped(value), depth, counted)
        case date() | time():
            return value.isoformat()
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {each.name: plain(getattr(value, each.name), depth + 1, counted) for each in fields(value)}
    return plain_text(str(value))


def _digits(number: int) -> str:
    try:
        return str(number)
    except ValueError:  # Python writes no more than 4,300 decimal digits
        return hex(number)


def _dumped(model: BaseModel) -> dict[str, Any]:
    try:
        return model.model_dump(mode="json", fallback=str)
    except ValueError:  # bytes that are not text, or a model that contains itself
        return {name: getattr(model, name) for name in type(model).model_fields}
