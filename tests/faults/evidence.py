"""What is known of a session in which something was found: its streams, its table, the model's requests, the logs."""

import re
import time
from collections.abc import Iterator
from typing import Any

from tests.faults.house import House
from tests.faults.load import User
from tests.faults.weather import OUTAGE

BEFORE_SECONDS = 2.0
AFTER_SECONDS = 30.0
MOST_CHARACTERS = 600
MOST_LINES = 400
_ID = re.compile(r"\b[0-9a-f]{32}\b")
_NOISE = re.compile(r'("lines"): \{"B": "[^"]*"\}')
Event = tuple[float, str]


def evidence(house: House, user: User) -> str:
    """Tell what happened, in order, while the messages that the findings name were answered."""
    key = house.read(user.client).key
    since, until = _window(user)
    events = [*_streams(user), *_table(house, key), *_model(house, user), *_logs(house, user.client.session)]
    lines = [f"{at - since:8.3f} {what[:MOST_CHARACTERS]}" for at, what in sorted(events) if since <= at <= until]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES // 2], "...", *lines[-MOST_LINES // 2 :]]
    return "\n".join([f"--- {key}", str(user.findings), *lines, "---"])


def _window(user: User) -> tuple[float, float]:
    """From before the first of the messages was sent until a while after the last was heard of; else everything."""
    named = set(_ID.findall(str(user.findings)))
    moments = [
        moment
        for stream in user.client.streams
        if stream.message_id in named or (stream.has_begun and stream.answer_id in named)
        for moment in (stream.sent_at, *(at for at, _ in stream.pieces[-1:]))
    ]
    if not moments:
        return 0.0, time.monotonic()
    return min(moments) - BEFORE_SECONDS, max(moments) + AFTER_SECONDS


def _streams(user: User) -> Iterator[Event]:
    for stream in user.client.streams:
        what = f"message {stream.message_id}" if stream.message_id else f"after {stream.replaces or stream.continues}"
        yield stream.sent_at, f"client sends: {what}"
        request_id = stream.headers.get("x-amzn-requestid")
        for at, piece in [*stream.pieces[:1], *stream.pieces[1:][-1:]]:
            yield at, f"client hears: {what} {stream.status} by {request_id}, cut {stream.cut}: {piece.decode()!r}"


def _table(house: House, key: str) -> Iterator[Event]:
    for passage in house.registry.journal:
        body: dict[str, Any] = passage.message.body
        place = body.get("Item") or body.get("Key") or {}
        if place.get("session_id", {}).get("S") == key or key in str(body.get("MessageBody")):
            raw = passage.message.raw.partition(b"\r\n\r\n")[2].decode()
            short = _NOISE.sub(r"\1", raw)
            yield passage.at, f"table {passage.message.name} {passage.answer.decode()!r}: {short}"


def _model(house: House, user: User) -> Iterator[Event]:
    for request in house.servers.model.requests:
        ids = [each for each in _ID.findall(str(request.body.get("input"))) if each in user.prompts]
        if ids:
            yield request.at, f"model is asked after {ids[-1]}"


def _logs(house: House, session: str) -> Iterator[Event]:
    return ((at, f"log {line}") for at, line in house.log.lines if session in line or line.startswith(OUTAGE))
