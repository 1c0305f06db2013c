"""The bodies of `POST /chat`: the AI SDK's, a single message, and a plain query."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, model_validator

from omniagent.errors import InvalidRequest
from omniagent.http.json_body import MAX_PARTS, ChatId, Id, Text, validated
from omniagent.messages import DataPart, TextPart
from omniagent.session.ids import is_id
from omniagent.session.query import Query, UserPart
from omniagent.settings import Busy

if TYPE_CHECKING:
    from omniagent.ai.approvals import ToolReply
    from omniagent.http.reply_bodies import RepliedBody

MAX_MESSAGES = 10_000
"""The AI SDK sends its whole history; only the last two messages are read."""
TREE_METADATA = {"nodeId", "parentId", "siblings"}
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
