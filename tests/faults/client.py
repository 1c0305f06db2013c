"""Clients of the chat: what they send, and every byte they get, with the time it came."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from omniagent.protocol import sse

Json = dict[str, Any]

POLL_SECONDS = 0.25
OWN_ID = "ownId"
RESULTS = {"tool-output-available", "tool-output-error", "tool-output-denied", "tool-input-error"}


async def a_moment() -> None:
    """Pause between two questions of a client that waits for something: asking without a pause fills a core."""
    await asyncio.sleep(POLL_SECONDS)


@dataclass
class Stream:
    """One response, as far as it came."""

    message_id: str | None = None
    """The message that was sent; None for a resume."""
    replaces: str | None = None
    """The answer that is regenerated."""
    continues: str | None = None
    """The answer that goes on after a decision."""
    sent_at: float = field(default_factory=time.monotonic)
    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)
    cut: bool = False
    """The connection broke before the response had ended."""
    ended: bool = False
    _rest: bytes = b""

    def add(self, piece: bytes) -> None:
        self.pieces.append((time.monotonic(), piece))
        whole, end, self._rest = (self._rest + piece).rpartition(b"\n\n")
        self.events += sse.decode(whole + end)

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    @property
    def began_at(self) -> float:
        return self.pieces[0][0]

    @property
    def is_acknowledged(self) -> bool:
        """The message is durable."""
        return self.status in {200, 202} and bool(self.pieces)

    @property
    def frames(self) -> bytes:
        """The body without the comments that only keep the connection alive."""
        return self.body.replace(sse.KEEP_ALIVE, b"")

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def text(self) -> str:
        return _text(self.events)

    @property
    def answer_id(self) -> str:
        """The id of the answer that the stream showed at last: a second `start` renames it, as in the AI SDK."""
        [*_, start] = [event for event in self.events if event["type"] == "start"]
        return str(start["messageId"])

    @property
    def turn_number(self) -> int:
        return int(self.event("start")["messageMetadata"]["turnNumber"])

    @property
    def finished_as(self) -> str | None:
        """The status that `finish` told of, None when there was none."""
        return str(self.event("finish")["messageMetadata"]["status"]) if "finish" in self.kinds else None

    @property
    def is_throttled(self) -> bool:
        """Lambda itself refused it: all processes are busy. The functions' own refusals are problem documents."""
        return self.status == 429 and self.body == b'{"Message": "Rate Exceeded."}'

    @property
    def has_begun(self) -> bool:
        return self.status == 200 and "start" in self.kinds

    @property
    def tool_results(self) -> dict[str, Any]:
        """What each tool call came to, as far as it was shown."""
        return {
            event["toolCallId"]: event.get("output", event.get("errorText"))
            for event in self.events
            if event["type"] in RESULTS
        }

    @property
    def done(self) -> bool:
        return self.body.endswith(sse.DONE)

    def event(self, kind: str) -> Json:
        return next(event for event in self.events if event["type"] == kind)

    def text_before(self, moment: float) -> str:
        """The text that had arrived by then."""
        return text_of(b"".join(piece for at, piece in self.pieces if at < moment))


def text_of(frames: bytes) -> str:
    return _text(sse.decode(frames))


def _text(events: Iterable[Json]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "text-delta")


class Exchange:
    """A request on its way. `stream` grows while it is read."""

    def __init__(self, http: httpx.AsyncClient, request: httpx.Request, message_id: str | None = None) -> None:
        self.stream = Stream(message_id)
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._read(http, request))

    async def end(self) -> Stream:
        """Wait for the end of the response, good or bad."""
        await self._task
        return self.stream

    async def until(self, happened: Callable[[Stream], bool]) -> Stream:
        """Wait until the client has seen something. Fails when the response ends before."""
        await self.shows(happened)
        assert happened(self.stream), f"{self.stream.status} {self.stream.body.decode()}"
        return self.stream

    async def seen(self, kind: str, times: int = 1) -> Stream:
        return await self.until(lambda stream: stream.kinds.count(kind) >= times)

    async def shows(self, happened: Callable[[Stream], bool]) -> bool:
        """Wait until the client has seen something, or for the end of the response. Returns which it was."""
        while not happened(self.stream) and not self.stream.ended:
            self._changed.clear()
            await self._changed.wait()
        return not self.stream.ended

    async def leave(self) -> None:
        """Break the connection off."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.stream.cut = True

    async def _read(self, http: httpx.AsyncClient, request: httpx.Request) -> None:
        stream = self.stream
        try:
            response = await http.send(request, stream=True)
            stream.status, stream.headers = response.status_code, response.headers
            async for piece in response.aiter_raw():
                stream.add(piece)
                self._changed.set()
            await response.aclose()
        except httpx.TransportError:
            stream.cut = True
        finally:
            stream.ended = True
            self._changed.set()


class Client:
    """One user's session, and all that was heard in it."""

    def __init__(self, http: httpx.AsyncClient, *, chat: str, sessions: str, user: str | None = None) -> None:
        self._http = http
        self._chat = chat
        self._sessions = sessions
        self.user = user or f"user-{uuid.uuid4().hex[:8]}"
        self.session = f"session-{uuid.uuid4().hex[:8]}"
        self.streams: list[Stream] = []

    def ask(
        self,
        text: str,
        message_id: str | None = None,
        busy: str | None = None,
        *,
        edits: str | None = None,
        parent: str | None = None,
    ) -> Exchange:
        """Send a message: after the latest, or after `parent`, which is empty before the first one.

        The same id again is the same message. One that edits another is sent under that one's id: its own is in its
        metadata.
        """
        message_id = message_id or uuid.uuid4().hex
        parts, metadata = [{"type": "text", "text": text}], {OWN_ID: message_id}
        message = {"id": edits or message_id, "role": "user", "parts": parts, "metadata": metadata}
        messages = [{"id": parent}, message] if parent else [message]
        body: Json = {"id": self.session, "messages": messages, "trigger": "submit-message", "busy": busy}
        return self._post(body | ({"parentId": None} if parent == "" else {}), message_id)

    async def leave(self, text: str, message_id: str, busy: str | None = None) -> Stream:
        """Send a message whose answer nobody waits for."""
        body = {"session_id": self.session, "query": text, "message_id": message_id, "busy": busy}
        return await self._post(body, message_id, background="true").end()

    def decide(self, answer_id: str, call_id: str, *, approved: bool) -> Exchange:
        """Approve or deny the call that an answer waits for, and read on."""
        answer = {"tool_call_id": call_id, "approved": approved}
        exchange = self._post({"session_id": self.session, "message_id": answer_id, "replies": [answer]}, None)
        exchange.stream.continues = answer_id
        return exchange

    def regenerate(self, answer_id: str) -> Exchange:
        body = {"id": self.session, "messages": [{}], "trigger": "regenerate-message", "messageId": answer_id}
        exchange = self._post(body, None)
        exchange.stream.replaces = answer_id
        return exchange

    def resume(self) -> Exchange:
        return self._exchange(self._http.build_request("GET", f"{self._chat}/chat/{self.session}/stream"))

    async def stop(self, message_id: str | None = None) -> httpx.Response:
        """Press Stop, for whatever runs or for the answer to one message."""
        body = {} if message_id is None else {"message_id": message_id}
        return await self._call("POST", f"/{self.session}/cancel", json=body)

    async def summarize(self) -> httpx.Response:
        """Ask for a new summary of the whole session."""
        return await self._call("POST", f"/{self.session}/summary")

    async def messages(self) -> list[Json]:
        """Read the conversation as a page that is opened anew does."""
        response = (await self._call("GET", f"/{self.session}/messages")).raise_for_status()
        messages: list[Json] = response.json()["messages"]
        return messages

    async def tree(self) -> tuple[str, list[tuple[str, str]]]:
        """Read the whole tree: its active leaf, and the id of each message with that of its parent."""
        nodes: list[tuple[str, str]] = []
        page: Json = {"after": None}
        while not nodes or page["after"] is not None:
            query = {} if page["after"] is None else {"after": page["after"]}
            page = (await self._call("GET", f"/{self.session}/tree", params=query)).raise_for_status().json()
            nodes += [(node["message"]["id"], node["parentId"] or "") for node in page["messages"]]
        return page["headId"], nodes

    async def say(self, text: str, message_id: str | None = None) -> Stream:
        """Send a message and read the answer to its end."""
        return await self.ask(text, message_id).end()

    async def read_on(self, exchange: Exchange | None = None) -> list[Stream]:
        """Read to the end of an answer, as a page does: a stream that ends without `finish` is resumed."""
        streams = [await (exchange or self.resume()).end()]
        while streams[-1].finished_as is None:
            streams.append(await self.resume().end())
        return streams

    async def accepted(self, text: str, message_id: str | None = None) -> Stream:
        """Send a message as often as the session is busy, until it is answered."""
        message_id = message_id or uuid.uuid4().hex
        while (stream := await self.say(text, message_id)).status == 409:
            assert int(stream.headers["retry-after"]) >= 1
            await a_moment()
        return stream

    async def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        url = f"{self._sessions}/sessions{path}"
        return await self._http.request(method, url, headers={"x-user-id": self.user}, **options)

    def _post(self, body: Json, message_id: str | None, **query: str) -> Exchange:
        request = self._http.build_request("POST", f"{self._chat}/chat", json=body, params=query)
        return self._exchange(request, message_id)

    def _exchange(self, request: httpx.Request, message_id: str | None = None) -> Exchange:
        request.headers["x-user-id"] = self.user
        exchange = Exchange(self._http, request, message_id)
        self.streams.append(exchange.stream)
        return exchange
