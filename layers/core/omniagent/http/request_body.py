"""Reads requests: the deadline, JSON within limits, and the bodies of POST /chat as one `ChatRequest`."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)
from starlette.requests import Request

from omniagent.errors import InvalidRequest, MalformedRequest, PayloadTooLarge, UnsupportedMediaType
from omniagent.protocol.ui_messages import DEFAULT_SDK
from omniagent.session.manager import ID_PATTERN
from omniagent.settings import Busy
from omniagent.turns.setup import Query

if TYPE_CHECKING:
    from omniagent.ai.approvals import ToolAnswer

SENDING_SECONDS: Final = 3.0
"""Reserved for the response, out of the invocation's remaining time."""


def sdk_version(header: str | None) -> int:
    """Return the version of the AI SDK that a client names in `x-ai-sdk`: 5, 6 (the default) or 7."""
    return {"5": 5, "7": 7}.get((header or "").strip(), DEFAULT_SDK)


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


Model = TypeVar("Model", bound=BaseModel)

MAX_BODY_DEPTH: Final = 32
MAX_NUMBER: Final = 2**63
MAX_DIGITS: Final = 400
MAX_LISTED_ERRORS: Final = 5


async def read_json(request: Request, limit: int, *, default: Any = None) -> Any:
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


async def read_model(request: Request, model: type[Model], limit: int, *, default: Any = None) -> Model:
    """Read the body as JSON of a known shape."""
    try:
        return model.model_validate(await read_json(request, limit, default=default))
    except ValidationError as exc:
        raise InvalidRequest(error_text(exc)) from None


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body. Stops as soon as it exceeds the limit."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
    return bytes(body)


def parse_json(body: bytes) -> Any:
    """Parse strict JSON: no NaN, no number beyond 64 bits, bounded nesting, no lone surrogates."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("The body is not valid UTF-8.") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_float)
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise MalformedRequest from None
    _check_depth(value)
    if "\\u" in text:
        _check_surrogates(value)
    return value


def error_text(exc: ValidationError) -> str:
    """Describe what is wrong and where, without repeating the input."""
    found = exc.errors(include_url=False, include_context=False, include_input=False)
    problems = [f"{'.'.join(str(key) for key in error['loc']) or 'body'}: {error['msg']}" for error in found]
    return "; ".join(problems[:MAX_LISTED_ERRORS])


def body_schema(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Describe a body that `read_model` reads, as the `openapi_extra` of a route."""
    content = {"application/json": {"schema": inlined(model.model_json_schema())}}
    return {"requestBody": {"required": required, "content": content}}


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Inline a schema's definitions: its own references do not resolve inside an OpenAPI document."""
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return resolve(definitions[node["$ref"].rpartition("/")[2]])
        return {name: resolve(item) for name, item in node.items()}

    found: dict[str, Any] = resolve(schema)
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedRequest(f"{name} is not JSON.")


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


MAX_PARTS = 64
MAX_MESSAGES = 10_000
"""The AI SDK sends its whole history; only the last message is read."""

Body = TypeVar("Body", bound=BaseModel)
Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]


BUSY: Any = Field(
    None,
    description="What to do while the session answers another message. Null leaves it to the deployment's setting.",
)


class UIPart(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: str = Field(max_length=128, json_schema_extra={"const": "text"})
    text: str = ""


class UIMessage(BaseModel):
    """A message as the AI SDK's client sends it."""

    model_config = ConfigDict(extra="ignore")

    id: Id | None = None
    role: Literal["user"] = "user"
    parts: list[UIPart] = Field(min_length=1, max_length=MAX_PARTS)


class SdkBody(BaseModel):
    """`{id, messages, trigger, messageId?}`, the AI SDK's default. Only the last message is read.

    If that is the assistant's, its tool parts answer the requests of the waiting turn.
    """

    model_config = ConfigDict(extra="ignore")

    id: Id | None = None
    messages: list[Any] = Field(min_length=1, max_length=MAX_MESSAGES)
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    messageId: Id | None = None  # noqa: N815 - the client's name
    busy: Busy | None = BUSY


class MessageBody(BaseModel):
    """`{id, message}`, for a client that sends only the new message."""

    model_config = ConfigDict(extra="ignore")

    id: Id | None = None
    message: UIMessage
    busy: Busy | None = BUSY


class PlainBody(BaseModel):
    """`{session_id?, query, message_id?}`, for curl and scripts."""

    model_config = ConfigDict(extra="ignore")

    session_id: Id | None = None
    query: str
    message_id: Id | None = None
    busy: Busy | None = BUSY


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request, whichever body it came in."""

    session_id: str | None
    query: Query
    answers: "Sequence[ToolAnswer]" = ()
    """Answers to requests of a waiting turn. `query.message_id` is then the waiting answer's id, if it is known."""


def read_chat_request(body: Any) -> ChatRequest:
    """Read any of the bodies. The error names the wrong field."""
    if not isinstance(body, dict):
        raise InvalidRequest("Send a JSON object with `messages`, `message`, `query` or `answers`.")
    if "messages" in body:
        return _from_sdk(validated(SdkBody, body))
    if "message" in body:
        if _has_role(body["message"], "assistant"):
            from omniagent.http.answer_bodies import AnsweredBody, answered

            return answered(validated(AnsweredBody, body))
        request = validated(MessageBody, body)
        return ChatRequest(session_id=request.id, query=_submitted(request.message, request.busy))
    if "query" in body:
        plain = validated(PlainBody, body)
        query = Query(plain.query, plain.message_id or "", busy=plain.busy)
        return ChatRequest(session_id=plain.session_id, query=query)
    if "answers" in body:
        from omniagent.http.answer_bodies import AnswersBody, plainly_answered

        return plainly_answered(validated(AnswersBody, body))
    raise InvalidRequest("Send `messages` (the AI SDK's body), `message`, `query` or `answers`.")


def _from_sdk(body: SdkBody) -> ChatRequest:
    last = body.messages[-1]
    is_users = _has_role(last, "user")
    if body.trigger == "regenerate-message":
        question = _regenerated(last) if is_users else Query()
        query = Query(question.text, question.message_id, regenerate=True, replaces=body.messageId, busy=body.busy)
        return ChatRequest(session_id=body.id, query=query)
    if _has_role(last, "assistant"):
        from omniagent.http.answer_bodies import AnsweredBody, AnsweredMessage, answered

        message = validated(AnsweredMessage, last)
        return answered(AnsweredBody(id=body.id, message=message, messageId=body.messageId))
    if not is_users:
        raise InvalidRequest("messages: the last message must have the role `user` or `assistant`.")
    return ChatRequest(session_id=body.id, query=_submitted(validated(UIMessage, last), body.busy))


def _has_role(message: Any, role: str) -> bool:
    return isinstance(message, dict) and message.get("role") == role


def _regenerated(message: Any) -> Query:
    """Read the question of a regeneration, so that it can be answered even if its first request never arrived.

    It is optional: if it cannot be read, the question is found by the answer's id.
    """
    try:
        return _submitted(validated(UIMessage, message))
    except InvalidRequest:
        return Query()


def _submitted(message: UIMessage, busy: Busy | None = None) -> Query:
    for part in message.parts:
        if part.type != "text":
            raise InvalidRequest(f"parts: messages may contain text parts only, not {part.type!r}.")
    return Query("".join(part.text for part in message.parts), message.id or "", busy=busy)


def validated(kind: type[Body], value: Any) -> Body:
    """Read a body, or a part of one. The error names its first wrong field."""
    try:
        return kind.model_validate(value)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(key) for key in first["loc"]) or "body"
        raise InvalidRequest(f"{where}: {first['msg']}") from exc
