"""Reads the answer of a model, whichever API it comes from: bytes become the API's events, and these become ours."""

import json
import re
import uuid
from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from io import IncrementalNewlineDecoder
from typing import Any, Final

from omniagent.ai.providers.api_errors import TRANSPORT_FAILURES, aws_exception, short_code, transport_error
from omniagent.ai.providers.llm_provider import (
    Json,
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
from omniagent.ai.providers.silence import peer_timeout
from omniagent.errors import ModelError, ModelStreamBroken
from omniagent.messages import FinishReason, Usage

MAX_CALL_ID_LENGTH: Final = 64
"""The APIs accept no longer id in a later request."""
MAX_TOKENS: Final = 10**12
# A run of 16 letters and digits, or of 9 with more than one digit.
_RANDOM = re.compile(r"[A-Za-z0-9]{16}|(?=[A-Za-z0-9]{9})[A-Za-z]*\d[A-Za-z]*\d")
_CUT_SHORT: Final = frozenset({"length", "content-filter"})
_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
MAX_EVENT_BYTES = 16 * 1024 * 1024
DONE_EVENT: Final[Json] = {"type": "[DONE]"}
"""The event of the `[DONE]` that ends some streams. Known by identity."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# A delta of Anthropic's API: its beginning, and a text that may be joined with the next. Spaces hide how long it is.
_DELTA = re.compile(
    r'(?:event: ?content_block_delta\n)?data: ?(\{"type": ?"content_block_delta", ?"index": ?\d+, ?'
    r'"delta": ?\{"type": ?"\w+", ?"\w+": ?")([^"\\]*(?:\\[^u][^"\\]*)*)" *\} *\} *'
)


async def read_events(
    chunks: AsyncGenerator[bytes, None],
    close: Callable[[], Awaitable[None]],
    *,
    content_type: str,
    first_byte_by: float,
) -> AsyncGenerator[Iterator[Json], None]:
    """Yield the events of a body as they arrive, in one group per HTTP chunk.

    The length of an answer limits what is buffered here.
    """
    decoder = EventDecoder()
    try:
        async with aclosing(chunks):
            async with peer_timeout(first_byte_by):
                data = await anext(chunks, None)
            while data is not None:  # from here on the transport's own read timeout applies
                yield decoder.feed(data)
                data = await anext(chunks, None)
    except TRANSPORT_FAILURES as exc:
        raise transport_error(exc) from exc
    finally:
        await close()
    rest = list(decoder.feed(b"", last=True))
    for event in rest:
        if failure := aws_exception(event):  # absent routes of Bedrock send one with the status 200
            raise failure
    yield iter(rest)
    if not decoder.has_events and not decoder.done:
        kind = short_code(content_type.partition(";")[0] or "none")
        raise ModelStreamBroken(f"the model's API sent no events (content type {kind}): is its address right?")


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
        for frame in _merged(complete).split("\n\n"):
            delta = _DELTA.fullmatch(frame)
            beginning, text = delta.groups() if delta is not None else ("", "")
            if beginning != start:
                if texts:
                    yield _joined(start, texts)
                start, texts = beginning, []
            if beginning:
                self.has_events = True
                texts.append(text)
                continue
            line = frame.partition("\n")[2] if frame.startswith("event:") else frame
            if line.startswith("data:") and "\n" not in line:
                payload = line[5:]
            else:
                payload = "\n".join(each[5:] for each in frame.split("\n") if each.startswith("data:"))
            if payload.strip() == "[DONE]":
                self.done = True
                yield DONE_EVENT
            if self.done:
                return
            if payload and not payload.isspace():
                self.has_events = True
                yield parse_object(payload)
        if texts:
            yield _joined(start, texts)


def _merged(frames: str) -> str:
    """Merge a burst of deltas that are alike but for their texts: splitting it costs less than matching each.

    A text with a quotation mark is left to the expression, and so is an escape that may go on in the next delta.
    """
    delta = _DELTA.match(frames)
    if delta is None or "\\u" in frames:
        return frames
    head, tail = frames[: delta.start(2)], frames[delta.end(2) : delta.end()]
    if f"\\{tail}" in frames or not frames.endswith(tail):
        return frames
    text = "".join(frames[len(head) : -len(tail)].split(f"{tail}\n\n{head}"))
    return frames if '"' in text else f"{head}{text}{tail}"


def _joined(start: str, texts: list[str]) -> Json:
    return parse_object(f'{start}{"".join(texts)}"}}}}')


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


@dataclass(eq=False, slots=True)
class Call:
    """A tool call that is being read. `sent_id` is the API's id of it, which need not be unique."""

    call_id: str
    name: str
    sent_id: str
    pieces: list[str] = field(default_factory=list)
    done: bool = False


def tokens_at(holder: object, *path: str) -> int:
    """Return a number of tokens, or 0 if the API sent none or an impossible one: no answer fails for its usage."""
    for name in path:
        holder = holder.get(name) if isinstance(holder, dict) else None
    return holder if type(holder) is int and 0 <= holder <= MAX_TOKENS else 0


def usage_of(holder: object, prompt: str, answer: str) -> Usage:
    """Return the usage of OpenAI's APIs. `prompt` and `answer` are their words for what was read and written."""
    return Usage(
        input_tokens=tokens_at(holder, "usage", f"{prompt}_tokens"),
        output_tokens=tokens_at(holder, "usage", f"{answer}_tokens"),
        cached_input_tokens=tokens_at(holder, "usage", f"{prompt}_tokens_details", "cached_tokens"),
        reasoning_tokens=tokens_at(holder, "usage", f"{answer}_tokens_details", "reasoning_tokens"),
        cache_write_tokens=tokens_at(holder, "usage", f"{prompt}_tokens_details", "cache_write_tokens"),
    )


def objects_of(holder: Json, name: str) -> list[Json]:
    """Return the objects in the list under a name: an answer must not fail for its sources either."""
    items = holder.get(name)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


class ModelStreamReader(ABC):
    """Converts the events of an API into ours. One reader per answer of a model.

    Deltas of one kind that are read together become one event. `has_ended` is set once the API has said how the answer
    ended: what is missing after that is not part of it. `finished` is the last event, after which nothing is read, and
    `is_paused` whether another request has to continue the answer.
    """

    def __init__(self, model: str = "") -> None:
        self.finished: ModelFinish | None = None
        self.has_ended = False
        self.is_paused = False
        self.taken_ids: set[str] = set()
        """No call gets one of these: some servers restart their numbering with every answer."""
        self._model = model
        self._events: list[ModelEvent] = []
        self._kind: type[ModelText | ModelReasoning] | Call = ModelText
        self._pieces: list[str] = []
        self._has_text = False
        self._is_reasoning = False
        self._refused = False
        self._calls: list[Call] = []
        self._by_index: dict[Any, Call] = {}
        self._sources: list[ModelSource] = []

    def read(self, events: Iterable[Json]) -> Iterator[ModelEvent]:
        """Yield our events for the API's. A failure among them is raised after the events before it."""
        failure: ModelError | None = None
        try:
            try:
                for event in events:
                    self._read(event)
            finally:
                self._add()
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
        self._add()
        return [*self._events, *self._sources, self.finished]

    def continuation(self, body: Json) -> Json:
        """Return the request that continues the paused answer to `body`."""
        raise NotImplementedError

    @abstractmethod
    def _read(self, event: Json) -> None:
        """Read one event of the API."""

    def _text(self, text: str) -> None:
        if text:
            self._has_text = True
            if self._is_reasoning:
                self._end_reasoning()
            self._delta(ModelText, text)

    def _refusal(self, text: str) -> None:
        self._refused = True
        self._text(text)

    def _reasoning(self, text: str) -> None:
        if text:
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

    def _open_call(self, index: object, call_id: str, name: str) -> Call:
        """Begin a call, under an id that no other has in any session: tools may use it as an idempotency key.

        Some servers count the calls of an answer or of a conversation: `call_0`, `functions.add:0`.
        """
        if not (isinstance(call_id, str) and isinstance(name, str)):
            raise TypeError("a tool call without an id or a name")
        if self._is_reasoning:
            self._end_reasoning()
        is_usable = len(call_id) <= MAX_CALL_ID_LENGTH and call_id not in self.taken_ids
        is_random = is_usable and _RANDOM.search(call_id.replace(name, ""))
        call = Call(call_id if is_random else f"call_{uuid.uuid4().hex[:24]}", name, sent_id=call_id)
        self.taken_ids.add(call.call_id)
        self._calls.append(call)
        self._by_index[index] = call
        self._add(ModelToolStart(call.call_id, name))
        return call

    def _close_call(self, call: Call) -> None:
        """Complete a call. Without arguments they are `{}`: some APIs send nothing instead of an empty object."""
        if not call.done:
            call.done = True
            self._add(ModelToolCall(call.call_id, call.name, "".join(call.pieces) or "{}"))

    def _finish(self, reason: FinishReason, usage: Usage) -> None:
        """End open reasoning and tool calls. A call that was cut off keeps the arguments written so far.

        A call that was cut off before its arguments must not run as one that has none: they become unreadable.
        """
        if self._is_reasoning:
            self._end_reasoning()
        for call in self._calls:
            if reason in _CUT_SHORT and not (call.done or call.pieces):
                self._delta(call, "{")
            self._close_call(call)
        if reason == "stop" and self._refused:
            reason = "content-filter"
        elif reason == "stop" and self._calls:
            reason = "tool-calls"
        self.finished, self.has_ended = ModelFinish(reason, usage), True

    def _delta(self, kind: type[ModelText | ModelReasoning] | Call, text: str) -> None:
        if kind is not self._kind:
            self._add()
            self._kind = kind
        self._pieces.append(text)
        if isinstance(kind, Call):
            kind.pieces.append(text)

    def _add(self, *events: ModelEvent) -> None:
        """Add events after the deltas that were read before them."""
        if text := "".join(self._pieces):
            kind = self._kind
            self._events.append(ModelToolDelta(kind.call_id, text) if isinstance(kind, Call) else kind(text))
        self._pieces.clear()
        self._events += events
