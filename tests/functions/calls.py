"""Calling the functions as their users do: over their URLs, signed by a backend that names the user."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from local.emulator import Emulator
from omniagent.session.identity import new_id, session_key, user_id_of

Json = dict[str, Any]
T = TypeVar("T")

SIGNED = {
    "authorization": "AWS4-HMAC-SHA256 Credential=web-backend/20260101/us-east-1/lambda/aws4_request, "
    "SignedHeaders=host, Signature=00"
}


class Answer:
    """An event stream that is being read. `text` is what the deltas read so far say."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.text = ""
        self.done = False
        self._lines = response.aiter_lines()

    async def next(self) -> Json | None:
        """Wait for the next event; None when the stream has said that it is done."""
        async for line in self._lines:
            if line == "data: [DONE]":
                self.done = True
                return None
            if line.startswith("data: "):
                event: Json = json.loads(line.removeprefix("data: "))
                self.text += event["delta"] if event["type"] == "text-delta" else ""
                return event
        raise AssertionError("the stream ended without [DONE]")

    async def until(self, kind: str) -> Json:
        """Read up to the next event of this kind."""
        while event := await self.next():
            if event["type"] == kind:
                return event
        raise AssertionError(f"the stream ended without {kind}")

    async def rest(self) -> list[Json]:
        """Read to the end."""
        events = []
        while event := await self.next():
            events.append(event)
        return events


@dataclass(frozen=True)
class User:
    """Somebody whom nobody else knows, with one session in mind."""

    emulator: Emulator
    http: httpx.AsyncClient
    headers: dict[str, str] = field(default_factory=lambda: SIGNED | {"x-user-id": f"user-{new_id()}"})
    session: str = field(default_factory=new_id)

    @property
    def key(self) -> str:
        """What the session is stored under."""
        return session_key(user_id_of(f"user:{self.headers['x-user-id']}"), self.session)

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Make a request. `{}` in the path is the session."""
        headers = self.headers | options.pop("headers", {})
        return await self.http.request(method, self._url(path), headers=headers, **options)

    @asynccontextmanager
    async def asking(self, text: str, **fields: Any) -> AsyncIterator[Answer]:
        """Send a message and read its answer as it comes."""
        body = {"session_id": self.session, "query": text} | fields
        async with self._streamed("POST", "/chat", json=body) as answer:
            yield answer

    @asynccontextmanager
    async def resuming(self) -> AsyncIterator[Answer]:
        async with self._streamed("GET", "/chat/{}/stream") as answer:
            yield answer

    async def ask(self, text: str, **fields: Any) -> list[Json]:
        """Send a message and return every event of its answer."""
        async with self.asking(text, **fields) as answer:
            return await answer.rest()

    async def cancel(self) -> httpx.Response:
        return await self.call("POST", "/sessions/{}/cancel")

    async def messages(self) -> list[Json]:
        response = await self.call("GET", "/sessions/{}/messages")
        assert response.status_code == 200, response.text
        found: list[Json] = response.json()["messages"]
        return found

    @asynccontextmanager
    async def _streamed(self, method: str, path: str, **options: Any) -> AsyncIterator[Answer]:
        async with self.http.stream(method, self._url(path), headers=self.headers, **options) as response:
            if response.status_code != 200:
                await response.aread()
            assert response.status_code == 200, response.text
            yield Answer(response)

    def _url(self, path: str) -> str:
        function = "chat" if path.startswith("/chat") else "sessions"
        return self.emulator.url_of(function) + path.format(self.session)


async def eventually(look: Callable[[], T], *, seconds: float = 20) -> T:
    """Look again and again until there is something, and return it."""
    give_up = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < give_up, f"nothing after {seconds:g} seconds"
        await asyncio.sleep(0.02)
    return found


def kinds(events: list[Json]) -> list[str]:
    return [event["type"] for event in events]


def check_problem(response: httpx.Response, status: int, code: str) -> Json:
    """Hold a refusal against DESIGN.md section 4, and return it."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem: Json = response.json()
    assert problem.keys() == {"type", "title", "status", "detail", "code", "request_id"}
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["request_id"] == response.headers["x-request-id"] == response.headers["x-amzn-requestid"]
    assert response.headers["cache-control"] == "no-store"
    return problem
