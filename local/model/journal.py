"""What the offline model saw, for tests."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from local.model.conversation import Json

Api = Literal["responses", "chat", "messages"]


@dataclass(frozen=True)
class Recorded:
    """One request: which API, its body, its headers without the key, and when it came."""

    api: Api
    body: Json
    headers: dict[str, str]
    at: float = field(default_factory=time.monotonic)


class Journal:
    """Counts, and the requests themselves when a test wants them. Written by one thread, read by any."""

    def __init__(self, *, keep_requests: bool = False) -> None:
        self.requests: list[Recorded] = []
        self.counted: list[int] = []
        self.count = 0
        self.active = 0
        self.disconnects = 0
        self._keep = keep_requests
        self._changed = threading.Condition()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Hold a request as active while it is answered."""
        self._add(count=1, active=1)
        try:
            yield
        finally:
            self._add(active=-1)

    def record(self, api: Api, body: Json, headers: dict[str, str]) -> None:
        if self._keep:
            public = {name: value for name, value in headers.items() if name not in {"authorization", "x-api-key"}}
            self.requests.append(Recorded(api, body, public))

    def count_tokens(self, tokens: int) -> None:
        if self._keep:
            self.counted.append(tokens)

    def disconnected(self) -> None:
        self._add(disconnects=1)

    def wait_for(self, happened: Callable[["Journal"], bool], timeout: float) -> None:
        """Block until the journal shows it."""
        with self._changed:
            if not self._changed.wait_for(lambda: happened(self), timeout):
                counts = f"{self.count} requests, {self.active} active, {self.disconnects} disconnects"
                raise TimeoutError(f"The offline model did not get there in {timeout} s: {counts}")

    def _add(self, *, count: int = 0, active: int = 0, disconnects: int = 0) -> None:
        with self._changed:
            self.count += count
            self.active += active
            self.disconnects += disconnects
            self._changed.notify_all()
