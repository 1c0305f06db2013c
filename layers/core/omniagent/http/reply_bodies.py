"""The bodies that reply to requests of a waiting turn: approvals, and outputs of client tools.

Imported only when such a body arrives.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, StrictBool, model_validator

from omniagent.ai.approvals import ToolReply
from omniagent.errors import InvalidRequest
from omniagent.http.fields import MAX_PARTS, ChatId, Id

MAX_REPLY_PARTS = 1_000
MAX_CALL_ID = 256
MAX_REASON = 2_000
_TOOL_TYPES = ("tool-", "dynamic-tool")


def _tool_parts(parts: Any) -> Any:
    """Keep only tool parts: text and data of the answer are not read."""
    if not isinstance(parts, list):
        return parts
    return [part for part in parts if isinstance(part, dict) and str(part.get("type")).startswith(_TOOL_TYPES)]


class UIApproval(BaseModel):
    id: str = Field(min_length=1, max_length=128)
    approved: StrictBool | None = None
    reason: str | None = None


class UIToolPart(BaseModel):
    """A tool's part as the AI SDK's client sends it. The client's copy of the input is not read."""

    type: str = Field(max_length=128)
    toolCallId: str = Field(min_length=1, max_length=MAX_CALL_ID)  # noqa: N815 - the client's name
    state: str = Field("", max_length=64)
    approval: UIApproval | None = None
    output: Any = None
    errorText: str | None = None  # noqa: N815 - the client's name

    @model_validator(mode="after")
    def _check(self) -> "UIToolPart":
        if self.state == "approval-responded" and (self.approval is None or self.approval.approved is None):
            raise ValueError("a reply to an approval has an `id` and is `approved` or not")
        return self


class RepliedMessage(BaseModel):
    """An assistant's message as the AI SDK's client sends it back, with its user's replies in it."""

    id: Id | None = None
    role: Literal["assistant"] = "assistant"
    parts: Annotated[list[UIToolPart], BeforeValidator(_tool_parts)] = Field(max_length=MAX_REPLY_PARTS)


class RepliedBody(BaseModel):
    """`{id, message}`, for a client that sends only the message whose requests have replies."""

    id: ChatId | None = None
    message: RepliedMessage
    messageId: Id | None = None  # noqa: N815 - the client's name


class PlainReply(BaseModel):
    """The reply to one request: exactly one of `approved`, `output` and `error`. A `ToolReply` has the same fields."""

    call_id: str = Field(alias="tool_call_id", min_length=1, max_length=MAX_CALL_ID)
    approved: StrictBool | None = None
    reason: str | None = Field(None, description="Why it is approved or denied.")
    output: Any = Field(None, description="What the client's tool returned.")
    error: str | None = Field(None, description="Why the client's tool returned nothing.")


class RepliesBody(BaseModel):
    """`{session_id, replies}`, for curl and scripts: replies to the requests of a waiting turn."""

    session_id: ChatId
    message_id: Id | None = None
    replies: list[PlainReply] = Field(min_length=1, max_length=MAX_PARTS)


class Decision(BaseModel):
    """Approve or deny a waiting tool call: the body of `POST /chat/approvals/{id}`."""

    approved: StrictBool
    reason: str | None = Field(None, max_length=MAX_REASON, description="Shown to the model if the call is denied.")


def replied(body: RepliedBody) -> list[ToolReply]:
    """Read the replies out of an assistant's message. Its other parts are the client's copy of what is stored."""
    if body.messageId and body.message.id and body.messageId != body.message.id:
        raise InvalidRequest("messageId: it must be the id of the last message.")
    approvals = [part.approval for part in body.message.parts if part.approval is not None]
    verdicts = {(each.id, each.approved) for each in approvals if each.approved is not None}
    if len({request_id for request_id, _ in verdicts}) < len(verdicts):
        raise InvalidRequest("messages: a request is both approved and denied.")
    replies: list[ToolReply] = []
    # Some models use the same call ids in every step: the last part with an id counts.
    for part in {part.toolCallId: part for part in body.message.parts}.values():
        match part.state, part.approval:
            case "approval-responded", UIApproval(approved=bool(approved)) as approval:
                replies.append(
                    ToolReply(part.toolCallId, approved=approved, reason=approval.reason, request_id=approval.id)
                )
            case "output-available", _:
                replies.append(ToolReply(part.toolCallId, output=part.output, is_echo=True))
            case "output-error", _:
                replies.append(ToolReply(part.toolCallId, error=part.errorText or "", is_echo=True))
    if not replies:
        raise InvalidRequest(
            "messages: the last message is the assistant's and replies to nothing. Send a user's message."
        )
    return replies


def plain_replies(body: RepliesBody) -> list[ToolReply]:
    """Read the replies of `{session_id, replies}`."""
    if len({reply.call_id for reply in body.replies}) < len(body.replies):
        raise InvalidRequest("replies: two replies have the same tool_call_id.")
    return [ToolReply(**reply.model_dump(exclude_unset=True)) for reply in body.replies]
