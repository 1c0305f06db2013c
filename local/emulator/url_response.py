"""What a function answers, read as the HTTP response that it stands for."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from local.emulator.http import Headers

SEPARATOR = bytes(8)
INTEGRATION_TYPE = "application/vnd.awslambda.http-integration-response"
# A function cannot set these: the front frames the response itself.
HOP_BY_HOP = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})


class BadResponse(ValueError):
    """The function's answer is not a response."""


@dataclass(frozen=True)
class Head:
    """Status and headers, cookies included."""

    status: int
    headers: Headers

    @classmethod
    def read(cls, document: Mapping[str, Any], *, content_type: str) -> "Head":
        """Read {statusCode, headers, cookies}. `content_type` is for an answer that names none."""
        try:
            given = document.get("headers") or {}
            headers = [(name.lower(), str(value)) for name, value in given.items() if name.lower() not in HOP_BY_HOP]
            if not any(name == "content-type" for name, _ in headers):
                headers.append(("content-type", content_type))
            cookies = [("set-cookie", str(cookie)) for cookie in document.get("cookies") or ()]
            return cls(int(document.get("statusCode", 200)), headers + cookies)
        except (AttributeError, TypeError, ValueError) as error:
            raise BadResponse(str(error)) from error


class Prelude:
    """Finds the head at the start of a streamed answer, wherever the chunks are cut."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._seen = bytearray()

    def feed(self, chunk: bytes) -> tuple[Head, bytes] | None:
        """Take a chunk. Returns the head and the start of the body once there is some of it."""
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
    """Read a whole answer: {statusCode, ...}, or any other JSON, which is then the body itself."""
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
