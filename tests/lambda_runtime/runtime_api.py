"""Lambda's Runtime API, as far as one function's process needs it, with every chunk in the test's hands."""

import asyncio
import json
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11

_PREFIX = "/2018-06-01/runtime"


def url_event(path: str, *, query: str = "", body: str = "", cookies: list[str] | None = None) -> dict[str, Any]:
    """A Function URL's event, payload format 2.0."""
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": {"host": "abc.lambda-url.eu-central-1.on.aws", "x-forwarded-proto": "https"},
        "cookies": cookies or [],
        "requestContext": {"http": {"method": "POST", "path": path, "sourceIp": "192.0.2.1"}},
        "body": body,
        "isBase64Encoded": False,
    }


def rest_event(
    path: str, *, query: dict[str, list[str]], body: str | None = None, **headers: list[str]
) -> dict[str, Any]:
    """An event of API Gateway's REST API, payload format 1.0."""
    return {
        "resource": "/{proxy+}",
        "path": path,
        "httpMethod": "POST",
        "headers": {"Host": "abc.execute-api.eu-central-1.amazonaws.com"},
        "multiValueHeaders": {"Host": ["abc.execute-api.eu-central-1.amazonaws.com"], **headers},
        "queryStringParameters": None,
        "multiValueQueryStringParameters": query or None,
        "requestContext": {"identity": {"sourceIp": "192.0.2.1"}, "stage": "live"},
        "body": body,
        "isBase64Encoded": False,
    }


@dataclass
class Post:
    """One request of the runtime, readable while it is still being sent."""

    path: str
    headers: dict[str, str]
    chunks: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    trailers: dict[str, str] = field(default_factory=dict)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the runtime has closed the connection."""

    async def chunk(self) -> bytes:
        chunk = await self.chunks.get()
        assert chunk is not None, "the request has ended"
        return chunk

    async def rest(self) -> list[bytes]:
        chunks = []
        while (chunk := await self.chunks.get()) is not None:
            chunks.append(chunk)
        return chunks

    async def json(self) -> Any:
        return json.loads(b"".join(await self.rest()))

    async def prelude(self) -> Any:
        """The head of a streamed response: a chunk of JSON, then a chunk of eight NULs."""
        head = json.loads(await self.chunk())
        assert await self.chunk() == bytes(8)
        return head


class RuntimeApi:
    """One function's invocations: `invoke` queues an event, `posted` is what the runtime posts next."""

    def __init__(self) -> None:
        self.address = ""
        self.verdict = 202
        self._invocations: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()
        self._posts: asyncio.Queue[Post] = asyncio.Queue()
        self._responses: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        listening = self._server.sockets[0]
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)  # the kernel's own size may be 32 MB
        host, port = listening.getsockname()
        self.address = f"{host}:{port}"

    def invoke(self, event: Any, **headers: str) -> str:
        request_id = str(uuid.uuid4())
        known = {"Lambda-Runtime-Aws-Request-Id": request_id, "Content-Type": "application/json"}
        self._invocations.put_nowait((known | headers, json.dumps(event).encode()))
        return request_id

    async def posted(self) -> Post:
        return await self._posts.get()

    async def call(self, path: str, **headers: str) -> Post:
        """Invoke the app of a path, and return what the runtime posts next."""
        self.invoke(url_event(path), **headers)
        return await self.posted()

    def hang_up(self) -> None:
        """Break every connection of a response, as a Runtime API that died would."""
        for writer in self._responses:
            writer.transport.abort()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        connection.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Connection(self, reader, writer).serve()
        except (ConnectionError, h11.RemoteProtocolError):
            pass  # broken off by the test
        finally:
            self._responses.discard(writer)

    async def close(self) -> None:
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        assert self._server is not None
        self._server.close()

    async def next_invocation(self) -> tuple[dict[str, str], bytes]:
        return await self._invocations.get()

    def receive(self, post: Post, writer: asyncio.StreamWriter) -> None:
        self._responses.add(writer)
        self._posts.put_nowait(post)


class _Connection:
    """One connection of the runtime, spoken by h11."""

    def __init__(self, api: RuntimeApi, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._api = api
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER)

    async def serve(self) -> None:
        while isinstance(request := await self._next_event(), h11.Request):
            post = await self._answer(request)
            if self._http.our_state is h11.MUST_CLOSE and post is not None:
                assert await self._reader.read() == b""
                post.closed.set()
                return
            self._http.start_next_cycle()

    async def _answer(self, request: h11.Request) -> Post | None:
        path = request.target.decode()
        if request.method == b"GET":
            assert path == f"{_PREFIX}/invocation/next"
            await self._next_event()
            await self._send(200, *await self._api.next_invocation())
            return None
        post = Post(path.removeprefix(_PREFIX), {name.decode(): value.decode() for name, value in request.headers})
        self._api.receive(post, self._writer)
        await self._read_body(post)
        await self._send(self._api.verdict, {}, b"")
        return post

    async def _read_body(self, post: Post) -> None:
        chunk = b""
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            assert isinstance(event, h11.Data), event
            chunk += bytes(event.data)
            if event.chunk_end or "transfer-encoding" not in post.headers:
                post.chunks.put_nowait(chunk)
                chunk = b""
        post.trailers = {name.decode(): value.decode() for name, value in event.headers}
        post.chunks.put_nowait(None)

    async def _next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(2**16))
        return event

    async def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        response = h11.Response(status_code=status, headers=[*headers.items(), ("Content-Length", str(len(body)))])
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()


@asynccontextmanager
async def runtime_api() -> AsyncIterator[RuntimeApi]:
    api = RuntimeApi()
    await api.listen()
    try:
        yield api
    finally:
        await api.close()
