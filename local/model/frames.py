"""Server-sent events, built before they are sent."""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from local.model.conversation import Json

EVENTS_PER_WRITE = 20
HOLE = "\0"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Frame(NamedTuple):
    """One event as bytes. `paced` marks a piece of the answer: the model takes its time before it."""

    data: bytes
    paced: bool = False


class Reply(NamedTuple):
    """What each wire format makes of an answer: the whole body, and the events of the stream."""

    body: bytes
    frames: list[Frame]


def encode(value: object) -> bytes:
    return _encode(value).encode()


def event(data: Json, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {_encode(data)}\n\n".encode()


def around_hole(data: Json, name: str | None = None) -> tuple[str, str]:
    """Split an event at its one `HOLE`, so that each delta costs one concatenation."""
    before, after = event(data, name).decode().split(_encode(HOLE))
    return before, after


def opened(data: Json, name: str) -> str:
    """An event without its end, for fields that change with each delta."""
    return event(data, name).decode().removesuffix("}\n\n")


def text_json(text: str) -> str:
    return _encode(text)


def writes(frames: Sequence[Frame], *, one_by_one: bool) -> Iterator[Frame]:
    """Join frames into writes: up to each paced frame when the model takes its time, else a packet full."""
    if not one_by_one:
        for start in range(0, len(frames), EVENTS_PER_WRITE):
            yield Frame(b"".join(frame.data for frame in frames[start : start + EVENTS_PER_WRITE]))
        return
    waiting = b""
    for frame in frames:
        if frame.paced and waiting:
            yield Frame(waiting)
            waiting = b""
        waiting += frame.data
        if frame.paced:
            yield Frame(waiting, paced=True)
            waiting = b""
    if waiting:
        yield Frame(waiting)


def half(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames up to the middle of the answer."""
    paced = [index for index, frame in enumerate(frames) if frame.paced]
    return frames[: paced[len(paced) // 2] + 1] if paced else frames[:1]
