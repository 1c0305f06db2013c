"""Read a request body as bounded JSON.

Only its shape is checked here. A chat body repeats a history that is not read, and whatever is in it must not stop the
chat; what is read is checked by the model that reads it.
"""

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, NoReturn, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler, StringConstraints, ValidationError
from pydantic_core import core_schema
from starlette.requests import Request

from omniagent.errors import InvalidRequest, MalformedRequest, PayloadTooLarge, UnsupportedMediaType
from omniagent.session.ids import ID_PATTERN, ID_TEXT
from omniagent.validation import problems_of

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class IdOf:
    """Names whose id is wrong."""

    owner: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.custom_error_schema(
            handler(source), "id", custom_error_message=f"the {self.owner}'s id must be {ID_TEXT}"
        )


Id = Annotated[str, StringConstraints(pattern=ID_PATTERN), IdOf("message")]
ChatId = Annotated[str, StringConstraints(pattern=ID_PATTERN), IdOf("chat")]
MAX_BODY_BYTES: Final = 6_000_000
"""Lambda's own limit is 6 MB."""
Text = Annotated[str, StringConstraints(max_length=MAX_BODY_BYTES)]
"""Text of any length. Pydantic refuses lone surrogates only where a string has a constraint."""
MAX_FORM_BYTES: Final = 65_536
"""A body that carries no conversation: a name, a verdict, feedback."""
MAX_BODY_DEPTH: Final = 128
"""More than BSON can store (100): a page can send back every message that it was sent."""
MAX_CONTAINERS: Final = 100_000
"""Lists and objects. Millions of empty ones fit into 6 MB, and take seconds and hundreds of MB to read."""
MAX_PARTS: Final = 64
_VERDICT: Final = re.compile(rb"approved|\\u00[67]")
"""Also with its letters escaped, as no encoder writes them."""
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


async def read_json(
    request: Request, *, default: Any = None, limit: int = MAX_BODY_BYTES, labelled: bool = True
) -> Any:
    """Read the body as JSON. Each way in which it cannot be read has its own error.

    An empty body is read as the `default`, if there is one. A missing content type means JSON. So does `text/plain`
    if the body need not be `labelled`: that is how `fetch` sends a string without a content type.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
    if not body and default is not None:
        return default
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A page of another site sends text without asking first (CORS), with its user's cookies. A token it must ask for.
    is_foreign = request.headers.get("sec-fetch-site") == "cross-site" and "authorization" not in request.headers
    is_unlabelled = not labelled and kind == "text/plain" and not is_foreign
    if kind not in ("", "application/json") and not is_unlabelled:
        raise UnsupportedMediaType(f"Send application/json, not {kind:.100}.")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("Send the body without a content encoding.")
    return _parsed(body)


async def read_model(request: Request, model: type[Model], *, default: Any = None) -> Model:
    """Read a small body as JSON of a known shape."""
    return validated(model, await read_json(request, default=default, limit=MAX_FORM_BYTES))


def validated(model: type[Model], value: Any, *, at: str = "") -> Model:
    """Read a body, or the part of one that is `at` this place. The error names what is wrong and where."""
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        raise InvalidRequest(problems_of(exc, at=at)) from None


def _parsed(body: bytearray) -> Any:
    """Parse strict JSON: no NaN, bounded nesting, no verdict twice."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("The body is not valid UTF-8.") from None
    # A conversation about code has many brackets in its strings, where they do not count.
    has_many = sum(map(body.count, b"[{")) > MAX_CONTAINERS
    if has_many and sum(map(_STRINGS.sub(b"", body).count, b"[{")) > MAX_CONTAINERS:
        raise MalformedRequest(f"The body has more than {MAX_CONTAINERS} lists and objects.")
    once = _said_once if _VERDICT.search(body) else None  # it takes time that other bodies need not pay
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=once)
        _check_depth(value)
    except RecursionError:
        raise MalformedRequest(f"The body is nested deeper than {MAX_BODY_DEPTH} levels.") from None
    except ValueError:
        raise MalformedRequest from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedRequest(f"{name} is not JSON.")


def _said_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a verdict that is given twice. Of any other name, the last value counts, as in a browser."""
    found = dict(pairs)
    if "approved" in found and len(found) != len(pairs):
        raise MalformedRequest("An object with `approved` in the body has a name twice.")
    return found


def _check_depth(value: Any) -> None:
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_BODY_DEPTH):
        children = (parent.values() if isinstance(parent, dict) else parent for parent in level)
        level = [child for some in children for child in some if isinstance(child, dict | list)]
        if not level:
            return
    raise RecursionError
