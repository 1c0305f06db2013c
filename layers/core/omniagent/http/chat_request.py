"""The request bodies of POST /chat, each reduced to one `ChatRequest`."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from omniagent.errors import InvalidRequest
from omniagent.http.body import inlined
from omniagent.session.identity import ID_PATTERN
from omniagent.turns.setup import Query

MAX_PARTS = 64
MAX_MESSAGES = 10_000
"""The AI SDK sends its whole history; only the last message is read."""

Body = TypeVar("Body", bound=BaseModel)
Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]


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
    """`{id, messages, trigger, messageId?}`, the AI SDK's default. Only the last message is read."""

    model_config = ConfigDict(extra="ignore")

    id: Id | None = None
    messages: list[Any] = Field(min_length=1, max_length=MAX_MESSAGES)
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    messageId: Id | None = None  # noqa: N815 - the client's name


class MessageBody(BaseModel):
    """`{id, message}`, for a client that sends only the new message."""

    model_config = ConfigDict(extra="ignore")

    id: Id | None = None
    message: UIMessage


class PlainBody(BaseModel):
    """`{session_id?, query, message_id?}`, for curl and scripts."""

    model_config = ConfigDict(extra="ignore")

    session_id: Id | None = None
    query: str
    message_id: Id | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request, whichever body it came in."""

    session_id: str | None
    query: Query


def read_chat_request(body: Any) -> ChatRequest:
    """Read any of the three bodies. The error names the wrong field."""
    if not isinstance(body, dict):
        raise InvalidRequest("Send a JSON object with `messages`, `message` or `query`.")
    if "messages" in body:
        return _from_sdk(_validated(SdkBody, body))
    if "message" in body:
        request = _validated(MessageBody, body)
        return ChatRequest(session_id=request.id, query=_submitted(request.message))
    if "query" in body:
        plain = _validated(PlainBody, body)
        return ChatRequest(session_id=plain.session_id, query=Query(plain.query, plain.message_id or ""))
    raise InvalidRequest("Send `messages` (the AI SDK's body), `message` or `query`.")


def _from_sdk(body: SdkBody) -> ChatRequest:
    last = body.messages[-1]
    is_users = isinstance(last, dict) and last.get("role") == "user"
    if body.trigger == "regenerate-message":
        question = _regenerated(last) if is_users else Query()
        query = Query(question.text, question.message_id, regenerate=True, replaces=body.messageId)
        return ChatRequest(session_id=body.id, query=query)
    if not is_users:
        raise InvalidRequest("messages: the last message must have the role `user`.")
    return ChatRequest(session_id=body.id, query=_submitted(_validated(UIMessage, last)))


def _regenerated(message: Any) -> Query:
    """Read the question of a regeneration, so that one whose send never arrived can be answered.

    It is optional: a question that cannot be read is found by the answer's id.
    """
    try:
        return _submitted(_validated(UIMessage, message))
    except InvalidRequest:
        return Query()


def _submitted(message: UIMessage) -> Query:
    if other := next((part.type for part in message.parts if part.type != "text"), None):
        raise InvalidRequest(f"parts: messages may contain text parts only, not {other!r}.")
    return Query("".join(part.text for part in message.parts), message.id or "")


def _validated(kind: type[Body], value: Any) -> Body:
    try:
        return kind.model_validate(value)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(key) for key in first["loc"]) or "body"
        raise InvalidRequest(f"{where}: {first['msg']}") from exc


def chat_body_schema() -> dict[str, Any]:
    """Describe the body for OpenAPI."""
    kinds = [inlined(kind.model_json_schema()) for kind in (SdkBody, MessageBody, PlainBody)]
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": {"anyOf": kinds}}}}}
