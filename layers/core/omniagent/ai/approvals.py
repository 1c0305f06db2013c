"""What a waiting turn asks, what is answered, and who may answer: the types of a human in the loop."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from omniagent.messages import RequestKind, ToolPart
from omniagent.session.manager import SessionMessage

logger = logging.getLogger(__name__)


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()
"""No output was given. None is one."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer to one request: a verdict, the output of a client's tool, or why it has none."""

    call_id: str = ""
    approved: bool | None = None
    reason: str | None = None
    """Why it was approved or denied. The model reads the reason of a denial."""
    output: Any = NOTHING
    error: str | None = None
    request_id: str = ""
    """The id of the request, where it is known. It is enough without the call's."""
    is_echo: bool = False
    """The client only repeats a part of its message: where the call is settled, it means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """What a waiting turn asks: may this call run, or what does the client's tool return?"""

    id: str
    call_id: str
    tool: str
    input: Any = None
    kind: RequestKind = "approval"
    reason: str | None = None
    """Why it needs approval, as the tool's rule says."""
    expires_at: datetime | None = None
    user: str = ""
    """Who asked the question that led to the call."""
    category: str | None = None
    session_id: str = ""
    message_id: str = ""
    """The waiting answer."""

    def approve(self, reason: str | None = None) -> ToolAnswer:
        return ToolAnswer(self.call_id, approved=True, reason=reason, request_id=self.id)

    def deny(self, reason: str | None = None) -> ToolAnswer:
        return ToolAnswer(self.call_id, approved=False, reason=reason, request_id=self.id)

    def reply(self, output: Any) -> ToolAnswer:
        """Answer for a client's tool."""
        return ToolAnswer(self.call_id, output=output, request_id=self.id)

    def fail(self, error: str) -> ToolAnswer:
        """Say why a client's tool has no output."""
        return ToolAnswer(self.call_id, error=error, request_id=self.id)


@dataclass(frozen=True, slots=True)
class Approver:
    """Whoever answers. `claims` is what was verified about them: a token's claims, a signer's ARN."""

    user: str
    category: str | None = None
    claims: Mapping[str, Any] = field(default_factory=dict, repr=False)


ApproverRule = Callable[[Approver, ToolRequest], bool | Awaitable[bool]]
"""Says whether somebody may see and answer a request for approval."""


def requests_of(
    message: SessionMessage, *, user: str = "", category: str | None = None, session_id: str = "", settled: bool = False
) -> Sequence[ToolRequest]:
    """Return what an answer waits for; with `settled` also what it has waited for."""
    parts = [part for part in message.parts if isinstance(part, ToolPart)] if settled else message.pending
    return [
        ToolRequest(
            id=part.request.id,
            call_id=part.call_id,
            tool=part.name,
            input=part.input,
            kind=part.request.kind,
            reason=part.request.reason,
            expires_at=part.request.expires_at,
            user=user,
            category=category,
            session_id=session_id,
            message_id=message.id,
        )
        for part in parts
        if part.request is not None
    ]


async def may_answer(rule: ApproverRule | None, approver: Approver, request: ToolRequest) -> bool:
    """Say whether somebody may answer. A client's tool runs where the question was asked, and only there.

    Without a rule it is the asker alone who approves; with one it is whoever the rule says, the asker included. A rule
    that raises allows nothing.
    """
    if rule is None or request.kind == "output":
        return approver.user == request.user
    try:
        verdict = rule(approver, request)
        verdict = await verdict if inspect.isawaitable(verdict) else verdict
    except Exception:
        logger.exception("rule of approvers failed", extra={"tool": request.tool})
        return False
    return verdict is True
