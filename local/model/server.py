"""The HTTP side: OpenAI's two APIs and Anthropic's as one ASGI application."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from local.callers import PROGRAMS, REFUSAL
from local.model import chat, messages, responses, validation
from local.model.answer import Answer, Delivery, Usage
from local.model.conversation import Conversation, Json, from_chat, from_messages, from_responses
from local.model.errors import ApiError, planned
from local.model.frames import Frame, Reply, half, writes
from local.model.journal import Api, Journal
from local.model.message_validation import check_messages
from local.model.prompt_cache import PromptCache
from local.model.script import decide

MODELS = ("gpt-6-luna", "gpt-6-sol", "claude-sonnet-5-5", "offline")
_Build = Callable[[Json, Answer, Usage], Reply]


def build_app(
    *,
    tokens_per_second: float | None = None,
    journal: Journal | None = None,
    shutdown_dates: Mapping[str, str] | None = None,
) -> Starlette:
    """Make the application. Without a pace it answers as fast as it is read."""
    journal = journal or Journal()
    dates = {} if shutdown_dates is None else shutdown_dates

    async def models(_: Request) -> JSONResponse:
        card = {"object": "model", "created": 0, "owned_by": "offline"}
        cards = [{"id": name, **card, "shutdown_date": dates.get(name)} for name in MODELS]
        return JSONResponse({"object": "list", "data": cards})

    pace = 1 / tokens_per_second if tokens_per_second else 0.0
    apis = {"/v1/responses": _RESPONSES, "/v1/chat/completions": _CHAT, "/v1/messages": _MESSAGES}
    return Starlette(
        middleware=[Middleware(_ProgramsOnly)],
        routes=[
            *(Route(path, _Endpoint(api, journal, pace), methods=["POST"]) for path, api in apis.items()),
            Route("/v1/models", models),
        ],
    )


class _ProgramsOnly:
    """Refuses web pages: no browser asks a model itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if PROGRAMS.include(lambda name: ",".join(headers.getlist(name))):
            await self._app(scope, receive, send)
        else:
            await JSONResponse(ApiError(REFUSAL, status=403).body, 403)(scope, receive, send)


@dataclass(frozen=True)
class _Wire:
    """One of the APIs: how its requests are checked and read, and its answers and errors written."""

    name: Api
    check: Callable[[Json], None]
    read: Callable[[Json], Conversation]
    build: _Build
    refuse: Callable[[ApiError], Json] = lambda error: error.body


_RESPONSES = _Wire("responses", validation.check_responses, from_responses, responses.build)
_CHAT = _Wire("chat", validation.check_chat, from_chat, chat.build)
_MESSAGES = _Wire("messages", check_messages, from_messages, messages.build, messages.error_body)


@dataclass(frozen=True)
class _Plan:
    """Everything about a response that is decided before its first byte."""

    packets: list[Frame]
    content_type: bytes
    delivery: Delivery
    token_seconds: float
    whole: bool  # not streamed: the packets are one body of known length
    status: int = 200
    tokens: int = 0


class _Endpoint:
    """Answers the requests to one API."""

    def __init__(self, wire: _Wire, journal: Journal, token_seconds: float) -> None:
        self._wire = wire
        self._journal = journal
        self._token_seconds = token_seconds
        self._failed: set[tuple[tuple[str, ...], int]] = set()
        self._cache = PromptCache()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._journal.request():
            request = Request(scope, receive)
            try:
                plan = self._plan(await request.body(), dict(request.headers))
            except ApiError as error:
                refused = JSONResponse(self._wire.refuse(error), error.status, error.headers)
                await refused(scope, receive, send)
                return
            async with _Client(receive, send) as client:
                if not await client.take(plan):
                    self._journal.disconnected()
                elif not plan.delivery.breaks:
                    self._journal.count_tokens(plan.tokens)

    def _plan(self, raw: bytes, headers: dict[str, str]) -> _Plan:
        try:
            body: Json = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise ApiError("We could not parse the JSON body of your request.") from error
        self._journal.record(self._wire.name, body, headers)
        try:
            self._wire.check(body)
            conversation = self._wire.read(body)
        except (AttributeError, KeyError, TypeError, RecursionError) as error:
            raise ApiError(f"Invalid type for a field of your request: {error}.", code="invalid_type") from error
        answer, delivery = decide(conversation)
        if delivery.fail and self._fails_now(delivery, conversation):
            raise planned(delivery.fail)
        read = conversation.input_tokens
        usage = Usage(read, answer.output_tokens, answer.reasoning_tokens, self._cache.read(body, read))
        pace = self._token_seconds if delivery.token_seconds is None else delivery.token_seconds
        if body.get("stream"):
            plan = self._streamed(body, answer, usage, delivery, pace)
        else:
            plan = self._buffered(body, answer, usage, delivery, pace)
        return replace(plan, tokens=usage.total_tokens)

    def _buffered(self, body: Json, answer: Answer, usage: Usage, delivery: Delivery, pace: float) -> _Plan:
        content = self._wire.build(body, answer, usage).body
        status = 500 if answer.finish == "failed" and self._wire.name != "responses" else 200
        wait = pace * answer.output_tokens
        return _Plan([Frame(content, paced=True)], b"application/json", delivery, wait, whole=True, status=status)

    def _streamed(self, body: Json, answer: Answer, usage: Usage, delivery: Delivery, pace: float) -> _Plan:
        if delivery.burst:
            packets = _prebuilt(self._wire.build, json.dumps(body, sort_keys=True), answer, usage)
            return _Plan(packets, b"text/event-stream", delivery, 0, whole=False)
        frames = self._wire.build(body, answer, usage).frames
        sent = half(frames) if delivery.breaks or delivery.stall else frames
        packets = list(writes(sent, one_by_one=pace > 0))
        return _Plan(packets, b"text/event-stream", delivery, pace, whole=False)

    def _fails_now(self, delivery: Delivery, conversation: Conversation) -> bool:
        """Fail always, or at every other attempt: the retry of a request that failed once succeeds."""
        attempt = (tuple(message.text for message in conversation.said("user")), conversation.calls_made)
        if delivery.only_once and attempt in self._failed:
            self._failed.remove(attempt)
            return False
        self._failed.add(attempt)
        return True


@lru_cache(maxsize=8)
def _prebuilt(build: _Build, body: str, answer: Answer, usage: Usage) -> list[Frame]:
    """The packets of a burst. The same request gets the very same bytes, so that a benchmark pays for them once."""
    return list(writes(build(json.loads(body), answer, usage).frames, one_by_one=False))


class _Client:
    """The one who asked: takes bytes, and may leave at any time."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def __aenter__(self) -> "_Client":
        self._gone = asyncio.create_task(self._leaves())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._gone

    async def take(self, plan: _Plan) -> bool:
        """Deliver the response as planned. False when the client left before its end."""
        if plan.delivery.stall == "first" or (plan.whole and plan.delivery.stall):
            return await self._stays(None)
        await self._start(plan)
        for packet in plan.packets:
            # Between packets of full speed too, other streams get their turn and a loss of this one is noticed.
            if not await self._stays(plan.token_seconds if packet.paced else 0):
                return False
            await self._write(
                packet.data[: len(packet.data) // 2] if plan.whole and plan.delivery.breaks else packet.data
            )
        if plan.delivery.stall:
            return await self._stays(None)
        if not plan.delivery.breaks:  # a response that is left open is cut off by the server
            await self._write(b"", more=False)
        return True

    async def _stays(self, seconds: float | None) -> bool:
        """Wait, at most until the client leaves."""
        if seconds == 0:
            await asyncio.sleep(0)
            return not self._gone.done()
        done, _ = await asyncio.wait({self._gone}, timeout=seconds)
        return not done

    async def _leaves(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _start(self, plan: _Plan) -> None:
        headers = [(b"content-type", plan.content_type), (b"x-request-id", b"req_offline")]
        if plan.whole:
            headers.append((b"content-length", str(len(plan.packets[0].data)).encode()))
        await self._send({"type": "http.response.start", "status": plan.status, "headers": headers})

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
