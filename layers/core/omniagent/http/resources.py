"""The request and response bodies of the sessions API."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from omniagent.http.fields import FeedbackText, Name, ShownMessageJson
from omniagent.messages import Feedback, Rating, RequestKind, ToolPart
from omniagent.persistence.catalog import Page, tree_cursor
from omniagent.persistence.documents import Session, api_values
from omniagent.protocol.ui_messages import DEFAULT_SDK, ui_message
from omniagent.session.ids import ID_PATTERN, public_session_id
from omniagent.session.live import SessionMessage
from omniagent.settings import Budget

if TYPE_CHECKING:
    from omniagent.ai.approvals import ToolRequest
    from omniagent.budget.spending import Spending

# Lambda's own limit for a response is 6 MB.
MAX_PAGE_CHARACTERS: Final = 2_000_000


class NewSession(BaseModel):
    """A session to create. Without an `id`, one is generated."""

    id: str | None = Field(None, pattern=ID_PATTERN)
    name: Name | None = None
    agent: str | None = Field(None, pattern=ID_PATTERN, description="The agent, if the deployment has several.")


class NewName(BaseModel):
    """A new name for a session."""

    name: Name


class StopRequest(BaseModel):
    """The turn to stop."""

    message_id: str | None = Field(
        None,
        pattern=ID_PATTERN,
        description="Stop only the turn that answers this message. Default: the running turn and all queued messages.",
    )


class NewFeedback(BaseModel):
    """The user's feedback on an answer. Setting both fields to null withdraws it."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["rating"]}, {"required": ["text"]}]})

    rating: Rating | None = None
    text: FeedbackText | None = None

    @model_validator(mode="after")
    def _check(self) -> "NewFeedback":
        if not self.model_fields_set & {"rating", "text"}:
            raise ValueError("send `rating` (`up`, `down` or null), `text`, or both")
        return self

    def feedback(self) -> Feedback | None:
        return Feedback(rating=self.rating, text=self.text or None) if self.rating or self.text else None


class _Resource(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class SessionResource(_Resource):
    """A conversation."""

    id: str
    name: str | None
    agent: str | None = Field(description="The agent that answers. Null if the deployment has only one.")
    latest_turn_number: int
    answering: bool = Field(description="A turn is running.")
    waiting: bool = Field(description="The latest turn waits for an approval or a client tool.")
    created_at: datetime
    updated_at: datetime = Field(description="When the last turn began or ended. Lists are sorted by it.")
    extra: dict[str, Any] = Field(
        default_factory=dict, description="Fields that the project adds to its document class."
    )
    snippet: str | None = Field(None, description="In a search: the words around a match in a message.")

    @classmethod
    def of(cls, session: Session, snippet: str | None = None) -> "SessionResource":
        return cls(
            snippet=snippet,
            id=public_session_id(session.id),
            name=session.name,
            agent=session.agent,
            latest_turn_number=session.latest_turn_number,
            answering=_state(session) == "running",
            waiting=_state(session) == "waiting",
            created_at=session.created_at,
            updated_at=session.updated_at,
            extra=api_values(session),
        )


def _state(session: Session) -> str | None:
    """Return whether the session's turn runs or waits. None: it has none, or its requests have expired."""
    turn = session.turn
    if turn is None or (turn["until"] is not None and turn["until"] <= datetime.now(UTC)):
        return None
    return str(turn["state"])


class SessionList(_Resource):
    """One page of sessions."""

    sessions: list[SessionResource]
    before: str | None = Field(description="Pass it as `before` for the next page. Null on the last page.")
    incomplete: bool = Field(description="Whether a search ran out of time, so that other sessions may match, too.")

    @classmethod
    def of(cls, page: Page[Session], snippets: Mapping[str, str]) -> "SessionList":
        sessions = [SessionResource.of(session, snippets.get(session.id)) for session in page.items]
        return cls(sessions=sessions, before=page.before, incomplete=not page.is_complete)


class MessageList(_Resource):
    """Complete turns in order, as messages in the format of `useChat`."""

    messages: list[ShownMessageJson]
    before: str | None = Field(description="Pass it as `before` for earlier turns. Null on the last page.")
    summarized_to: int | None = Field(description="The last turn that the summary covers. Null without a summary.")

    @classmethod
    def of(
        cls, key: str, page: Page[SessionMessage], summarized_to: int | None, *, sdk: int = DEFAULT_SDK
    ) -> "MessageList":
        """Return the newest complete turns that fit into a response, at least one."""
        items, before = page.items, page.before
        messages = [_ui_message(key, item, sdk) for item in items]
        if (fitting := _fitting(messages[::-1])) < len(items):
            first = min(items[-fitting - 1].turn_number + 1, items[-1].turn_number)
            messages = [shown for each, shown in zip(items, messages, strict=True) if each.turn_number >= first]
            before = str(first) if len(messages) < len(items) else before
        return cls(messages=messages, before=before, summarized_to=summarized_to)


class TreeNode(_Resource):
    """A message and the one before it."""

    parent_id: str | None = Field(description="The node of the message before it. Null for the first.")
    message: dict[str, Any] = Field(description="A UIMessage of the AI SDK. Its `id` is its node.")


class MessageTree(_Resource):
    """Messages of all branches, each after its parent, as assistant-ui imports them (`MessageFormatRepository`)."""

    head_id: str | None = Field(description="The end of the active path. Null before the first answer.")
    messages: list[TreeNode]
    after: str | None = Field(description="Pass it as `after` for the next page. Null on the last page.")

    @classmethod
    def of(cls, key: str, leaf: str, page: Page[SessionMessage], *, sdk: int = DEFAULT_SDK) -> "MessageTree":
        messages = [_ui_message(key, each, sdk) | {"id": each.node} for each in page.items]
        fitting = _fitting(messages)
        nodes = [
            TreeNode(parent_id=each.parent or None, message=message)
            for each, message in zip(page.items[:fitting], messages, strict=False)
        ]
        after = page.before if fitting >= len(messages) else tree_cursor(page.items[fitting - 1])
        return cls(head_id=leaf or None, messages=nodes, after=after)


class NewBranch(_Resource):
    """The path to show from now on."""

    node_id: str = Field(pattern=ID_PATTERN, description="`metadata.nodeId` of a message on that path.")


class ApprovalResource(_Resource):
    """A request of a waiting turn: an approval, or the output of a client tool."""

    id: str = Field(description="Answer an approval with `POST /chat/approvals/{id}` of the chat function.")
    kind: RequestKind = Field(description="`approval`, or `output` for a tool that only the client can run.")
    tool: str
    tool_call_id: str
    input: Any = None
    reason: str | None = Field(description="Why the call needs approval.")
    expires_at: datetime | None
    user: str = Field(description="The user whose message led to the call.")
    session_id: str | None = Field(description="The session. Null if it belongs to another user.")
    message_id: str | None = Field(description="The waiting answer. Null if it belongs to another user.")

    @classmethod
    def of(cls, request: "ToolRequest", *, is_own: bool) -> "ApprovalResource":
        shown = asdict(request) | {"tool_call_id": request.call_id}
        return cls.model_validate(shown | ({} if is_own else {"session_id": None, "message_id": None}))


class ApprovalList(_Resource):
    """One page of requests, newest first. A page may hold fewer than `limit`, or none."""

    approvals: list[ApprovalResource]
    before: str | None = Field(description="Pass it as `before` for the next page. Null on the last page.")


class SummaryResource(_Resource):
    """The text that replaces the turns it covers, and all earlier ones, in the model's prompt."""

    content: str
    token_count: int
    start_turn_number: int
    end_turn_number: int
    created_at: datetime


class FeedbackResource(_Resource):
    """The stored feedback on an answer."""

    message_id: str
    rating: Rating | None
    text: str | None

    @classmethod
    def of(cls, answer: SessionMessage) -> "FeedbackResource":
        feedback = answer.feedback or Feedback()
        return cls(message_id=answer.id, rating=feedback.rating, text=feedback.text)


class RequestUsage(_Resource):
    """The requests of this minute."""

    limit: int
    used: int
    resets_at: datetime


class TokenUsage(_Resource):
    """The tokens of this day (UTC)."""

    limit: int
    used: int = Field(description="Input and output tokens of answers, names and summaries.")
    estimated: int = Field(
        description="The estimated part of `used`: calls that were cut off before the provider reported usage."
    )
    resets_at: datetime


class LimitUsage(_Resource):
    """The limits of a budget, and what the caller has used. Null where there is no limit."""

    requests_per_minute: RequestUsage | None
    tokens_per_day: TokenUsage | None

    @classmethod
    def of(cls, budget: Budget, spending: "Spending | None") -> Self:
        if spending is None:
            return cls(requests_per_minute=None, tokens_per_day=None)
        limit = budget.requests_per_minute
        requests = RequestUsage(limit=limit, used=spending.requests, resets_at=spending.next_minute)
        used = {"used": spending.tokens, "estimated": spending.estimated, "resets_at": spending.next_day}
        tokens = TokenUsage(limit=budget.tokens_per_day, **used)
        return cls(requests_per_minute=requests if limit else None, tokens_per_day=tokens if tokens.limit else None)


class UsageResource(LimitUsage):
    """The caller's limits and usage."""

    agents: dict[str, LimitUsage] = Field(default_factory=dict, description="Of agents with a budget of their own.")


class Accepted(_Resource):
    """The request was accepted and runs in the background."""

    session_id: str
    accepted: str = Field(
        description="`cancel` or `summary`: this was started. `queued`: a summary was already queued. "
        "`unchanged`: there is nothing to do."
    )


def _fitting(messages: Sequence[dict[str, Any]]) -> int:
    """Return how many of the messages fit into a response, at least one."""
    sizes = accumulate(len(json.dumps(message)) for message in messages)
    return max(1, sum(size <= MAX_PAGE_CHARACTERS for size in sizes))


def _ui_message(key: str, message: SessionMessage, sdk: int) -> dict[str, Any]:
    metadata = message.ui_metadata
    if message.role == "assistant" and not message.metadata:
        # A turn whose process died has no metadata. A follower's stream ended with the same fields.
        metadata |= {"sessionId": public_session_id(key), "turnNumber": message.turn_number, "status": message.status}
    if message.extra:
        metadata["extra"] = message.extra
    return ui_message(message.id, message.role, message.parts, {**metadata, **_decisions(key, message)}, sdk=sdk)


def _decisions(key: str, message: SessionMessage) -> dict[str, Any]:
    """Return the metadata `decisions`, by the id of the call: when, and whether by the session's own user.

    Nothing if no approval was decided. Who else decided is not said.
    """
    user_id = key.partition(":")[0]
    calls = [part for part in message.parts if isinstance(part, ToolPart)]
    decisions = {
        call.call_id: {
            "at": call.request.answered_at.isoformat(),
            "by": "user" if call.request.answered_by == user_id else "other",
        }
        for call in calls
        if call.request is not None and call.request.kind == "approval" and call.request.answered_at is not None
    }
    return {"decisions": decisions} if decisions else {}
