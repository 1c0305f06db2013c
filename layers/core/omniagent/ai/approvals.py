"""The types of a human in the loop: requests of a waiting turn, replies, and who may reply."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from omniagent.errors import OmniAgentError
from omniagent.messages import RequestKind, ToolPart
from omniagent.session.live import SessionMessage
from omniagent.team_code import team_code

NOTHING: Final = ...
"""No output was given. None is one."""


@dataclass(frozen=True, slots=True)
class ToolReply:
    """The reply to one request: a verdict, the output of a client tool, or its error."""

    call_id: str = ""
    approved: bool | None = None
    reason: str | None = None
    """Why it was approved or denied. The model reads the reason of a denial."""
    output: Any = NOTHING
    error: str | None = None
    request_id: str = ""
    """The request's id, if known. It suffices without the call's id."""
    message_id: str = ""
    """The waiting answer, if known. Empty: the session's latest."""
    is_echo: bool = False
    """The client only repeats a part of its message. Ignored if the call is settled."""

    @property
    def repeats_error(self) -> bool:
        """Whether the client only repeats the error of a call that nobody replied to."""
        return self.is_echo and self.output is NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """A request of a waiting turn: an approval, or the output of a client tool."""

    id: str
    call_id: str
    tool: str
    input: Any = None
    kind: RequestKind = "approval"
    reason: str | None = None
    """Why the call needs approval, from the tool's rule."""
    expires_at: datetime | None = None
    user: str = ""
    """The user whose message led to the call."""
    category: str | None = None
    session_id: str = ""
    message_id: str = ""
    """The waiting answer."""

    def approve(self, reason: str | None = None) -> ToolReply:
        return self._replied(approved=True, reason=reason)

    def deny(self, reason: str | None = None) -> ToolReply:
        return self._replied(approved=False, reason=reason)

    def reply(self, output: Any) -> ToolReply:
        """Reply with a client tool's output."""
        return self._replied(output=output)

    def fail(self, error: str) -> ToolReply:
        """Reply with a client tool's error."""
        return self._replied(error=error)

    def _replied(self, **reply: Any) -> ToolReply:
        return ToolReply(self.call_id, request_id=self.id, message_id=self.message_id, **reply)


@dataclass(frozen=True, slots=True)
class Approver:
    """The person who replies to a request. `claims` are verified: a token's claims, or a signer's ARN."""

    user: str
    category: str | None = None
    claims: Mapping[str, Any] = field(default_factory=dict, repr=False)


ApproverRule = Callable[[Approver, ToolRequest], bool | Awaitable[bool]]
"""Decides whether a person may see an approval request and reply to it."""


def requests_of(
    message: SessionMessage, *, user: str = "", category: str | None = None, session_id: str = "", settled: bool = False
) -> Sequence[ToolRequest]:
    """Return an answer's open requests; with `settled`, also its settled ones."""
    parts = [part for part in message.parts if isinstance(part, ToolPart)] if settled else message.pending
    return [
        ToolRequest(
            **part.request.model_dump(include={"id", "kind", "reason", "expires_at"}),
            call_id=part.call_id,
            tool=part.name,
            input=part.input,
            user=user,
            category=category,
            session_id=session_id,
            message_id=message.id,
        )
        for part in parts
        if part.request is not None
    ]


async def may_reply(rule: ApproverRule | None, approver: Approver, request: ToolRequest) -> bool:
    """Whether a person may reply. Only the session's own user replies for a client tool.

    Without a rule, only the session's user approves. With one, the rule decides for everyone, including that user. A
    rule that raises allows nothing.
    """
    if rule is None or request.kind == "output":
        return approver.user == request.user
    with suppress(OmniAgentError), team_code("rule of approvers failed", tool=request.tool):
        verdict = rule(approver, request)
        return (await verdict if inspect.isawaitable(verdict) else verdict) is True
    return False
