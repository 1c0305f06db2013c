"""Notifies pages of changes in their user's chats, made in another tab, another browser or the terminal."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass

from local.emulator.http import NO_STORE, Exchange, Headers

# A comment this often detects closed connections.
HEARTBEAT_SECONDS = 15.0
MAX_WAITING = 1_000
USER = "x-user-id"
# A page sends its id with its requests and is not notified of its own.
CLIENT = "x-client-id"


Event = dict[str, str | None]
"""`session` has changed, None for any, or the `stack` itself."""


@dataclass(frozen=True)
class _Page:
    user: str
    client: str | None


class Activity:
    """Sends each change to the pages that listen for its user. A page that connects later reads the API first."""

    def __init__(self) -> None:
        """Start without listeners."""
        self._listeners: dict[asyncio.Queue[Event], _Page] = {}

    def publish(self, request: Exchange, session_id: str | None) -> None:
        """Announce that a request began or ended a session's turn, or changed the session.

        None: of a session of any user, as an approver does.
        """
        user, client = request.header(USER), request.header(CLIENT)
        for queue, page in self._listeners.items():
            if (session_id is None or page.user == user) and page.client != client:
                _put(queue, {"session": session_id})

    def announce(self) -> None:
        """Tell every page that the stack itself has changed: its code, or its model."""
        for queue in self._listeners:
            _put(queue, {"stack": "changed"})

    async def tell(self, exchange: Exchange, headers: Headers) -> None:
        """Answer `GET /local/activity` with a stream of events, until the page leaves."""
        queue = asyncio.Queue[Event](MAX_WAITING)
        query = exchange.query
        # An EventSource has no headers of its own.
        user = query.get("user") or exchange.header(USER)
        self._listeners[queue] = _Page(user, query.get("client"))
        try:
            await exchange.start(200, [("content-type", "text/event-stream"), NO_STORE, *headers])
            await exchange.send(b": listening\n\n")
            while True:
                await exchange.send(await _next_event(queue))
        finally:
            del self._listeners[queue]


def _put(queue: asyncio.Queue[Event], event: Event) -> None:
    # A dropped event does no harm: any event makes the page read the API.
    with suppress(asyncio.QueueFull):
        queue.put_nowait(event)


async def _next_event(queue: asyncio.Queue[Event]) -> bytes:
    try:
        async with asyncio.timeout(HEARTBEAT_SECONDS):
            event = await queue.get()
    except TimeoutError:
        return b": here\n\n"
    return f"data: {json.dumps(event)}\n\n".encode()
