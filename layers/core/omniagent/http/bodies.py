"""Request bodies: read as bounded JSON, and the bodies of `POST /chat`: the AI SDK's, a single message, a plain query.

Of the JSON only its shape is checked. A chat body repeats a history that is not read, and whatever is in it must not
stop the chat; what is read is checked by the model that reads it.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator
from starlette.requests import Request

from omniagent.errors import InvalidRequest, MalformedRequest, PayloadTooLarge, UnsupportedMediaType
from omniagent.http.fields import MAX_BODY_BYTES, MAX_PARTS, ChatId, Id, Text
from omniagent.messages import DataPart, TextPart
from omniagent.session.ids import is_id
from omniagent.session.query import Query, UserPart
from omniagent.settings import Busy
from omniagent.validation import problems_of

if TYPE_CHECKING:
    from omniagent.ai.approvals import ToolReply
    from omniagent.http.reply_bodies import RepliedBody

Model = TypeVar("Model", bound=BaseModel)
MAX_FORM_BYTES: Final = 65_536
"""A body that carries no conversation: a name, a verdict, feedback."""
MAX_BODY_DEPTH: Final = 128
"""More than BSON can store (100): a page can send back every message that it was sent."""
MAX_CONTAINERS: Final = 100_000
"""Lists and objects. Millions of empty ones fit into 6 MB, and take seconds and hundreds of MB to read."""
_BOOL: Final = TypeAdapter(bool)
_VERDICT: Final = re.compile(rb"approved|\\u00[67]")
"""Also with its letters escaped, as no encoder writes them."""
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def read_flag(request: Request, name: str, *, default: bool) -> bool:
    """Read a flag of the query."""
    try:
        return _BOOL.validate_python(request.query_params.get(name, default))
    except ValidationError:
        raise InvalidRequest(f"query.{name}: must be true or false.") from None


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


MAX_MESSAGES: Final = 10_000
"""The AI SDK sends its whole history; only the last two messages are read."""
TREE_METADATA: Final = {"nodeId", "parentId", "siblings"}
"""What the server adds to a message's metadata. A page sends it back."""


class UIPart(BaseModel):
    """`{type: "text", text}`, or `{type: "data-<name>", data, id?}`, which is stored and returned."""

    type: str = Field(max_length=128, json_schema_extra={"pattern": "^(text|data-.+)$"})
    text: Text = ""
    data: Any = None
    id: str | None = Field(None, max_length=256)


class UIMessage(BaseModel):
    """A message as the AI SDK's client sends it."""

    id: Id | None = None
    role: Literal["user"] = "user"
    parts: list[UIPart] = Field(min_length=1, max_length=MAX_PARTS)
    metadata: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_format(cls, message: Any) -> Any:
        if isinstance(message, dict) and "content" in message and "parts" not in message:
            raise ValueError("it has `content`, but AI SDK 5 and newer send `parts`: [{type: 'text', text: …}]")
        return message


class _Options(BaseModel):
    busy: Busy | None = Field(
        None,
        description="What to do while the session answers another message. Null leaves it to the deployment's setting.",
    )
    agent: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="The agent of the session, if the deployment has several. The first message of a session chooses "
        "it.",
    )


class _Placed(_Options):
    id: ChatId | None = None
    parentId: Id | None = Field(  # noqa: N815 - the client's name
        None,
        description="The id of the message that the new one follows, if `messages` has only one. Null: it begins the "
        "conversation again. Left out: it follows the latest.",
    )


class SdkBody(_Placed):
    """`{id, messages, trigger, messageId?}`, the AI SDK's default. Only the last message is read, and the id of the one
    before it, which it follows.

    If the last one is the assistant's, its tool parts reply to the requests of the waiting turn.
    """

    messages: list[Any] = Field(min_length=1, max_length=MAX_MESSAGES)
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    messageId: Id | None = None  # noqa: N815 - the client's name
    tools: Any = None
    metadata: Any = Field(
        None,
        description="assistant-ui's transport adds it, and `tools`, to all messages of its page. Neither is read, but "
        "a single message then begins the conversation again.",
    )


class MessageBody(_Placed):
    """`{id, message}`, for a client that sends only the new message."""

    message: UIMessage


class PlainBody(_Options):
    """`{session_id?, query, message_id?}`, for curl and scripts."""

    session_id: ChatId | None = None
    query: Text
    message_id: Id | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request, whichever body it came in."""

    session_id: str | None
    query: Query
    replies: "Sequence[ToolReply]" = ()
    """Replies to requests of a waiting turn. `query.message_id` is then the waiting answer's id, if it is known."""


def read_chat_request(body: Any) -> ChatRequest:
    """Read any of the bodies. The error names the wrong field."""
    match body:
        case {"messages": _}:
            return _from_sdk(validated(SdkBody, body))
        case {"message": {"role": "assistant"}}:
            from omniagent.http.reply_bodies import RepliedBody

            return _replied(validated(RepliedBody, body))
        case {"message": _}:
            request = validated(MessageBody, body)
            return ChatRequest(request.id, _query(request, request.message))
        case {"query": _}:
            plain = validated(PlainBody, body)
            query = Query(plain.query, plain.message_id or "", busy=plain.busy, agent=plain.agent)
            return ChatRequest(plain.session_id, query)
        case {"replies": _}:
            from omniagent.http.reply_bodies import RepliesBody, plain_replies

            replies = validated(RepliesBody, body)
            return ChatRequest(replies.session_id, Query(message_id=replies.message_id or ""), plain_replies(replies))
        case dict():
            raise InvalidRequest("Send `messages` (the AI SDK's body), `message`, `query` or `replies`.")
    raise InvalidRequest("Send a JSON object with `messages`, `message`, `query` or `replies`.")


def _from_sdk(body: SdkBody) -> ChatRequest:
    last, at = body.messages[-1], f"messages.{len(body.messages) - 1}"
    role = last.get("role") if isinstance(last, dict) else None
    if body.trigger == "regenerate-message":
        query = _query(body)
        if role == "user":
            # The question, so that it can be answered even if its first request never arrived. If it cannot be read,
            # it is found by the answer's id.
            with suppress(InvalidRequest):
                query = _query(body, validated(UIMessage, last))
        return ChatRequest(body.id, replace(query, regenerate=True, replaces=body.messageId))
    if role == "assistant":
        from omniagent.http.reply_bodies import RepliedBody, RepliedMessage

        message = validated(RepliedMessage, last, at=at)
        return _replied(RepliedBody(id=body.id, message=message, messageId=body.messageId))
    if role != "user":
        raise InvalidRequest("messages: the last message must have the role `user` or `assistant`.")
    return ChatRequest(body.id, _query(body, validated(UIMessage, last, at=at)))


def _query(body: SdkBody | MessageBody, message: UIMessage | None = None) -> Query:
    """Return what a body says, with its message."""
    query = Query(busy=body.busy, parent=_parent(body), agent=body.agent)
    if message is None:
        return query
    parts = [_part(part) for part in message.parts]
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    metadata = {name: value for name, value in (message.metadata or {}).items() if name not in TREE_METADATA}
    is_text = len(parts) == 1 and isinstance(parts[0], TextPart)
    return replace(query, text=text, message_id=message.id or "", parts=() if is_text else parts, metadata=metadata)


def _parent(body: SdkBody | MessageBody) -> str | None:
    """Return the id of the message that the last one follows: the one before it, else the one that is named.

    Empty: it is the first. None: it follows the latest. An id that no message of ours has is the client's own.
    """
    begins_again = body.parentId is None and "parentId" in body.model_fields_set
    if isinstance(body, SdkBody):
        if len(body.messages) > 1:
            before = body.messages[-2]
            name = before.get("id") if isinstance(before, dict) else None
            return name if isinstance(name, str) and is_id(name) else None
        # `messages` is all that the page shows: assistant-ui edits without naming what it edits.
        begins_again |= body.parentId is None and {"tools", "metadata"} <= body.model_fields_set
    return "" if begins_again else body.parentId


def _replied(body: "RepliedBody") -> ChatRequest:
    from omniagent.http.reply_bodies import replied

    return ChatRequest(body.id, Query(message_id=body.messageId or body.message.id or ""), replied(body))


def _part(part: UIPart) -> UserPart:
    if part.type == "text":
        return TextPart(text=part.text)
    if part.type.startswith("data-") and len(part.type) > len("data-"):
        return DataPart(name=part.type.removeprefix("data-"), data=part.data, id=part.id)
    raise InvalidRequest(f"parts: messages may contain text and data parts only, not {part.type!r}.")
