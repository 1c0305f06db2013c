"""The chat function's app: three routes on Starlette alone, because FastAPI would double the cold start."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from omniagent.ai.schema import json_output
from omniagent.errors import InvalidRequest, NoRunQueue, StorageUnavailable
from omniagent.http.auth import Authenticate, Caller, find_caller
from omniagent.http.bodies import ChatRequest, read_chat_request, read_flag, read_json, read_model
from omniagent.http.serving import serve
from omniagent.invocation import invocation_end
from omniagent.protocol import sse
from omniagent.protocol.ui_messages import DEFAULT_SDK, SDK_VERSIONS, for_sdk, ui_message
from omniagent.session.ids import check_id
from omniagent.tracing import bind_request

if TYPE_CHECKING:
    from omniagent.ai.approvals import Approver
    from omniagent.ai.operator import TurnOperator
    from omniagent.ai.result import AnswerStream, RunResult, StreamPosition
    from omniagent.app.application import Application


@dataclass(frozen=True)
class EventStream:
    """Sends the frames of an answer as they come, in the format of AI SDK 6 or of the version that the client names.

    The status line is sent after the first frame is there, so an earlier failure is a problem response. After the last
    frame the invocation stays open until the turn has ended, but the client does not wait for that.
    """

    request: Request
    stream: "AnswerStream"
    number: Callable[[bytes], Iterable[bytes]] | None = None
    """Gives each event an id."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent beside those of every stream."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        stream = self.stream
        sdk = SDK_VERSIONS.get(self.request.headers.get("x-ai-sdk"), DEFAULT_SDK)
        run_id = f"{stream.session_id}:{stream.journal_id}" if stream.journal_id else stream.session_id
        headers = {**sse.HEADERS, "x-session-id": stream.session_id, "x-workflow-run-id": run_id, **self.headers}
        frames = stream.sse(resets=sdk == 7)
        # A journal has the stream as the model wrote it: nothing in it is decided yet.
        if sdk != DEFAULT_SDK or not stream.journal_id:
            frames = for_sdk(frames, sdk)
        if self.number is not None:
            frames = sse.translated(frames, self.number)
        try:
            first = await anext(frames, b"")
            await send({"type": "http.response.start", "status": 200, "headers": Headers(headers).raw})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for following in frames:
                await send({"type": "http.response.body", "body": following, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ConnectionError:
            pass  # the reader has left: the turn goes on, and only it is waited for
        finally:
            await stream.ended()


_INDEX: Final = re.compile(r"-?\d{1,9}")
_END: Final = "end"


def chat_app(application: "Application", *, authenticate: Authenticate | None = None) -> Starlette:
    """Return the app of the chat function: all routes that run or follow a turn.

    `authenticate` finds the caller of a request. None: as the setting AUTH_MODE says.
    """
    routes = [
        OwnedRoute("POST", "/chat", chat),
        OwnedRoute("GET", "/chat/{session_id}/stream", resume),
        OwnedRoute("POST", "/chat/approvals/{request_id}", decide),
    ]
    if application.settings.docs_enabled:
        # Beside those of the sessions app, which a server mounts at the same place.
        routes += [OwnedRoute("GET", "/chat/openapi.json", openapi), OwnedRoute("GET", "/chat/docs", docs)]
    app = Starlette(routes=routes)
    serve(app, application, authenticate)
    return app


async def chat(request: Request) -> Response | EventStream:
    """Answer a message: as an event stream, with `?stream=false` as one document, with `?background=true` later."""
    application: Application = request.app.state.application
    caller = await find_caller(request)
    is_streamed = read_flag(request, "stream", default=True)
    body = read_chat_request(await read_json(request, labelled=False))
    runner = await application.runner(caller.client_id, body.session_id, category=caller.category)
    bind_request(session_id=runner.session_id)
    if read_flag(request, "background", default=False):
        return await _accepted(application, runner, body)
    deadline = invocation_end.get()
    if body.replies:
        message_id, approver = body.query.message_id, _approver(caller)
        stream = await runner.reply(*body.replies, message_id=message_id, approver=approver, deadline=deadline)
    else:
        stream = await runner.start(body.query, deadline=deadline)
    if is_streamed:
        return EventStream(request, stream)
    try:
        sdk = SDK_VERSIONS.get(request.headers.get("x-ai-sdk"), DEFAULT_SDK)
        return JSONResponse(_document(await stream.result(), sdk=sdk))
    finally:
        await stream.ended()


async def _accepted(application: "Application", runner: "TurnOperator", body: ChatRequest) -> Response:
    """Accept a message for the run function. It is stored before the response is sent."""
    if body.replies:
        raise InvalidRequest("Only a new message can be answered in the background.")
    if application.platform.run_queue is None:
        raise NoRunQueue
    session_id, stream = runner.session_id, f"/chat/{runner.session_id}/stream"
    message_id = await runner.accept(body.query)
    accepted = {"sessionId": session_id, "messageId": message_id, "stream": stream}
    headers = {"location": stream, "cache-control": "no-store", "x-session-id": session_id}
    return JSONResponse(accepted, status_code=202, headers=headers)


async def resume(request: Request) -> Response | EventStream:
    """Follow the running answer, or one that has just ended, from its first event; 204 when there is none.

    A client that has seen the first events says so, and gets the rest.
    """
    application: Application = request.app.state.application
    caller = await find_caller(request)
    session_id, _, journal = request.path_params["session_id"].partition(":")
    runner = await application.runner(caller.client_id, check_id(session_id, "session id"), category=caller.category)
    bind_request(session_id=runner.session_id)
    position = _position(request, journal)
    stream = await runner.resume(deadline=invocation_end.get(), after=position)
    if stream is None:
        return Response(status_code=204)
    seen = stream.seen or 0
    is_event_source = "text/event-stream" in request.headers.get("accept", "")
    headers = {}
    if position is not None and (position.seen or 0) < 0:
        headers["x-workflow-stream-tail-index"] = str(seen - (position.seen or 0) - 1)
    return EventStream(request, stream, _numbering(stream, seen) if is_event_source else None, headers)


def _position(request: Request, journal: str) -> "StreamPosition | None":
    """Return where the client wants to go on. None: at the beginning of the running answer.

    `startIndex` is WorkflowChatTransport's, `Last-Event-ID` an EventSource's. `journal` is what followed the session's
    id in the path, as in `x-workflow-run-id`.
    """
    from omniagent.ai.result import StreamPosition

    if (index := request.query_params.get("startIndex")) is not None:
        if not _INDEX.fullmatch(index):
            raise InvalidRequest("query.startIndex: must be a whole number.")
        seen = int(index)
    elif event_id := request.headers.get("last-event-id"):
        journal, _, number = event_id.rpartition(":")
        if number != _END and not _INDEX.fullmatch(number):
            return None  # another server's
        return StreamPosition(check_id(journal, "the event's journal"), None if number == _END else int(number))
    else:
        seen = 0
    return StreamPosition(journal and check_id(journal, "the run's journal"), seen) if journal or seen else None


def _numbering(stream: "AnswerStream", seen: int) -> Callable[[bytes], Iterable[bytes]]:
    """Return what gives each event an id, with which an EventSource goes on when it reconnects by itself."""
    numbers = count(seen + 1)

    def numbered(frame: bytes) -> Iterable[bytes]:
        position = ""
        if frame == sse.DONE:
            position = f"{stream.journal_id or stream.message_id}:{_END}"
        elif stream.journal_id and frame.startswith(b"data: "):
            position = f"{stream.journal_id}:{next(numbers)}"
        return [frame[:-1] + f"id: {position}\n\n".encode() if position else frame]

    return numbered


async def decide(request: Request) -> Response:
    """Approve or deny a request, as any permitted approver. The turn continues in its own session, for its own user."""
    from omniagent.ai.approvals import ToolReply
    from omniagent.http.reply_bodies import Decision  # only when a request is decided

    application: Application = request.app.state.application
    caller = await find_caller(request)
    request_id = check_id(request.path_params["request_id"], "request id")
    body = await read_model(request, Decision)
    runner, message_id = await application.runner_of_request(request_id)
    reply = ToolReply(approved=body.approved, reason=body.reason, request_id=request_id)
    deadline = invocation_end.get()
    stream = await runner.reply(reply, message_id=message_id, approver=_approver(caller), deadline=deadline)
    # The decision is stored. The turn runs in this invocation, but the approver does not wait for it.
    return JSONResponse({"id": request_id, "approved": body.approved}, background=BackgroundTask(stream.ended))


def _approver(caller: Caller) -> "Approver":
    from omniagent.ai.approvals import Approver

    return Approver(caller.client_id, caller.category, caller.claims)


async def openapi(request: Request) -> Response:
    from omniagent.http.chat_docs import chat_openapi  # imports FastAPI, so only when a page is opened

    state = request.app.state
    return JSONResponse(chat_openapi(state.auth_mode, request.scope.get("root_path", "")))


async def docs(_: Request) -> HTMLResponse:
    from omniagent.http.chat_docs import chat_page

    return chat_page()


class OwnedRoute(Route):
    """Refuses other methods itself (405), although a server has mounted another app behind it."""

    def __init__(self, method: str, path: str, endpoint: Callable[[Request], object]) -> None:
        super().__init__(path, endpoint)
        self.methods = {method}  # Starlette would add HEAD

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        return (match if match is Match.NONE else Match.FULL), child_scope


def _document(result: "RunResult", *, sdk: int) -> dict[str, object]:
    """Return the stored answer as `chat_docs.ChatAnswer` describes it. An answer that was not stored is an error."""
    if not result.stored:
        raise result.error or StorageUnavailable
    message = ui_message(result.message_id, "assistant", result.parts, result.message.ui_metadata, sdk=sdk)
    output = {} if result.output is None else {"output": json_output(result.output)}
    return {"sessionId": result.session_id, "message": message, "text": result.text, "status": result.status, **output}
