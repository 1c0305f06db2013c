"""A trace collector in memory: takes OTLP over HTTP, tells the spans of a turn."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from local.emulator.http import BodyTooLarge, Exchange
from omniagent.tracing.attributes import DB_SYSTEM, SESSION_ID, SPAN_KIND, TURN_NUMBER, USER_ID

TRACES_KEPT = 1_000
EXPORT_LIMIT = 10_000_000
NANOSECONDS_PER_MILLISECOND = 1_000_000
# The same for every span of a turn: whoever asks knows them.
_COMMON = frozenset({SPAN_KIND, SESSION_ID, USER_ID, TURN_NUMBER})
_STATUS = {
    trace_pb2.Status.STATUS_CODE_UNSET: "unset",
    trace_pb2.Status.STATUS_CODE_OK: "ok",
    trace_pb2.Status.STATUS_CODE_ERROR: "error",
}


@dataclass(frozen=True)
class Span:
    """A finished span. `kind` is OpenInference's, or DB; times are in milliseconds, `start_ms` since the epoch."""

    id: str
    parent_id: str | None
    trace_id: str
    name: str
    kind: str
    start_ms: float
    duration_ms: float
    status: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class _Belonging:
    session_id: str
    turn: int


class Traces:
    """The last traces that were received."""

    def __init__(self, kept: int = TRACES_KEPT) -> None:
        """Keep so many traces; the oldest goes first."""
        self._kept = kept
        self._spans: OrderedDict[str, list[Span]] = OrderedDict()
        self._of: dict[str, _Belonging] = {}
        self._grew = asyncio.Event()

    def of_turn(self, session_id: str, turn: int) -> list[Span]:
        """Return the spans of a turn by their start; those of the last answer when it was answered again."""
        traces = [self._spans[trace] for trace, of in self._of.items() if of == _Belonging(session_id, turn)]
        newest = max(traces, key=lambda spans: min(span.start_ms for span in spans), default=[])
        return sorted(newest, key=lambda span: span.start_ms)

    async def of_ended_turn(self, session_id: str, turn: int, *, seconds: float) -> list[Span]:
        """Return the spans of a turn once its outermost is there, or those there are after so long.

        The stream of a turn ends a moment before its last spans arrive.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while all(span.parent_id for span in self.of_turn(session_id, turn)):
                    await self._grew.wait()
        return self.of_turn(session_id, turn)

    def add(self, export: bytes) -> None:
        """Take an ExportTraceServiceRequest. Raises ValueError when it is none."""
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
            # An empty message: everything was taken.
            await exchange.respond(200, [("content-type", "application/x-protobuf")])

    def _add(self, sent: trace_pb2.Span) -> None:
        span, attributes = _read(sent)
        self._spans.setdefault(span.trace_id, []).append(span)
        if SESSION_ID in attributes and TURN_NUMBER in attributes:
            self._of[span.trace_id] = _Belonging(attributes[SESSION_ID], attributes[TURN_NUMBER])
        while len(self._spans) > self._kept:
            oldest, _ = self._spans.popitem(last=False)
            self._of.pop(oldest, None)


def as_json(spans: list[Span]) -> list[dict[str, Any]]:
    """Return spans as JSON has them."""
    return [asdict(span) for span in spans]


def _sent(request: ExportTraceServiceRequest) -> Iterator[trace_pb2.Span]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield from scope.spans


def _read(sent: trace_pb2.Span) -> tuple[Span, dict[str, Any]]:
    attributes = {item.key: _value(item.value) for item in sent.attributes}
    duration = sent.end_time_unix_nano - sent.start_time_unix_nano
    span = Span(
        id=sent.span_id.hex(),
        parent_id=sent.parent_span_id.hex() or None,
        trace_id=sent.trace_id.hex(),
        name=sent.name,
        kind=attributes.get(SPAN_KIND) or _kind(sent, attributes),
        start_ms=sent.start_time_unix_nano / NANOSECONDS_PER_MILLISECOND,
        duration_ms=duration / NANOSECONDS_PER_MILLISECOND,
        status=_STATUS[sent.status.code],
        attributes={name: value for name, value in attributes.items() if name not in _COMMON},
    )
    return span, attributes


def _kind(sent: trace_pb2.Span, attributes: Mapping[str, Any]) -> str:
    """Name the kind of a span that is none of OpenInference's: ours are database calls."""
    if DB_SYSTEM in attributes or sent.kind == trace_pb2.Span.SPAN_KIND_CLIENT:
        return "DB"
    return "CHAIN"


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
