"""The chat function: POST /chat streams an answer, GET /chat/{id}/stream picks a running one up."""

import time
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from omniagent import errors
from omniagent.aws.services import get_services
from omniagent.http.body import read_json
from omniagent.http.chat_request import chat_body_schema, read_chat_request
from omniagent.http.fastapi_app import WITH_BODY, CurrentCaller, ProcessServices, create_app, documented
from omniagent.http.stream_response import EventStream
from omniagent.lambda_runtime.asgi import streaming_handler
from omniagent.messages import Status
from omniagent.protocol.ui_messages import ui_message
from omniagent.session.identity import ID_PATTERN
from omniagent.turns.turn import RunResult, Turn
from project import project

app = create_app("OmniAgent chat", "Streams answers as the AI SDK's UI message stream.", get_services(project))

EVENTS: dict[str, Any] = {"text/event-stream": {}}


class ChatAnswer(BaseModel):
    """The whole answer, as `?stream=false` returns it."""

    sessionId: str  # noqa: N815 - the client's name, as in the stream
    message: dict[str, Any] = Field(description="A UIMessage of the AI SDK.")
    text: str
    status: Status


WHOLE: dict[str, Any] = {"application/json": {"schema": ChatAnswer.model_json_schema()}}


@app.post(
    "/chat",
    response_class=Response,
    responses=documented(
        errors.NotFound,
        errors.TurnInProgress,
        errors.NotRegenerable,
        errors.TooManyTurns,
        errors.RegistryUnavailable,
        *WITH_BODY,
    )
    | {
        200: {"description": "The AI SDK's UI message stream, v1; with `stream=false` JSON.", "content": EVENTS | WHOLE}
    },
    openapi_extra=chat_body_schema(),
)
async def chat(
    request: Request, caller: CurrentCaller, services: ProcessServices, stream: Annotated[bool, Query()] = True
) -> Response:
    """Answer a message. With `?stream=false` the whole answer comes as JSON."""
    asked = read_chat_request(await read_json(request, services.settings.max_body_bytes))
    runner = await services.runner(caller.client_id, asked.session_id, category=caller.category)
    deadline = _deadline(request)
    if not stream:
        return JSONResponse(_whole(await runner.run(asked.query, deadline=deadline)).model_dump())
    started = await runner.start(asked.query, deadline=deadline)
    finish = started.result if isinstance(started, Turn) else None
    return EventStream(started.frames(), session_id=runner.session.session_id, finish=finish)


@app.get(
    "/chat/{session_id}/stream",
    response_class=Response,
    responses=documented(errors.RegistryUnavailable)
    | {
        200: {"description": "The same stream, from its first event on.", "content": EVENTS},
        204: {"description": "Nothing is being answered."},
    },
)
async def resume(
    session_id: Annotated[str, Path(pattern=ID_PATTERN)], caller: CurrentCaller, services: ProcessServices
) -> Response:
    """Follow the running answer from its first event to its end."""
    runner = await services.runner(caller.client_id, session_id, category=caller.category)
    reading = await runner.resume()
    if reading is None:
        return Response(status_code=204)
    return EventStream(reading.frames(), session_id=runner.session.session_id)


def _deadline(request: Request) -> float | None:
    """The `time.monotonic()` at which Lambda ends this invocation."""
    context = request.scope.get("aws.context")
    if context is None:
        return None
    left: float = context.get_remaining_time_in_millis() / 1000
    return time.monotonic() + left


def _whole(result: RunResult) -> ChatAnswer:
    """The answer that was stored. One that was not is no answer: the stream would not have finished either."""
    if not result.stored:
        raise result.error or errors.StorageUnavailable
    message = ui_message(result.message_id, "assistant", result.parts, result.metadata)
    return ChatAnswer(sessionId=result.session_id, message=message, text=result.text, status=result.status)


handler = streaming_handler(app)
