"""The chat function's OpenAPI document and its page. FastAPI writes them; it serves no request here."""

from typing import Annotated, Any

from fastapi import Header, Path, Query
from fastapi.openapi.docs import get_swagger_ui_html
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse, Response

from omniagent import errors
from omniagent.http.decisions import Decision
from omniagent.http.documented import PAID, WITH_BODY, documented
from omniagent.http.fastapi_app import bare_app
from omniagent.http.request_body import body_schema, chat_body_schema
from omniagent.messages import Status
from omniagent.session.manager import ID_PATTERN
from omniagent.settings import Settings

TITLE = "OmniAgent chat"
ANSWERS = (errors.UnknownRequest, errors.NotWaiting, errors.AnswerConflict, errors.RequestExpired)
EVENTS: dict[str, Any] = {"text/event-stream": {}}


class ChatAnswer(BaseModel):
    """The complete answer, as `?stream=false` returns it."""

    sessionId: str  # noqa: N815 - the client's name, as in the stream
    message: dict[str, Any] = Field(description="A UIMessage of the AI SDK.")
    text: str
    status: Status


SdkVersion = Annotated[
    str | None,
    Header(
        description="`7` for chunks that only version 7 of the AI SDK knows: `steering-message`, "
        "`tool-approval-response`, `reset-step`. `5` for none that 5 does not know: a `data-approval-request` for "
        "`tool-approval-request`, an error for `tool-output-denied`."
    ),
]


class AcceptedMessage(BaseModel):
    """The message is durable. The run function answers it."""

    sessionId: str  # noqa: N815 - the client's name, as in the stream
    messageId: str = Field(description="The user's message. Send it with the same id again: it is answered once.")  # noqa: N815
    stream: str = Field(description="Where the answer is streamed, from its first event on.")


async def chat(
    stream: Annotated[bool, Query()] = True,
    background: Annotated[bool, Query()] = False,
    x_ai_sdk: SdkVersion = None,
) -> None:
    """Answer a message, or go on with an answer that waits. `?stream=false` returns the complete answer as JSON.
    `?background=true` returns 202 at once: the message is stored, and answered without this request.

    `busy` in the body says what to do while the session answers another message: `reject` (409), `queue` (it is
    answered after that one), `steer` (it joins that answer before its next model call) or `interrupt` (that answer is
    ended with what it has). A message that waits has been stored when the stream starts, with comments.
    """


async def resume(session_id: Annotated[str, Path(pattern=ID_PATTERN)], x_ai_sdk: SdkVersion = None) -> None:
    """Follow the running answer from its first event. A stream that ends without `finish` is to be resumed."""


async def decide(request_id: Annotated[str, Path(pattern=ID_PATTERN)]) -> None:
    """Approve or deny a call that waits, as whoever may. The turn goes on for whoever asked."""


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
            errors.InboxFull,
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
            200: {"description": "The same stream, from its first event on.", "content": EVENTS},
            204: {"description": "Nothing is being answered, or has been a moment ago."},
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
                "description": "The decision is stored, and the turn goes on if nothing else is asked.",
                "content": {"application/json": {"schema": Decided.model_json_schema()}},
            }
        },
        openapi_extra=body_schema(Decision),
    )
    return app.openapi()


def chat_page() -> HTMLResponse:
    """Return Swagger UI for the document at /openapi.json."""
    return get_swagger_ui_html(openapi_url="/openapi.json", title=f"{TITLE} - Swagger UI")
