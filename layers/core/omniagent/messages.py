"""What a conversation is made of, for every layer: parts, messages, token usage.

A message is a list of parts in the order they came. The same shape is stored, sent to the model's
provider and turned into the AI SDK's `UIMessage`, so nothing is translated twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Role = Literal["user", "assistant"]
FinishReason = Literal["stop", "length", "content-filter", "tool-calls", "error", "other"]
"""Why the model stopped."""
Status = Literal["complete", "waiting", "cancelled", "failed", "interrupted"]
"""How a turn ended, or that it waits for a human."""
StopReason = Literal["cancelled", "deadline", "shutdown", "lost"]
"""Why a turn was ended early."""
RequestKind = Literal["approval", "output"]
"""What a tool call waits for: a verdict, or an output that only the client can make."""
Rating = Literal["up", "down"]

ORPHAN_ERROR = "The tool call was interrupted before it returned."
DENIED_ERROR = "The call was denied and not run."
UNANSWERED_ERROR = "Nobody replied before the conversation went on. The call was not run."


def plain_text(text: str) -> str:
    """Return text without half surrogate pairs, which nothing can encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


HIDDEN_CHARACTERS = (
    r"\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    r"\ufeff\uffa0\ufff9-\ufffb"
)
"""Characters that no name has: controls, those that turn the direction of text, and those that show nothing. Joiners,
variation selectors and tags stay: scripts and emoji are made with them."""


class Feedback(BaseModel):
    """What a user thinks of an answer: a thumb, a comment, or both."""

    model_config = ConfigDict(frozen=True)

    rating: Rating | None = None
    text: str | None = None
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)


class StepPart(_Part):
    """The start of one model call."""

    type: Literal["step-start"] = "step-start"


class TextPart(_Part):
    """Text of the user or the model."""

    type: Literal["text"] = "text"
    text: str


class ReasoningPart(_Part):
    """A summary of the model's reasoning. `provider_data` lets the same provider hand it back."""

    type: Literal["reasoning"] = "reasoning"
    text: str
    provider_data: dict[str, Any] | None = None


class CallRequest(_Part):
    """What a tool call waits for, or has waited for, and the verdict once there is one."""

    id: str
    """Random: it names the request for whoever may reply to it."""
    kind: RequestKind
    reason: str | None = None
    """Why it needs approval."""
    expires_at: datetime | None = None
    approved: bool | None = None
    comment: str | None = None
    """Why it was approved or denied."""
    answered_by: str | None = None
    """The id of the user who replied."""
    answered_at: datetime | None = None


class ToolPart(_Part):
    """One tool call with its result: `output`, or `error` (for the model) with `public_error` (for people).

    `input` is the arguments as JSON, or the raw text when the model sent something that is not JSON. A call that did
    not run at once has a `request`: it waits for the reply to it.
    """

    type: Literal["tool"] = "tool"
    call_id: str
    name: str
    input: Any = None
    output: Any = None
    error: str | None = None
    public_error: str | None = None
    done: bool = False
    request: CallRequest | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the call waits for a reply."""
        return not self.done and self.request is not None and self.request.approved is None

    @property
    def is_approved(self) -> bool:
        """Whether the call was approved and has no result yet."""
        return not self.done and self.request is not None and bool(self.request.approved)

    @property
    def is_denied(self) -> bool:
        return self.request is not None and self.request.approved is False

    @property
    def may_have_run(self) -> bool:
        """Whether the call has taken effect, or may have: it was about to run, or the client has run it."""
        if self.input is None or isinstance(self.input, str):  # its arguments were never complete
            return False
        return self.request is None or (self.done and not self.is_denied and self.request.answered_by is not None)

    def close(self, error: str = "") -> "ToolPart":
        """Return the part with a result: an API refuses a tool call that has none.

        A request without a reply is denied: the call was not run, and never will be. `error` says why.
        """
        if self.done:
            return self
        request, text = self.request, error or ORPHAN_ERROR
        if request is not None and self.is_pending:
            text = error or UNANSWERED_ERROR
            if request.kind == "approval":
                request = request.model_copy(update={"approved": False, "comment": text})
        return self.model_copy(update={"done": True, "error": text, "public_error": text, "request": request})


class DataPart(_Part):
    """What a tool or a callback sent with `emit()`: shown by the client as `data-<name>`, never sent to the model."""

    type: Literal["data"] = "data"
    name: str
    data: Any = None
    id: str | None = None


class SourcePart(_Part):
    """A source that the answer cites: a page with its `url`, or a document. Never sent to the model."""

    type: Literal["source"] = "source"
    source_id: str
    url: str | None = None
    title: str | None = None
    media_type: str | None = None
    filename: str | None = None


class SteeringPart(_Part):
    """A user's message that joined the answer while it was written. The model reads it as the user's, at this place."""

    type: Literal["steering"] = "steering"
    message_id: str
    text: str


Part = Annotated[
    StepPart | TextPart | ReasoningPart | ToolPart | DataPart | SourcePart | SteeringPart, Field(discriminator="type")
]
"""What a message is made of."""


class ChatMessage(BaseModel):
    """One message of a conversation as a provider sees it. The role `system` is for instructions, and never stored."""

    model_config = ConfigDict(defer_build=True)

    role: Role | Literal["system"]
    parts: list[Part]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @classmethod
    def user(cls, text: str) -> "ChatMessage":
        return cls(role="user", parts=[TextPart(text=text)])

    @classmethod
    def system(cls, text: str) -> "ChatMessage":
        return cls(role="system", parts=[TextPart(text=text)])

    @classmethod
    def assistant(cls, text: str) -> "ChatMessage":
        return cls(role="assistant", parts=[TextPart(text=text)])


def close_open_calls(parts: Sequence[Part], *, waiting: bool = False) -> list[Part]:
    """Give every tool call a result, so that no stored history makes a model API refuse it.

    Those of a turn that is `waiting` stay open while they wait, or until all others of their step have replies.
    """
    return [
        part.close() if isinstance(part, ToolPart) and not (waiting and part.request is not None) else part
        for part in parts
    ]


def has_content(parts: Sequence[Part]) -> bool:
    """Whether a reader sees anything of the answer in these parts."""
    return any(
        part.text if isinstance(part, TextPart | ReasoningPart) else not isinstance(part, StepPart | SteeringPart)
        for part in parts
    )


def steering_of(parts: Sequence[Part]) -> list[SteeringPart]:
    """Return the messages that joined an answer, in order."""
    return [part for part in parts if isinstance(part, SteeringPart)]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as reported by the provider, summed over the steps of a turn."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    """A part of it is an estimate: a step was stopped before its end, or the provider reported no usage."""
    cache_write_tokens: int = 0
    """Input tokens that were written to the provider's cache, which some bill at a higher price."""

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        counts: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return Usage(**counts, estimated=self.estimated or other.estimated)

    def to_dict(self) -> dict[str, int]:
        counts = {key: getattr(self, name) for name, key in _COUNTS.items()} | {"totalTokens": self.total_tokens}
        if not self.cache_write_tokens:
            del counts["cacheWriteTokens"]
        return counts | ({"estimated": True} if self.estimated else {})

    @classmethod
    def from_dict(cls, counts: Mapping[str, int]) -> "Usage":
        given: dict[str, Any] = {name: counts.get(key, 0) for name, key in _COUNTS.items()}
        return cls(**given, estimated=bool(counts.get("estimated")))


_COUNTS = {each.name: to_camel(each.name) for each in fields(Usage) if each.type is int}
"""The fields of `Usage` that are counts, and what they are called in JSON."""
