"""Read a request body as strict, bounded JSON."""

import json
import math
import re
from typing import Annotated, Any, Final, NoReturn, TypeVar

from pydantic import BaseModel, StringConstraints, ValidationError
from starlette.requests import Request

from omniagent.errors import InvalidRequest, MalformedRequest, PayloadTooLarge, UnsupportedMediaType
from omniagent.session.ids import ID_PATTERN
from omniagent.validation import problems_of

Model = TypeVar("Model", bound=BaseModel)
Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
MAX_BODY_BYTES: Final = 6_000_000
"""Lambda's own limit is 6 MB."""
MAX_FORM_BYTES: Final = 65_536
"""A body that carries no conversation: a name, a verdict, feedback."""
MAX_BODY_DEPTH: Final = 32
MAX_CONTAINERS: Final = 100_000
"""Lists and objects. Millions of empty ones fit into 6 MB, and take seconds and hundreds of MB to read."""
MAX_PARTS: Final = 64
MAX_NUMBER: Final = 2**63
MAX_DIGITS: Final = 400
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


async def read_json(request: Request, *, default: Any = None, limit: int = MAX_BODY_BYTES) -> Any:
    """Read the body as JSON. Each way in which it cannot be read has its own error.

    An empty body is read as the `default`, if there is one. A missing content type means JSON.
    """
    body = await read_body(request, limit)
    if not body and default is not None:
        return default
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("", "application/json"):
        raise UnsupportedMediaType
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("Send the body without a content encoding.")
    return parse_json(body)


async def read_model(request: Request, model: type[Model], *, default: Any = None) -> Model:
    """Read a small body as JSON of a known shape."""
    return validated(model, await read_json(request, default=default, limit=MAX_FORM_BYTES))


def validated(model: type[Model], value: Any) -> Model:
    """Read a body, or a part of one. The error names what is wrong and where."""
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        raise InvalidRequest(problems_of(exc)) from None


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body. Stops as soon as it exceeds the limit."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
    return bytes(body)


def parse_json(body: bytes) -> Any:
    """Parse strict JSON: no NaN, no number beyond 64 bits, bounded nesting, no lone surrogates, no verdict twice."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("The body is not valid UTF-8.") from None
    _check_containers(body)
    once = _said_once if b"approved" in body else None  # it takes time that other bodies need not pay
    try:
        value = json.loads(
            text, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_float, object_pairs_hook=once
        )
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise MalformedRequest from None
    _check_depth(value)
    if "\\u" in text:
        _check_surrogates(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedRequest(f"{name} is not JSON.")


def _said_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a verdict that is given twice. Of any other name, the last value counts, as in a browser."""
    found = dict(pairs)
    if "approved" in found and len(found) != len(pairs):
        raise MalformedRequest("An object with `approved` in the body has a name twice.")
    return found


def _check_containers(body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= MAX_CONTAINERS:
        return
    structure = _STRINGS.sub(b"", body)  # a conversation about code has many brackets in its text
    if structure.count(b"[") + structure.count(b"{") > MAX_CONTAINERS:
        raise MalformedRequest(f"The body has more than {MAX_CONTAINERS} lists and objects.")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS or not -MAX_NUMBER <= (number := int(digits)) < MAX_NUMBER:
        raise MalformedRequest("A number in the body does not fit into 64 bits.")
    return number


def _float(digits: str) -> float:
    if len(digits) > MAX_DIGITS or not math.isfinite(number := float(digits)):
        raise MalformedRequest("A number in the body is too large.")
    return number


def _check_depth(value: Any) -> None:
    level = _containers([value])
    for _ in range(MAX_BODY_DEPTH):
        level = [child for parent in level for child in _containers(parent)]
        if not level:
            return
    raise _too_deep()


def _containers(parent: Any) -> list[Any]:
    children = parent.values() if isinstance(parent, dict) else parent
    return [child for child in children if isinstance(child, dict | list)]


def _check_surrogates(value: Any) -> None:
    """Refuse lone surrogates: JSON can escape them, but UTF-8 cannot store them."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise MalformedRequest("The body contains a lone surrogate.") from None


def _too_deep() -> MalformedRequest:
    return MalformedRequest(f"The body is nested deeper than {MAX_BODY_DEPTH} levels.")
