"""Short words for what the tests of the providers do."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any

from omniagent.ai.providers.llm_provider import (
    LLMProvider,
    ModelEvent,
    ModelFinish,
    ModelReasoning,
    ModelReasoningDone,
    ModelRequest,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
    Overrides,
    ToolSpec,
)
from omniagent.ai.providers.scripted import ScriptedModel
from omniagent.ai.providers.stream_reader import EventDecoder, ModelStreamReader
from omniagent.messages import ChatMessage, Part, ReasoningPart, StepPart, ToolPart

APIS = ("responses", "chat")
ALL_APIS = (*APIS, "messages")
ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


class Closing(ScriptedModel):
    """Counts how often it was closed."""

    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


def answer(*parts: Part) -> ChatMessage:
    return ChatMessage(role="assistant", parts=list(parts))


def called(call_id: str, **fields: Any) -> ToolPart:
    return ToolPart(**{"call_id": call_id, "name": "add", "input": {"a": 1}, "output": 3, "done": True} | fields)


def ask(prompt: str, *, tools: Sequence[ToolSpec] = (ADD,), overrides: Overrides = Overrides()) -> ModelRequest:
    return ModelRequest("Be brief.", [ChatMessage.user(prompt)], tools, overrides)


async def streamed(provider: LLMProvider, request: ModelRequest) -> list[ModelEvent]:
    return await collect(provider.stream(request))


async def collect(events: AsyncIterator[ModelEvent]) -> list[ModelEvent]:
    return [event async for event in events]


async def after_tools(provider: LLMProvider, prompt: str) -> list[ModelEvent]:
    """Ask, give every call of the answer a result, and return what the model says to that."""
    question = ChatMessage.user(prompt)
    parts: list[Part] = [StepPart()]
    for event in merged(await streamed(provider, ModelRequest("", [question], [ADD]))):
        if isinstance(event, ModelReasoning):
            parts.append(ReasoningPart(text=event.text))
        elif isinstance(event, ModelReasoningDone):
            parts[-1] = ReasoningPart(text=getattr(parts[-1], "text", ""), provider_data=event.provider_data)
        elif isinstance(event, ModelToolCall):
            parts.append(ToolPart(call_id=event.call_id, name=event.name, input={"a": 1}, output=3, done=True))
    return await streamed(provider, ModelRequest("", [question, answer(*parts)], [ADD]))


def read(reader: ModelStreamReader, chunks: Iterable[bytes]) -> list[ModelEvent]:
    """What a provider makes of a body that arrives in these chunks."""
    decoder = EventDecoder()
    events = [event for chunk in chunks for event in reader.read(decoder.feed(chunk))]
    return [*events, *reader.read(decoder.feed(b"", last=True)), *reader.end()]


def merged(events: Iterable[ModelEvent]) -> list[ModelEvent]:
    """Join the deltas that follow each other."""
    joined: list[ModelEvent] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, ModelText) and isinstance(last, ModelText):
            joined[-1] = ModelText(last.text + event.text)
        elif isinstance(event, ModelReasoning) and isinstance(last, ModelReasoning):
            joined[-1] = ModelReasoning(last.text + event.text)
        elif isinstance(event, ModelToolDelta) and isinstance(last, ModelToolDelta) and last.call_id == event.call_id:
            joined[-1] = ModelToolDelta(event.call_id, last.text + event.text)
        else:
            joined.append(event)
    return joined


def comparable(events: Iterable[ModelEvent]) -> list[ModelEvent]:
    """Merged, with tool calls numbered instead of their random ids, and without what only one API hands back."""
    numbers: dict[str, str] = {}

    def alike(event: ModelEvent) -> ModelEvent:
        if isinstance(event, ModelToolStart | ModelToolDelta | ModelToolCall):
            return replace(event, call_id=numbers.setdefault(event.call_id, f"call-{len(numbers)}"))
        return ModelReasoningDone() if isinstance(event, ModelReasoningDone) else event

    return [alike(event) for event in merged(events)]


def text_of(events: Iterable[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ModelText))


def finish_of(events: Sequence[ModelEvent]) -> ModelFinish:
    last = events[-1]
    assert isinstance(last, ModelFinish)
    return last


def only(items: Iterable[Any], kind: type) -> list[Any]:
    return [item for item in items if isinstance(item, kind)]
