"""Server-sent events of a model API: bytes in, JSON objects out, wherever the bytes were cut."""

import json
import re
from collections.abc import Iterator
from typing import Any

from omniagent.errors import ModelStreamBroken

Json = dict[str, Any]

MAX_EVENT_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class EventDecoder:
    """Splits a stream into events and parses each once. `done` is set by the `[DONE]` that ends some streams."""

    def __init__(self) -> None:
        self.done = False
        self._rest = b""
        self._started = False

    def feed(self, chunk: bytes) -> Iterator[Json]:
        """Yield the events that the chunk completes. Parsing is lazy: events before a malformed one are still read."""
        data = self._rest + chunk
        if not self._started:
            data = self._without_bom(data)
        held = b""
        if b"\r" in data:
            if data.endswith(b"\r"):  # its line feed may come with the next chunk
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        complete, _, rest = data.rpartition(b"\n\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise ModelStreamBroken(f"an event of the model's stream is longer than {MAX_EVENT_BYTES} bytes")
        self._rest = rest + held
        return self._events(complete)

    def end(self) -> Iterator[Json]:
        """Yield the last event of a stream that ended without its blank line."""
        rest, self._rest = self._rest, b""
        return self._events(rest)

    def _without_bom(self, data: bytes) -> bytes:
        """Drop the byte order mark that a stream may begin with, also when it arrives in pieces."""
        self._started = not _BOM.startswith(data)
        return data.removeprefix(_BOM)

    def _events(self, frames: bytes) -> Iterator[Json]:
        for frame in frames.decode("utf-8", "replace").split("\n\n"):
            payload = _payload(frame)
            if payload.strip() == "[DONE]":
                self.done = True
            if self.done:
                break
            if payload:
                yield parse_object(payload)


def _payload(frame: str) -> str:
    if frame.startswith("data:") and "\n" not in frame:
        return frame[5:]
    return "\n".join(line[5:] for line in frame.split("\n") if line.startswith("data:"))


def parse_object(text: str) -> Json:
    """Parse a JSON object of the API. Half a surrogate pair, which no store or stream takes, becomes U+FFFD."""
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
