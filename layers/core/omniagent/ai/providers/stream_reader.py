"""Reads the answer of a model, whichever API it comes from."""

import json
import re
import uuid
from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import IncrementalNewlineDecoder
from typing import Any, Final

from omniagent.ai.providers.llm_provider import (
    ModelEvent,
    ModelFinish,
    ModelReasoning,
    ModelReasoningDone,
    ModelSource,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
)
from omniagent.errors import ModelError, ModelStreamBroken
from omniagent.messages import FinishReason, Usage

Json = dict[str, Any]

MAX_EVENT_BYTES = 16 * 1024 * 1024
DONE_EVENT: Final[Json] = {}
"""The event of the `[DONE]` that ends some streams. Known by identity."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# A delta of Anthropic's API: its beginning, and a text that may be joined with the next. Spaces hide how long it is.
_DELTA = re.compile(
    r'(?:event: ?content_block_delta\n)?data: ?(\{"type": ?"content_block_delta", ?"index": ?\d+, ?'
    r'"delta": ?\{"type": ?"\w+", ?"\w+": ?")([^"\\]*(?:\\[^u][^"\\]*)*)" *\} *\} *'
)


class EventDecoder:
    """Splits a stream into events and parses each once.

    `done` is set by the `[DONE]` that ends some streams, `has_events` by the first event.
    """

    def __init__(self) -> None:
        self.done = False
        self.has_events = False
        self._decoder = IncrementalNewlineDecoder(getincrementaldecoder("utf-8-sig")("replace"), translate=True)
        self._rest = ""

    def feed(self, chunk: bytes, *, last: bool = False) -> Iterator[Json]:
        """Yield the events that the chunk completes. Parsing is lazy: events before a malformed one are still read.

        The last one ends an event without its blank line, or a body that is one JSON object. Deltas that differ only in
        their text become one: parsing each costs more than the rest.
        """
        text = self._rest + self._decoder.decode(chunk, final=last)
        complete, _, self._rest = (text, "", "") if last else text.rpartition("\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ModelStreamBroken(f"an event of the model's stream is longer than {MAX_EVENT_BYTES} bytes")
        if last and not self.has_events and text.lstrip().startswith("{"):
            complete = "data: " + text.replace("\n", " ")
        start, texts = "", list[str]()
        for frame in complete.split("\n\n"):
            delta = _DELTA.fullmatch(frame)
            beginning, text = delta.groups() if delta is not None else ("", "")
            if beginning != start:
                if texts:
                    yield from _joined(start, texts)
                start, texts = beginning, []
            if beginning:
                self.has_events = True
                texts.append(text)
                continue
            payload = _payload(frame)
            if payload.strip() == "[DONE]":
                self.done = True
                yield DONE_EVENT
            if self.done:
                return
            if payload and not payload.isspace():
                self.has_events = True
                yield parse_object(payload)
        if texts:
            yield from _joined(start, texts)


def _joined(start: str, texts: list[str]) -> Iterator[Json]:
    """Yield one delta with the whole text, or if one of them is malformed, each up to that one."""
    try:
        yield parse_object(f'{start}{"".join(texts)}"}}}}')
    except ModelStreamBroken:
        yield from (parse_object(f'{start}{text}"}}}}') for text in texts)


def _payload(frame: str) -> str:
    line = frame.partition("\n")[2] if frame.startswith("event:") else frame
    if line.startswith("data:") and "\n" not in line:
        return line[5:]
    return "\n".join(line[5:] for line in frame.split("\n") if line.startswith("data:"))


def parse_object(text: str) -> Json:
    """Parse a JSON object of the API. A lone surrogate, which can be neither stored nor streamed, becomes U+FFFD."""
    try:
        value = json.loads(text)
        if "\\u" in text and _ESCAPED_SURROGATE.search(text):
            value = _without_surrogates(value)
    except (ValueError, RecursionError) as exc:
        raise ModelStreamBroken("the model's API sent something that is not JSON") from exc
    if not isinstance(value, dict):
        raise ModelStreamBroken(f"the model's API sent a JSON {type(value).__name__} instead of an object")
    return value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


MAX_CALL_ID_LENGTH: Final = 64
"""The APIs accept no longer id in a later request."""
MAX_TOKENS: Final = 10**12
_RUN = re.compile(r"[A-Za-z0-9]+")
_CUT_SHORT: Final = frozenset({"length", "content-filter"})
_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclass(eq=False, slots=True)
class Call:
    """A tool call that is being read. `sent_id` is the API's id of it, which need not be unique."""

    call_id: str
    name: str
    sent_id: str
    pieces: list[str] = field(default_factory=list)
    done: bool = False


def token_count(value: object) -> int:
    """Return a number of tokens, or 0 if the API sent none or an impossible one."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0


def counts_of(holder: Json, name: str) -> Json:
    """Return the counts under a name, or {} if the API sent something else: an answer must not fail for its usage."""
    counts = holder.get(name)
    return counts if isinstance(counts, dict) else {}


def objects_of(holder: Json, name: str) -> list[Json]:
    """Return the objects in the list under a name: an answer must not fail for its sources either."""
    items = holder.get(name)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _is_random(call_id: str) -> bool:
    """Whether an id looks random: a run of 16 letters and digits, or of 9 with more than one digit."""
    runs = _RUN.findall(call_id)
    return any(len(run) >= 16 or (len(run) >= 9 and sum(map(str.isdigit, run)) > 1) for run in runs)


class ModelStreamReader(ABC):
    """Converts the events of an API into ours. One reader per answer of a model.

    Deltas of one kind that are read together become one event. `finished` holds the last event once the API has
    said how the answer ended.
    """

    def __init__(self, model: str = "") -> None:
        self._model = model
        self.finished: ModelFinish | None = None
        self._events: list[ModelEvent] = []
        self._kind: type[ModelText | ModelReasoning] | Call = ModelText
        self._pieces: list[str] = []
        self._is_reasoning = False
        self._refused = False
        self._calls: list[Call] = []
        self._sources: list[ModelSource] = []
        self.taken_ids: set[str] = set()
        """No call gets one of these: some servers restart their numbering with every answer."""

    def read(self, events: Iterable[Json]) -> Iterator[ModelEvent]:
        """Yield our events for the API's. A failure among them is raised after the events before it."""
        failure: ModelError | None = None
        try:
            try:
                for event in events:
                    if event is DONE_EVENT:
                        self._note_done()
                    else:
                        self._read(event)
            finally:
                self._flush()
        except ModelError as exc:
            failure = exc
        except _MALFORMED as exc:
            failure = ModelStreamBroken("the model's API sent an event of an unknown shape")
            failure.__cause__ = exc
        model_events, self._events = self._events, []
        yield from model_events
        if failure is not None:
            raise failure

    def end(self) -> list[ModelEvent]:
        """Return the last events. Raises `ModelStreamBroken` if the API has not said how the answer ended."""
        if self.finished is None:
            raise ModelStreamBroken("the model's stream ended before its end")
        return [*self._events, *self._sources, self.finished]

    def continuation(self, body: Json) -> Json | None:  # noqa: ARG002 - for an API that pauses its answers
        """Return the request that continues the answer to `body`, or None if the answer is complete."""
        return None

    @property
    def has_ended(self) -> bool:
        """Whether the API has said how the answer ended: what is missing after that is not part of the answer."""
        return self.finished is not None

    @abstractmethod
    def _read(self, event: Json) -> None:
        """Read one event of the API."""

    def _note_done(self) -> None:  # noqa: B027 - most APIs end their streams with an event of their own
        """Note that the server has ended the stream on purpose."""

    def _text(self, text: str) -> None:
        if self._is_reasoning:
            self._end_reasoning()
        self._delta(ModelText, text)

    def _refusal(self, text: str) -> None:
        self._refused = True
        self._text(text)

    def _reasoning(self, text: str) -> None:
        self._is_reasoning = True
        self._delta(ModelReasoning, text)

    def _end_reasoning(self, provider_data: dict[str, Any] | None = None) -> None:
        if self._is_reasoning or provider_data:
            self._is_reasoning = False
            self._add(ModelReasoningDone(provider_data))

    def _cite(self, url: object, title: object, filename: object = None, media_type: str = "text/plain") -> None:
        """Note a source, which follows the whole text. Any other address than a page's is only a document's title."""
        name = filename if isinstance(filename, str) and filename else None
        text = next((each for each in (title, name, url) if isinstance(each, str) and each), None)
        if isinstance(url, str) and url.startswith(("https://", "http://")):
            self._sources.append(ModelSource(url, text if text != url else None))
        elif text is not None:
            self._sources.append(ModelSource(None, text, media_type, name))

    def _open_call(self, call_id: str, name: str) -> Call:
        """Begin a call, under an id that no other has in any session: tools may use it as an idempotency key.

        Some servers count the calls of an answer or of a conversation: `call_0`, `functions.add:0`.
        """
        if not (isinstance(call_id, str) and isinstance(name, str)):
            raise TypeError("a tool call without an id or a name")
        self._end_reasoning()
        is_usable = len(call_id) <= MAX_CALL_ID_LENGTH and call_id not in self.taken_ids
        chosen = call_id if is_usable and _is_random(call_id.replace(name, "")) else new_call_id()
        self.taken_ids.add(chosen)
        self._calls.append(Call(chosen, name, sent_id=call_id))
        self._add(ModelToolStart(chosen, name))
        return self._calls[-1]

    def _arguments(self, call: Call, text: str) -> None:
        call.pieces.append(text)
        self._delta(call, text)

    def _close_call(self, call: Call) -> None:
        """Complete a call. Without arguments they are `{}`: some APIs send nothing instead of an empty object."""
        if not call.done:
            call.done = True
            self._add(ModelToolCall(call.call_id, call.name, "".join(call.pieces) or "{}"))

    def _close(self, reason: FinishReason) -> None:
        """End open reasoning and tool calls. A call that was cut off keeps the arguments written so far.

        A call that was cut off before its arguments must not run as one that has none: they become unreadable.
        """
        self._end_reasoning()
        for call in self._calls:
            if reason in _CUT_SHORT and not (call.done or call.pieces):
                self._arguments(call, "{")
            self._close_call(call)

    def _finish(self, reason: FinishReason, usage: Usage) -> None:
        self._close(reason)
        if reason == "stop" and self._refused:
            reason = "content-filter"
        elif reason == "stop" and self._calls:
            reason = "tool-calls"
        self.finished = ModelFinish(reason, usage)

    def _delta(self, kind: type[ModelText | ModelReasoning] | Call, text: str) -> None:
        if kind is not self._kind:
            self._flush()
            self._kind = kind
        self._pieces.append(text)

    def _add(self, event: ModelEvent) -> None:
        self._flush()
        self._events.append(event)

    def _flush(self) -> None:
        if text := "".join(self._pieces):
            kind = self._kind
            self._events.append(ModelToolDelta(kind.call_id, text) if isinstance(kind, Call) else kind(text))
        self._pieces.clear()
