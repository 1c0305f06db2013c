"""The AI SDK's own clients in Node, and a small server around the runner for it to talk to."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from local.model.offline import listen
from omniagent import Agent, tool
from omniagent.ai.operator import TurnOperator
from omniagent.errors import RequestError
from omniagent.http.auth import Caller
from omniagent.http.bodies import read_chat_request, read_json
from omniagent.http.chat_app import EventStream, resume
from omniagent.messages import Part
from omniagent.protocol.ui_messages import ui_message
from tests.fixtures.conversation import Conversation
from tests.fixtures.endings import ended_in_time
from tests.runner.sessions import Polled, until

_PARTS: TypeAdapter[list[Part]] = TypeAdapter(list[Part])
HERE = Path(__file__).parent
Json = dict[str, Any]


def without_places(messages: list[Json]) -> list[Json]:
    """Leave out where messages stand in the tree: a page learns that of its own messages when it reads them again."""
    shown = []
    for message in messages:
        metadata = {name: value for name, value in message.get("metadata", {}).items() if name not in PLACES}
        rest = {name: value for name, value in message.items() if name != "metadata"}
        shown.append(rest | ({"metadata": metadata} if metadata else {}))
    return shown


PLACES = ("nodeId", "parentId", "siblings", "decisions")


class SdkClient:
    """A Node process that drives one chat after the other, or several at once."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self._reading = asyncio.create_task(self._read())

    async def drive(
        self,
        api: str,
        chat_id: str,
        *actions: Json,
        messages: list[Json] | None = None,
        version: int = 6,
        answers: bool = False,
        **more: Any,
    ) -> Json:
        """Do what a user does, and return what they see at the end.

        With `answers` the page sends by itself once everything is answered, as the SDK's own helpers say. With
        `workflow` it uses the WorkflowChatTransport of `@ai-sdk/workflow`.
        """
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        wanted = {"number": number, "api": api, "id": chat_id, "messages": messages or [], "actions": actions}
        wanted |= {"sdk": version, "answers": answers, **more}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
        seen: Json = await answer
        assert "crashed" not in seen, seen["crashed"]
        return seen | ({"messages": without_places(seen["messages"])} if "messages" in seen else {})

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await ended_in_time("the Node process", self._process.wait())
        if self._process.returncode is None:
            self._process.kill()
        await ended_in_time("reading the Node process", self._reading)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            seen = json.loads(line)
            self._waiting.pop(seen.pop("number")).set_result(seen)
        for waiting in self._waiting.values():
            waiting.set_exception(RuntimeError("the Node process has ended"))


class Server:
    """POST /chat, GET /chat/{id}/stream and POST /sessions/{id}/cancel for the conversation of the running test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.conversation: Conversation | None = None
        self.joined = asyncio.Semaphore(0)
        """Released for each reader that follows a turn which somebody else began."""
        self.app = Starlette(
            routes=[
                Route("/chat", self._chat, methods=["POST"]),
                Route("/chat/{session_id}/stream", self._resume),
                Route("/sessions/{id}/cancel", self._cancel, methods=["POST"]),
            ],
            exception_handlers={RequestError: _problem},
        )
        self.app.state.application, self.app.state.authenticate, self.app.state.auth_mode = self, _anybody, "none"
        self.resumes: list[str] = []
        """The queries of the requests that resumed a stream."""

    async def _chat(self, request: Request) -> EventStream:
        asked = read_chat_request(await read_json(request, labelled=False))
        conversation = self._session(asked.session_id)
        if asked.replies:
            message_id = asked.query.message_id
            return EventStream(request, await conversation.runner().reply(*asked.replies, message_id=message_id))
        head = await conversation.session.head()
        stream = await conversation.start(asked.query)
        if head is not None and head.running is not None:
            self.joined.release()
        return EventStream(request, stream)

    async def _resume(self, request: Request) -> Response | EventStream:
        self.resumes.append(str(request.url.query))
        response = await resume(request)
        if isinstance(response, EventStream):
            self.joined.release()
        return response

    async def runner(self, _: str, session_id: str | None, **__: Any) -> TurnOperator:
        """As the product's `Application`."""
        return self._session(session_id).runner()

    async def _cancel(self, request: Request) -> Response:
        await self._session(request.path_params["id"]).stop()
        return Response(status_code=202)

    def _session(self, session_id: str | None) -> Conversation:
        assert self.conversation is not None
        return self.conversation.but(session_id=session_id)


async def _anybody(_: Request) -> Caller:
    return Caller("you")


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return JSONResponse({"code": error.code, "detail": error.public}, error.status)


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave Ctrl-C to pytest."""
        yield


class Page:
    """A page of a chat, in the AI SDK's client, and the conversation of the running test that answers it."""

    def __init__(self, sdk: SdkClient, server: Server, version: int = 6, *, answers: bool = False) -> None:
        self.version = version
        self.answers = answers
        self.server = server
        self._sdk = sdk

    @property
    def conversation(self) -> Conversation:
        assert self.server.conversation is not None
        return self.server.conversation

    def serve(self, **changes: Any) -> Conversation:
        """Answer with another agent, other settings, or as another process."""
        self.server.conversation = self.conversation.but(**changes)
        return self.server.conversation

    async def drive(self, *actions: Json, **options: Any) -> Json:
        """Open the page, do what a user does, and return what they see at the end."""
        options = {"version": self.version, "answers": self.answers} | options
        return await self._sdk.drive(self.server.url, self.conversation.session_id, *actions, **options)

    @property
    def stored(self) -> list[Json]:
        """The conversation as GET /sessions/{id}/messages gives it."""
        return [
            ui_message(
                message["client_message_id"],
                message["role"],
                _PARTS.validate_python(message["parts"]),
                message["metadata"],
                sdk=self.version,
            )
            for message in self.conversation.messages
        ]


def send(text: str, **more: Any) -> Json:
    return {"do": "send", "text": text, **more}


RESUME: Json = {"do": "resume"}
THINK = "[echo:Let me think.] [tool:think {}] [then] [echo:Here is the answer.]"


def slow_agent() -> tuple[Agent, asyncio.Event]:
    """An agent with a tool that answers when the test lets it."""
    released = asyncio.Event()

    @tool
    async def think() -> str:
        """Think for as long as the test wants."""
        await released.wait()
        return "thought"

    return Agent("helper", "", [think]), released


async def signals_read(conversation: Conversation) -> None:
    """Wait until the running turn has read its signals: that of a message in line was sent before."""
    registry = conversation.registry
    assert isinstance(registry, Polled)
    last = registry.polls + 2

    async def have_been() -> bool:
        return registry.polls >= last

    await until(have_been)


@pytest.fixture(scope="session")
async def running_server() -> AsyncIterator[Server]:
    listener = listen()
    server = Server(f"http://127.0.0.1:{listener.getsockname()[1]}")
    uvicorn_server = _Uvicorn(
        uvicorn.Config(server.app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=5)
    )
    serving = asyncio.create_task(uvicorn_server.serve([listener]))
    yield server
    uvicorn_server.should_exit = True
    await ended_in_time("uvicorn", serving)


@pytest.fixture
def server(running_server: Server, conversation: Conversation) -> Server:
    """The server, for the conversation of this test."""
    running_server.conversation, running_server.joined = conversation, asyncio.Semaphore(0)
    running_server.resumes.clear()
    return running_server


@pytest.fixture
def page(sdk: SdkClient, server: Server) -> Page:
    return Page(sdk, server)


@pytest.fixture(scope="session")
async def sdk() -> AsyncIterator[SdkClient]:
    """The AI SDK's clients. Their packages are installed, as the lock file says, when one is missing."""
    if not shutil.which("node"):
        pytest.skip("Node is not installed: the AI SDK's own client cannot be driven")
    if not (HERE / "node_modules" / "openapi-typescript").is_dir():
        installing = await asyncio.create_subprocess_exec("npm", "ci", "--no-audit", "--no-fund", cwd=HERE)
        assert await installing.wait() == 0, "npm ci failed"
    process = await asyncio.create_subprocess_exec(
        "node", "drive.mjs", cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=16 * 1024 * 1024
    )
    client = SdkClient(process)
    yield client
    await client.close()
