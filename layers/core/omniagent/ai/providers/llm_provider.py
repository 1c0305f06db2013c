"""The interface of a model provider: one request in, a stream of typed events out."""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from typing import Any, Final, Literal, NoReturn, get_args

from omniagent.errors import ConfigurationError
from omniagent.messages import ChatMessage, FinishReason, Usage
from omniagent.validation import check_fields

Json = dict[str, Any]
"""An object of a model's API."""
Purpose = Literal["answer", "summary", "name"]
"""Why a model is called."""
KeySource = Callable[[], Awaitable[str]]
"""Returns the key of a model's API."""


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it, in the fields of OpenAI's APIs. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Overrides:
    """Parameters that override an agent's: another model, a temperature, extra request fields."""

    model: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    instructions: str | None = None
    """Of `Agent(summary=…)` and `Agent(naming=…)`: what the model is told instead of the package's own prompt."""

    def __post_init__(self) -> None:
        check_fields("Overrides", self)


@dataclass(frozen=True)
class OutputFormat:
    """The JSON schema of the answer, and whether strict mode can express it, in the fields of OpenAI's APIs."""

    name: str
    schema: dict[str, Any]
    strict: bool = True


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call. The provider converts it to its API's request and must not modify it."""

    instructions: str
    messages: Sequence[ChatMessage]
    tools: Sequence[ToolSpec] = ()
    overrides: Overrides = Overrides()
    output: OutputFormat | None = None
    cache_key: str = ""
    """Stable per session: lets the API reuse its cache of the prompt."""
    user_id: str = ""
    """The user's hash, for the API's own abuse checks."""
    purpose: Purpose = "answer"
    """Set by `call_model`."""


def _refuse(event: object, name: str, value: object, instead: str) -> NoReturn:
    """Raise the error of an event that would break the chat of a client later."""
    raise ConfigurationError(f"{type(event).__name__}({name}=…) must be {instead}, not {value!r:.100}")


class _TextEvent:
    """An event whose fields are all text. A call's id is never empty."""

    __slots__: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in type(self).__slots__:
            value = getattr(self, name)
            if type(value) is not str:
                _refuse(self, name, value, f"text{', such as json.dumps(arguments)' if name == 'arguments' else ''}")
            if not value and name == "call_id":
                _refuse(self, name, value, "an id that no other call has")


_FINISH_REASONS: Final = get_args(FinishReason)
_COUNTS: Final = tuple(each.name for each in fields(Usage) if each.name != "estimated")
OTHER_NAMES: Final[dict[str, FinishReason]] = {
    **dict.fromkeys(("end_turn", "stop_sequence", "completed", "eos", "STOP"), "stop"),
    **dict.fromkeys(("tool_use", "tool_calls", "function_call"), "tool-calls"),
    **dict.fromkeys(("max_tokens", "max_output_tokens", "model_length", "MAX_TOKENS"), "length"),
    "model_context_window_exceeded": "length",
    **dict.fromkeys(("refusal", "content_filter", "SAFETY"), "content-filter"),
    "stop": "stop",
    "length": "length",
}
"""The finish reasons of the APIs, as ours."""


@dataclass(frozen=True, slots=True)
class ModelText(_TextEvent):
    """Text of the answer. Deltas that arrived together come as one."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelReasoning(_TextEvent):
    """Reasoning that the user is shown. Deltas that arrived together come as one."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelReasoningDone:
    """The end of a block of reasoning, or reasoning that is not shown, with the data that the API expects back."""

    provider_data: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        try:
            text = json.dumps(self.provider_data)
        except (TypeError, ValueError, RecursionError):
            text = ""
        if not text.startswith(("{", "null")):
            _refuse(self, "provider_data", self.provider_data, "None or a dict that can be stored as JSON")


@dataclass(frozen=True, slots=True)
class ModelToolStart(_TextEvent):
    """The model has begun to call a tool."""

    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ModelToolDelta(_TextEvent):
    """A piece of a tool call's arguments."""

    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ModelToolCall(_TextEvent):
    """A complete tool call; `arguments` is the raw text that the model wrote."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A source that the answer cites: a page with its `url`, or a document with its `title`.

    Comes after the text that cites it. One that is cited again is shown once.
    """

    url: str | None = None
    title: str | None = None
    media_type: str = "text/plain"
    filename: str | None = None

    def __post_init__(self) -> None:
        if self.url is None and not isinstance(self.title, str):
            _refuse(self, "title", self.title, "text if there is no url")
        if self.url is not None and not (isinstance(self.url, str) and self.url.startswith(("https://", "http://"))):
            _refuse(self, "url", self.url, "None or an address that begins with https:// or http://")
        if not isinstance(self.media_type, str):
            _refuse(self, "media_type", self.media_type, "text")
        for name in ("title", "filename"):
            if not isinstance(value := getattr(self, name), str | None):
                _refuse(self, name, value, "text or None")


@dataclass(frozen=True, slots=True)
class ModelFinish:
    """The last event of every call. Without tokens in its usage, they are estimated."""

    reason: FinishReason
    usage: Usage = Usage()

    def __post_init__(self) -> None:
        if self.reason not in _FINISH_REASONS:
            known = ", ".join(map(repr, _FINISH_REASONS))
            hint = f" (write {OTHER_NAMES[self.reason]!r})" if self.reason in OTHER_NAMES else ""
            _refuse(self, "reason", self.reason, f"one of {known}{hint}")
        if not isinstance(self.usage, Usage):
            _refuse(self, "usage", self.usage, "Usage(input_tokens=…, output_tokens=…)")
        for name in _COUNTS:
            if type(count := getattr(self.usage, name)) is not int or count < 0:
                _refuse(self, "usage", f"{name}={count!r}", "Usage(…) of integers from 0 on")


@dataclass(frozen=True, slots=True)
class ModelReplaced(_TextEvent):
    """Another model answers instead: what the call has yielded before is not part of the answer."""

    model: str


ModelEvent = (
    ModelText
    | ModelReasoning
    | ModelReasoningDone
    | ModelToolStart
    | ModelToolDelta
    | ModelToolCall
    | ModelSource
    | ModelReplaced
    | ModelFinish
)
"""What `LLMProvider.stream` yields."""


class LLMProvider(ABC):
    """A model behind one small interface. Providers only stream; `complete` buffers a stream.

    Order within a call: reasoning, text and tool events as they arrive; one `ModelReasoningDone` after each
    block of reasoning; for each tool `ModelToolStart`, any `ModelToolDelta`, `ModelToolCall`; each `ModelSource` after
    the text; `ModelFinish` last.
    A refusal is text with the finish reason `content-filter`. Failures are raised as `ModelError`s.
    """

    system: str = "unknown"
    """The vendor's name, for traces (`llm.system`)."""
    tools_may_crash: bool = True
    """Whether the model reads that a tool crashed. False, in a test: that ends the turn, and `Runner.run` raises it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a `stream` that is not an async generator."""
        super().__init_subclass__(**kwargs)
        if inspect.iscoroutinefunction(cls.stream) or inspect.isgeneratorfunction(cls.stream):
            raise ConfigurationError(
                f"provider {cls.__name__}: its stream is no async generator: "
                "write `async def stream(self, request)`, with `yield`"
            )

    def __init__(self, model: str) -> None:
        self.model = model

    @abstractmethod
    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model and yield its events as they arrive. Closing the generator ends the call."""

    async def aclose(self) -> None:  # noqa: B027 - a provider without connections has nothing to close
        """Close the provider's connections."""

    async def shutdown_date(self) -> date | None:
        """Return when the model is shut down, if its server announces it."""
        return None

    def context_window(self, overrides: Overrides) -> int | None:  # noqa: ARG002 - it may depend on the model
        """Return how many tokens a prompt and its answer may have together, if that is known."""
        return None

    def cached_price(self, overrides: Overrides) -> float:  # noqa: ARG002 - it may depend on the model
        """Return what a token costs that the API's prompt cache has, as a share of the price of any other."""
        return 1.0


def check_provider(where: str, provider: object) -> None:
    """Refuse anything that is not a provider, and a provider that has not called `LLMProvider.__init__`."""
    if not isinstance(provider, LLMProvider):
        hint = ": the name of a model goes into Agent(model=…)" if isinstance(provider, str) else ""
        raise ConfigurationError(f"{where} must be an LLMProvider, not {provider!r:.100}{hint}")
    if not isinstance(getattr(provider, "model", None), str):
        raise ConfigurationError(f"{where}: {type(provider).__name__} has no model: call super().__init__(model)")
