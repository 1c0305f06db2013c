"""A trace collector in memory: receives OTLP over HTTP and returns the spans of a turn."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from local.causes import cause_of
from local.emulator.http import BodyTooLarge, Exchange
from omniagent.errors import ToolFailed
from omniagent.tracing.attributes import (
    DB_SYSTEM,
    SESSION_ID,
    SPAN_KIND,
    TURN_NUMBER,
    TURN_STATUS,
    USER_CATEGORY,
    USER_ID,
    SpanKind,
)
from omniagent.tracing.recording import FEEDBACK_SPAN

TRACES_KEPT = 1_000
EXPORT_LIMIT = 10_000_000
NANOSECONDS_PER_MILLISECOND = 1_000_000
REQUEST = "REQUEST"
# The same for every span of a turn.
_COMMON = frozenset({SPAN_KIND, SESSION_ID, USER_ID, USER_CATEGORY, TURN_NUMBER})
_STATUS = {
    trace_pb2.Status.STATUS_CODE_UNSET: "unset",
    trace_pb2.Status.STATUS_CODE_OK: "ok",
    trace_pb2.Status.STATUS_CODE_ERROR: "error",
}


@dataclass(frozen=True)
class SpanEvent:
    """Something that happened during a span, such as a change of state or an exception."""

    name: str
    at_ms: float
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """A finished span. `kind` is OpenInference's, REQUEST or DB; times are in milliseconds, `*_ms` since the epoch.

    `cause` is what a tool of the team raised, and where: its exception only says what the model reads.
    """

    id: str
    parent_id: str | None
    trace_id: str
    name: str
    kind: str
    start_ms: float
    duration_ms: float
    status: str
    attributes: Mapping[str, Any]
    events: list[SpanEvent]
    cause: str


@dataclass(frozen=True)
class _TurnKey:
    session_id: str
    turn: int


@dataclass(frozen=True)
class _Received:
    span: Span
    turn: _TurnKey | None


class Traces:
    """The last traces that were received."""

    def __init__(self, kept: int = TRACES_KEPT) -> None:
        """Keep this many traces; the oldest is dropped first."""
        self._kept = kept
        self._traces: OrderedDict[str, dict[str, _Received]] = OrderedDict()
        self._grew = asyncio.Event()

    def of_turn(self, session_id: str, turn: int) -> list[Span]:
        """Return the spans of the requests that ran a turn, by start; after a regeneration, of its last answer.

        A turn that waited for somebody has two or more. A request that only followed the turn's stream is used if no
        other is known.
        """
        return [span for _, spans in self._of_turn(session_id, turn) for span in spans]

    async def of_ended_turn(self, session_id: str, turn: int, *, seconds: float) -> list[Span]:
        """Return the spans of a turn once the outermost has arrived, or those received after `seconds`.

        The stream of a turn ends a moment before its last spans arrive.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._is_complete(session_id, turn):
                    await self._grew.wait()
        return self.of_turn(session_id, turn)

    def _is_complete(self, session_id: str, turn: int) -> bool:
        groups = self._of_turn(session_id, turn)
        if not groups or _waits(groups[-1][1]):  # what came of a turn that waited may be on its way
            return False
        return all(any(span.id == root for span in spans) for root, spans in groups)

    def _of_turn(self, session_id: str, turn: int) -> list[tuple[str, list[Span]]]:
        """Return the outermost span's id and the spans of each request, in order."""
        key = _TurnKey(session_id, turn)
        found = [
            (root, spans)
            for trace in self._traces.values()
            if any(received.turn == key for received in trace.values())
            for root, spans in _by_root(trace).items()
            if any(trace[span.id].turn == key for span in spans)
        ]
        found.sort(key=lambda group: _precedence(group[1]))
        first = len(found) - 1
        while first > 0 and _waits(found[first - 1][1]):
            first -= 1
        return found[max(first, 0) :]

    def add(self, export: bytes) -> None:
        """Add the spans of an ExportTraceServiceRequest. Raises ValueError for any other bytes."""
        try:
            request = ExportTraceServiceRequest.FromString(export)
        except DecodeError as error:
            raise ValueError("not an OTLP export") from error
        for span in _sent(request):
            self._add(span)
        self._grew.set()
        self._grew.clear()

    async def receive(self, exchange: Exchange) -> None:
        """Answer `POST /v1/traces`."""
        try:
            self.add(await exchange.body(EXPORT_LIMIT))
        except (ValueError, BodyTooLarge):
            await exchange.respond(400)
        else:
            # An empty message: every span was accepted.
            await exchange.respond(200, [("content-type", "application/x-protobuf")])

    def _add(self, sent: trace_pb2.Span) -> None:
        received = _read(sent)
        self._traces.setdefault(received.span.trace_id, {})[received.span.id] = received
        while len(self._traces) > self._kept:
            self._traces.popitem(last=False)


def _by_root(trace: Mapping[str, _Received]) -> dict[str, list[Span]]:
    """Split a trace into its requests, each by start. One client's trace may contain many requests.

    The key is the id of a request's outermost span, which is the last one to arrive.
    """
    groups: dict[str, list[Span]] = {}
    # Feedback comes at any time after the turn.
    of_requests = (received for received in trace.values() if received.span.name != FEEDBACK_SPAN)
    for received in sorted(of_requests, key=lambda received: received.span.start_ms):
        groups.setdefault(_root_id(received.span, trace), []).append(received.span)
    return groups


def _root_id(span: Span, trace: Mapping[str, _Received]) -> str:
    passed: set[str] = set()
    while span.parent_id and span.kind != REQUEST and span.id not in passed:
        passed.add(span.id)
        if span.parent_id not in trace:
            return span.parent_id
        span = trace[span.parent_id].span
    return span.id


def _precedence(spans: list[Span]) -> tuple[bool, float]:
    return any(span.kind == SpanKind.AGENT for span in spans), spans[0].start_ms


def _waits(spans: list[Span]) -> bool:
    """Whether a request ended because its turn waits: the next one goes on with it."""
    return any(span.attributes.get(TURN_STATUS) == "waiting" for span in spans)


def as_json(spans: list[Span]) -> list[dict[str, Any]]:
    """Return spans as JSON objects."""
    return [asdict(span) for span in spans]


def _sent(request: ExportTraceServiceRequest) -> Iterator[trace_pb2.Span]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield from scope.spans


def _read(sent: trace_pb2.Span) -> _Received:
    attributes = _attributes(sent.attributes)
    duration = sent.end_time_unix_nano - sent.start_time_unix_nano
    events = [
        SpanEvent(event.name, event.time_unix_nano / NANOSECONDS_PER_MILLISECOND, _attributes(event.attributes))
        for event in sent.events
    ]
    span = Span(
        id=sent.span_id.hex(),
        parent_id=sent.parent_span_id.hex() or None,
        trace_id=sent.trace_id.hex(),
        name=sent.name,
        kind=_kind(sent, attributes),
        start_ms=sent.start_time_unix_nano / NANOSECONDS_PER_MILLISECOND,
        duration_ms=duration / NANOSECONDS_PER_MILLISECOND,
        status=_STATUS.get(sent.status.code, "unset"),
        attributes={name: value for name, value in attributes.items() if name not in _COMMON},
        events=events,
        cause=next((cause_of(stack) for event in events if (stack := _stack_of_crash(event))), ""),
    )
    of_turn = SESSION_ID in attributes and TURN_NUMBER in attributes
    return _Received(span, _TurnKey(attributes[SESSION_ID], attributes[TURN_NUMBER]) if of_turn else None)


def _stack_of_crash(event: SpanEvent) -> str:
    """Return the traceback of a tool that raised anything but a `ToolError`."""
    is_crash = str(event.attributes.get("exception.type", "")).endswith(f".{ToolFailed.__name__}")
    return str(event.attributes.get("exception.stacktrace", "")) if is_crash else ""


def _kind(sent: trace_pb2.Span, attributes: Mapping[str, Any]) -> str:
    if sent.kind == trace_pb2.Span.SPAN_KIND_SERVER:
        return REQUEST
    if SPAN_KIND in attributes:
        return str(attributes[SPAN_KIND])
    return SpanKind.DB if DB_SYSTEM in attributes else SpanKind.CHAIN


def _attributes(sent: Iterable[KeyValue]) -> dict[str, Any]:
    return {item.key: _value(item.value) for item in sent}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: _value(item.value) for item in value.kvlist_value.values}
    found = getattr(value, kind)
    return found.hex() if isinstance(found, bytes) else found
