"""Reads a function's answer as an HTTP response."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from local.emulator.http import Headers

SEPARATOR = bytes(8)
INTEGRATION_TYPE = "application/vnd.awslambda.http-integration-response"
# The front sets these headers itself. A function's values are kept under another name.
REMAPPED = frozenset({"connection", "content-length", "date", "host", "keep-alive", "server", "www-authenticate"})
DROPPED = frozenset({"transfer-encoding", "upgrade"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class BadResponse(ValueError):
    """The function's answer is not a response."""


@dataclass(frozen=True)
class Head:
    """Status and headers, cookies included."""

    status: int
    headers: Headers

    @classmethod
    def read(cls, document: Mapping[str, Any], *, content_type: str) -> "Head":
        """Read {statusCode, headers, cookies}. `content_type` is the default if the answer has none."""
        try:
            given: Mapping[str, Any] = document.get("headers") or {}
            headers = [(_name(name), _value(value)) for name, value in given.items() if name.lower() not in DROPPED]
            if not any(name == "content-type" for name, _ in headers):
                headers.append(("content-type", content_type))
            cookies = [("set-cookie", _value(cookie)) for cookie in document.get("cookies") or ()]
            return cls(_status(document.get("statusCode", 200)), headers + cookies)
        except (AttributeError, TypeError, ValueError) as error:
            raise BadResponse(str(error)) from error


def _status(value: Any) -> int:
    status = int(value)
    if not 200 <= status <= 599:
        raise ValueError(f"{status} is no status of a response")
    return status


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a header")
    return f"x-amzn-remapped-{name.lower()}" if name.lower() in REMAPPED else name.lower()


def _value(value: Any) -> str:
    """Return a header's value. Numbers and booleans are accepted as well, lists and objects are not."""
    if not isinstance(value, str | int | float):
        raise TypeError(f"a header's value is {value!r}")
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    if not _VALUE.fullmatch(text):
        raise ValueError("a header's value has characters that HTTP has no place for")
    return text


class Prelude:
    """Finds the head at the start of a streamed answer, however it is split into chunks."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._seen = bytearray()

    def feed(self, chunk: bytes) -> tuple[Head, bytes] | None:
        """Add a chunk. Returns the head and the start of the body as soon as the body has begun."""
        self._seen += chunk
        document, _, body = bytes(self._seen).partition(SEPARATOR)
        if not body:
            return None
        try:
            head = Head.read(json.loads(document), content_type="application/octet-stream")
        except json.JSONDecodeError as error:
            raise BadResponse(f"the prelude is not JSON: {error}") from error
        return head, body


def buffered_response(answer: bytes) -> tuple[Head, bytes]:
    """Read a complete answer: {statusCode, ...}, or any other JSON, which is then the body itself."""
    try:
        document = json.loads(answer)
    except ValueError as error:
        raise BadResponse(f"the answer is not JSON: {error}") from error
    if not isinstance(document, dict) or "statusCode" not in document:
        return Head(200, [("content-type", "application/json")]), answer
    body = document.get("body") or ""
    if not isinstance(body, str):
        raise BadResponse("the body is not a string")
    try:
        content = base64.b64decode(body, validate=True) if document.get("isBase64Encoded") else body.encode()
    except ValueError as error:
        raise BadResponse(f"the body is not base64: {error}") from error
    return Head.read(document, content_type="application/json"), content
