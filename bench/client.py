"""A reader of event streams that records when each event arrived."""

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Arrival:
    at: float
    event: dict[str, Any]


class Client:
    """Calls one origin as one user. Each request has its own connection."""

    def __init__(self, url: str, user: str = "bench") -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._path = parts.path.rstrip("/")
        self._headers = {"content-type": "application/json", "x-user-id": user}

    def ask(self, query: str, session_id: str) -> Iterator[Arrival]:
        """Send a message and yield the events as they arrive. Closing the iterator disconnects."""
        body = json.dumps({"query": query, "session_id": session_id})
        connection = http.client.HTTPConnection(*self._address, timeout=120)
        connection.request("POST", f"{self._path}/chat", body, self._headers)
        response = connection.getresponse()
        try:
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {response.read()[:500]!r}")
            for line in response:
                if line.startswith(b"data: {"):
                    yield Arrival(time.monotonic(), json.loads(line[6:]))
        finally:
            connection.close()

    def post(self, path: str) -> int:
        connection = http.client.HTTPConnection(*self._address, timeout=60)
        connection.request("POST", path, b"", self._headers)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
