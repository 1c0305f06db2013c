"""The API as the terminal client calls it."""

import json
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from omniagent.tls import is_loopback

Json = dict[str, Any]
TIMEOUT = httpx.Timeout(30, read=120)


class ApiError(Exception):
    """A request failed. The message is shown to the user."""

    def __init__(self, message: str, status: int = 0) -> None:
        """Keep the HTTP status, 0 when there was no answer."""
        super().__init__(message)
        self.status = status


class NoAnswer(ApiError):
    """There is no server."""


class ConnectionLost(ApiError):
    """The stream was cut off. The turn continues on the server."""


class ChatApi:
    """One stack: the URLs of its two functions, which are equal locally."""

    def __init__(self, url: str, sessions_url: str = "", *, token: str = "") -> None:
        """Take the address of the chat function, of the sessions function if it is another, and a bearer token."""
        self._chat = url.rstrip("/")
        self._sessions = (sessions_url or url).rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        # A proxy leads away from this machine.
        is_elsewhere = not is_loopback(urlsplit(url).netloc)
        self._http = httpx.Client(headers=headers, timeout=TIMEOUT, trust_env=is_elsewhere)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self._http.close()

    def ask(self, session_id: str, text: str) -> Iterator[Json]:
        """Send a message and yield the events of its answer."""
        body = {"session_id": session_id, "query": text, "message_id": uuid4().hex}
        return self._stream("POST", f"{self._chat}/chat", body)

    def regenerate(self, session_id: str) -> Iterator[Json]:
        """Answer the last message again."""
        # Of the AI SDK's body only the trigger counts here, but it always has messages.
        body = {"id": session_id, "trigger": "regenerate-message", "messages": [{"role": "user", "parts": []}]}
        return self._stream("POST", f"{self._chat}/chat", body)

    def answer(self, session_id: str, message_id: str, answers: list[Json]) -> Iterator[Json]:
        """Answer a waiting turn's requests and yield the rest of its events."""
        body = {"session_id": session_id, "message_id": message_id, "replies": answers}
        return self._stream("POST", f"{self._chat}/chat", body)

    def resume(self, session_id: str) -> Iterator[Json]:
        """Yield the running answer's events from the first one. Nothing if none runs."""
        return self._stream("GET", f"{self._chat}/chat/{session_id}/stream")

    def cancel(self, session_id: str) -> None:
        """Stop the running turn."""
        self._call("POST", f"/sessions/{session_id}/cancel")

    def sessions(self) -> list[Json]:
        """Return the last used sessions."""
        found: list[Json] = self._call("GET", "/sessions?limit=20")["sessions"]
        return found

    def messages(self, session_id: str) -> list[Json]:
        """Return the last turn, the oldest message first; nothing for a session that is yet to begin."""
        try:
            found: list[Json] = self._call("GET", f"/sessions/{session_id}/messages?limit=2")["messages"]
        except ApiError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return []
            raise
        return found

    def _call(self, method: str, path: str) -> Json:
        try:
            response = self._http.request(method, self._sessions + path)
        except httpx.HTTPError as error:
            raise NoAnswer(f"No server responds at {self._sessions}: {error}.") from error
        _raise_for_problem(response)
        document: Json = response.json()
        return document

    def _stream(self, method: str, url: str, body: Json | None = None) -> Iterator[Json]:
        try:
            with self._http.stream(method, url, json=body) as response:
                if response.is_error:
                    response.read()
                    _raise_for_problem(response)
                yield from _events(response)
        except httpx.ConnectError as error:
            raise NoAnswer(f"No server responds at {url}: {error}.") from error
        except httpx.HTTPError as error:
            raise ConnectionLost(f"The connection was lost: {error}.") from error


def _events(response: httpx.Response) -> Iterator[Json]:
    if response.status_code == httpx.codes.NO_CONTENT:
        return
    for line in response.iter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
    raise ConnectionLost("The connection was lost before the end of the answer.")


def _raise_for_problem(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        detail = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"The server returned {response.status_code} {response.reason_phrase}."
    raise ApiError(detail, response.status_code)
