"""The one origin of `make run`: the playground, the two functions behind it, and local diagnostics."""

import errno
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from local.activity import USER, Activity
from local.callers import Callers
from local.causes import Causes, place_of, start_of
from local.causes import as_json as causes_as_json
from local.emulator.cors import is_preflight, preflight_headers, response_headers
from local.emulator.http import NO_STORE, BodyTooLarge, Exchange, Headers, Server
from local.files import Files
from local.forward import Failed, Forwarder, Unreachable
from local.model_choice import CHOICE_HEADER, Choice, TabModels
from local.places import HOME
from local.ports import LOOPBACK
from local.processes import ServiceError
from local.template import Cors
from local.traces import Traces, as_json
from omniagent.http.serving import ALLOWED_HEADERS, ALLOWED_METHODS, EXPOSED_HEADERS, MAX_AGE_SECONDS
from omniagent.session.ids import session_key, user_id_of

PLAYGROUND = HOME / "local" / "playground"
# First segment of a path -> the function that serves it.
ROUTES = {
    "chat": "chat",
    "sessions": "sessions",
    "users": "sessions",
    "usage": "sessions",
    "approvals": "sessions",
    "docs": "sessions",
    "openapi.json": "sessions",
}
# Longest wait for the last spans of a turn.
TRACE_SECONDS = 1.0
# The page runs only its own scripts and loads no external images, so that model output cannot exfiltrate data. It may
# call any stack, because it is also a client for deployed ones.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "manifest-src 'self'; connect-src 'self' https: http://127.0.0.1:* http://localhost:*; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = [("content-security-policy", PAGE_POLICY), ("referrer-policy", "no-referrer")]
# For a web application under development on another port of this machine.
NEIGHBOURS = Cors(
    allow_methods=ALLOWED_METHODS,
    allow_headers=(*ALLOWED_HEADERS, "x-user-category", "x-user-id"),
    expose_headers=EXPOSED_HEADERS,
    max_age=MAX_AGE_SECONDS,
)


BODY_LIMIT = 100_000


@dataclass(frozen=True)
class LocalRequest:
    """A request of the page about the stack itself.

    `user` is the caller's name, as the functions take it, `choice` the tab's own model.
    """

    query: Mapping[str, str]
    body: Any
    user: str
    choice: Choice | None = None


LocalRoute = Callable[[LocalRequest], Awaitable[Any]]
"""Answers with JSON. Raises `ValueError` with a sentence for the person."""


async def _nothing(_: LocalRequest) -> dict[str, Any]:
    """Describe a stack that is still starting."""
    return {}


class Front:
    """Serves from its start. Functions are reachable after `open_to`."""

    def __init__(self, traces: Traces, causes: Causes | None = None, *, playground: Path = PLAYGROUND) -> None:
        """Take the trace store, the causes of failures, and the page's folder."""
        self._traces = traces
        self._causes = causes or Causes()
        self._files = Files(playground, PAGE_HEADERS)
        self._functions: Mapping[str, str] = {}
        self._routes: Mapping[str, LocalRoute] = {"GET /local/info": _nothing}
        self._models: TabModels | None = None
        self._activity = Activity()
        self._forwarder = Forwarder()
        self._server = Server(self._handle, Callers(neighbours=True, visitors=True))

    @property
    def url(self) -> str:
        """The origin."""
        return f"http://{self._server.address}"

    async def start(self, port: int) -> None:
        """Listen on `port`, 0 for a free one."""
        try:
            await self._server.start(port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ServiceError(f"Port {port} is in use: choose another one, such as PORT={port + 1}.") from None
            raise ServiceError(f"Port {port} cannot be used: {error.strerror}.") from None

    def open_to(
        self, functions: Mapping[str, str], routes: Mapping[str, LocalRoute], models: TabModels | None = None
    ) -> None:
        """Forward to these addresses, by the names of ROUTES, and serve what the local `routes` return."""
        self._functions = functions
        self._routes = routes
        self._models = models

    def changed(self) -> None:
        """Tell the pages that the stack's code or model has changed."""
        self._activity.announce()

    async def close(self) -> None:
        """End every connection."""
        await self._server.close()
        await self._forwarder.close()

    async def _handle(self, exchange: Exchange) -> None:
        origin = exchange.header("origin")
        cors = response_headers(_allowing(origin), exchange)
        if is_preflight(exchange):
            await exchange.respond(204, preflight_headers(_allowing(origin), exchange))
        elif not exchange.target.startswith("/"):
            await _problem(exchange, 400, "The target must be a path.", cors)
        else:
            await self._route(exchange, cors)

    async def _route(self, exchange: Exchange, cors: Headers) -> None:
        # As for a Function URL, a client may send one more slash at the beginning.
        first = exchange.path.lstrip("/").partition("/")[0]
        if first in ROUTES:
            await self._forward(exchange, ROUTES[first], cors)
        elif exchange.path == "/v1/traces" and exchange.method == "POST":
            await self._traces.receive(exchange)
        elif exchange.path == "/local/traces":
            await self._tell_traces(exchange, cors)
        elif exchange.path == "/local/causes":
            causes = self._causes.of(exchange.query.get("request_id", ""))
            await _json(exchange, 200, {"causes": causes_as_json(causes)}, cors)
        elif exchange.path == "/local/activity":
            await self._activity.tell(exchange, cors)
        elif route := self._routes.get(f"{exchange.method} {exchange.path}"):
            await self._local(exchange, route, cors)
        else:
            await self._files.answer(exchange)

    async def _forward(self, exchange: Exchange, function: str, cors: Headers) -> None:
        if function not in self._functions:
            await _problem(exchange, 503, "The stack is still starting.", cors)
            return

        try:
            choice = self._choice_for(exchange) if function == "chat" else None
        except ValueError as error:
            await _problem(exchange, 422, str(error), cors)
            return

        def answered(response: httpx.Response) -> None:
            if exchange.method != "GET" and response.is_success:
                if self._models and (session_id := response.headers.get("x-session-id")):
                    self._models.claim(_key(exchange, session_id), choice)
                self._activity.publish(exchange, _session_id(exchange, response))

        added = self._models.headers(choice) if self._models else []
        try:
            await self._forwarder.forward(exchange, self._functions[function], cors, answered, added)
        except Failed as failed:
            await self._tell_failure(exchange, function, failed.request_id, cors)
        except Unreachable:
            await _problem(exchange, 502, f"The {function} function cannot be reached.", cors)

    def _choice_for(self, exchange: Exchange) -> Choice | None:
        """Return the model that answers: of a new message, the sender's; of a turn that is resumed, its own."""
        if exchange.method == "GET" and self._models:
            session_id = exchange.path.lstrip("/").removeprefix("chat/").partition("/")[0].partition(":")[0]
            return self._models.owner(_key(exchange, session_id))
        return Choice.from_header(exchange.header(CHOICE_HEADER))

    async def _local(self, exchange: Exchange, route: LocalRoute, cors: Headers) -> None:
        """Serve a local route. Only the page itself, or a program, changes the stack: no other page of this machine."""
        if exchange.method != "GET" and exchange.header("origin") not in {
            "",
            self.url,
            self.url.replace(LOOPBACK, "localhost"),
        }:
            await _problem(exchange, 403, "Only the playground may do this.", cors)
            return
        try:
            body = json.loads(await exchange.body(BODY_LIMIT)) if exchange.method != "GET" else None
            choice = Choice.from_header(exchange.header(CHOICE_HEADER))
            answer = await route(LocalRequest(exchange.query, body, _user(exchange), choice))
        except (ValueError, BodyTooLarge) as error:
            await _problem(exchange, 422, str(error), cors)
        else:
            await _json(exchange, 200, answer, cors)

    async def _tell_failure(self, exchange: Exchange, function: str, request_id: str, cors: Headers) -> None:
        """Report what Lambda hides: why a function died or did not start."""
        request_id, started = request_id or start_of(function), bool(request_id)
        causes = self._causes.of(request_id)
        known = [cause.cause for cause in causes if cause.cause] or [cause.message for cause in causes]
        why = known[-1] if known else "Its log says why."
        extra = {"title": f"The {function} function failed", "request_id": request_id}
        if not started:
            extra["code"] = "not_loaded"
            if place := next(filter(None, (place_of(cause.traceback) for cause in reversed(causes))), None):
                extra["title"] = place.title
                why = f"{why}\n{place.text}".strip()
        await _problem(exchange, 502, why, cors, extra)

    async def _tell_traces(self, exchange: Exchange, cors: Headers) -> None:
        try:
            session_id, turn = exchange.query["session_id"], int(exchange.query["turn"])
        except (KeyError, ValueError):
            await _problem(exchange, 422, "Name the session in session_id and the turn's number in turn.", cors)
            return
        spans = await self._traces.of_ended_turn(session_id, turn, seconds=TRACE_SECONDS)
        await _json(exchange, 200, {"spans": as_json(spans)}, cors)


def _user(exchange: Exchange) -> str:
    return f"local:{exchange.header(USER) or 'me'}"


def _key(exchange: Exchange, session_id: str) -> str:
    return session_key(user_id_of(_user(exchange)), session_id)


def _session_id(exchange: Exchange, response: httpx.Response) -> str | None:
    """Return the session of a request, empty for a new one, None for one that only the function knows."""
    parts = exchange.path.split("/")
    if parts[1:3] == ["chat", "approvals"]:
        return None
    return str(response.headers.get("x-session-id", "")) or (parts[2] if len(parts) > 2 else "")


def _allowing(origin: str) -> Cors:
    return replace(NEIGHBOURS, allow_origins=(origin,))


async def _json(
    exchange: Exchange, status: int, document: Any, cors: Headers, content_type: str = "application/json"
) -> None:
    headers = [("content-type", content_type), NO_STORE, *cors]
    await exchange.respond(status, headers, json.dumps(document).encode())


async def _problem(
    exchange: Exchange, status: int, detail: str, cors: Headers, extra: Mapping[str, str] | None = None
) -> None:
    document = {"type": "about:blank", "title": "Local stack", "status": status, "detail": detail, "code": "local"}
    await _json(exchange, status, {**document, **(extra or {})}, cors, "application/problem+json")
