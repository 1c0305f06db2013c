"""The chat function's OpenAPI document and its page. FastAPI writes them; it serves no request here."""

from typing import Annotated, Any

from fastapi import Header, Path, Query
from fastapi.openapi.docs import get_swagger_ui_html
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse, Response

from omniagent import errors
from omniagent.http.chat_bodies import MessageBody, PlainBody, SdkBody
from omniagent.http.decisions import Decision
from omniagent.http.documented import PAID, WITH_BODY, body_schema, documented, inlined
from omniagent.http.fastapi_app import bare_app
from omniagent.http.reply_bodies import RepliedBody, RepliesBody
from omniagent.messages import Status
from omniagent.session.ids import ID_PATTERN
from omniagent.settings import Settings

TITLE = "OmniAgent chat"
ANSWERS = (errors.UnknownRequest, errors.NotWaiting, errors.ReplyConflict, errors.RequestExpired)
EVENTS: dict[str, Any] = {"text/event-stream": {}}


class ChatAnswer(BaseModel):
    """The complete answer, as `?stream=false` returns it."""

    sessionId: str  # noqa: N815 - the client's name, as in the stream
    message: dict[str, Any] = Field(description="A UIMessage of the AI SDK.")
    text: str
    status: Status
    output: Any = Field(None, description="The validated answer of an agent with `output`. Absent without one.")


SdkVersion = Annotated[
    str | None,
    Header(
        description="`7` enables chunks that only AI SDK 7 accepts: `steering-message`, `tool-approval-response`, "
        "`reset-step`. `5` replaces the chunks that AI SDK 5 rejects: `tool-approval-request` becomes "
        "`data-approval-request`, and `tool-output-denied` becomes an error."
    ),
]


class AcceptedMessage(BaseModel):
    """The message is stored. The run function answers it."""

    sessionId: str  # noqa: N815 - the client's name, as in the stream
    messageId: str = Field(description="The user message's id. A retry with the same id is answered once.")  # noqa: N815
    stream: str = Field(description="Path of the answer's event stream.")


async def chat(
    stream: Annotated[bool, Query()] = True,
    background: Annotated[bool, Query()] = False,
    x_ai_sdk: SdkVersion = None,
) -> None:
    """Send a message and stream the answer, or continue a waiting turn.

    `?stream=false` returns the complete answer as JSON. `?background=true` stores the message, returns 202 at once and
    answers it in the background.

    `busy` in the body applies while the session is answering another message. `reject` returns 409. `queue` answers
    this message afterwards. `steer` adds it to the running answer before its next model call. `interrupt` stops the
    running answer, keeps its text, and then answers this message. A queued message is stored before its stream starts;
    the stream carries comments while it waits.
    """


async def resume(session_id: Annotated[str, Path(pattern=ID_PATTERN)], x_ai_sdk: SdkVersion = None) -> None:
    """Stream the running answer from its first event. If the stream ends without `finish`, resume again."""


async def decide(request_id: Annotated[str, Path(pattern=ID_PATTERN)]) -> None:
    """Approve or deny a waiting tool call, as any permitted approver. The turn continues for its own user."""


class Decided(BaseModel):
    """The decision is stored."""

    id: str
    approved: bool


def chat_openapi(settings: Settings) -> dict[str, Any]:
    """Return the OpenAPI document of the routes."""
    app = bare_app(TITLE, "Streams answers as the AI SDK's UI message stream.", settings)
    answer = {"application/json": {"schema": ChatAnswer.model_json_schema()}}
    app.add_api_route(
        "/chat",
        chat,
        methods=["POST"],
        response_class=Response,
        responses=documented(
            errors.NotFound,
            errors.TurnInProgress,
            errors.NotRegenerable,
            *ANSWERS,
            errors.TooManyTurns,
            errors.QueueFull,
            errors.TooManyReaders,
            errors.NoRunQueue,
            *PAID,
            *WITH_BODY,
        )
        | {
            200: {
                "description": "The AI SDK's UI message stream, version 1. JSON with `stream=false`.",
                "content": EVENTS | answer,
            },
            202: {
                "description": "With `background=true`: the message is stored and will be answered.",
                "content": {"application/json": {"schema": AcceptedMessage.model_json_schema()}},
            },
        },
        openapi_extra=chat_body_schema(),
    )
    app.add_api_route(
        "/chat/{session_id}/stream",
        resume,
        methods=["GET"],
        response_class=Response,
        responses=documented(errors.TooManyReaders, errors.RegistryUnavailable)
        | {
            200: {"description": "The answer's event stream, from its first event.", "content": EVENTS},
            204: {"description": "No answer is running, and none has just ended."},
        },
    )
    app.add_api_route(
        "/chat/approvals/{request_id}",
        decide,
        methods=["POST"],
        response_class=Response,
        responses=documented(errors.TurnInProgress, *ANSWERS, errors.TooManyTurns, *PAID, *WITH_BODY)
        | {
            200: {
                "description": "The decision is stored. The turn continues if no other request is open.",
                "content": {"application/json": {"schema": Decided.model_json_schema()}},
            }
        },
        openapi_extra=body_schema(Decision),
    )
    return app.openapi()


def chat_page() -> HTMLResponse:
    """Return Swagger UI for the document at /openapi.json."""
    return get_swagger_ui_html(openapi_url="/openapi.json", title=f"{TITLE} - Swagger UI")


def chat_body_schema() -> dict[str, Any]:
    """Describe the body for OpenAPI."""
    kinds = [inlined(kind.model_json_schema()) for kind in (SdkBody, MessageBody, PlainBody, RepliedBody, RepliesBody)]
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": {"anyOf": kinds}}}}}
