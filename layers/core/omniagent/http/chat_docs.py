"""The chat function's OpenAPI document and its page. FastAPI writes them; it serves no request here."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from fastapi.openapi.docs import get_swagger_ui_html
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse, Response

from omniagent import errors
from omniagent.http.bodies import MessageBody, PlainBody, SdkBody
from omniagent.http.fields import ShownMessageJson, reference
from omniagent.http.openapi import PAID, DescribedApp, SdkVersion, described
from omniagent.http.reply_bodies import Decision, RepliedBody, RepliesBody
from omniagent.http.schemas import ANY_EVENT, event_schemas
from omniagent.messages import Status
from omniagent.session.ids import ID_PATTERN
from omniagent.settings import AuthMode

TITLE = "OmniAgent chat"
RUN_PATTERN = ID_PATTERN.removesuffix("$") + r"(?::[A-Za-z0-9_~-][A-Za-z0-9_.~-]{0,127})?$"
MOST_EVENTS = 999_999_999
ANSWERS = (errors.UnknownRequest, errors.NotWaiting, errors.ReplyConflict, errors.RequestExpired)
_EVENT_DATA = {"type": "string", "contentMediaType": "application/json", "contentSchema": reference(ANY_EVENT)}
EVENTS: dict[str, Any] = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "description": f"One event: its data is a `{ANY_EVENT}` as JSON. The last is `[DONE]`.",
            "properties": {"data": {"anyOf": [{"const": "[DONE]", "type": "string"}, _EVENT_DATA]}},
            "required": ["data"],
        }
    }
}

BODIES = (SdkBody, MessageBody, PlainBody, RepliedBody, RepliesBody)
_router = APIRouter(default_response_class=Response)


class ChatAnswer(BaseModel):
    """The complete answer, as `?stream=false` returns it."""

    sessionId: str  # noqa: N815 - the client's name, as in the stream
    message: ShownMessageJson
    text: str
    status: Status
    output: Any = Field(None, description="The validated answer of an agent with `output`. Absent without one.")


class AcceptedMessage(BaseModel):
    """The message is stored. The run function answers it."""

    sessionId: str  # noqa: N815 - the client's name, as in the stream
    messageId: str = Field(description="The user message's id. A retry with the same id is answered once.")  # noqa: N815
    stream: str = Field(description="Path of the answer's event stream.")


class Decided(BaseModel):
    """The decision is stored."""

    id: str
    approved: bool


@_router.post(
    "/chat",
    **described(
        errors.NotFound,
        errors.TurnInProgress,
        errors.NotRegenerable,
        *ANSWERS,
        errors.TooManyTurns,
        errors.QueueFull,
        errors.TooManyReaders,
        errors.NoRunQueue,
        *PAID,
        takes=BODIES,
        responses={
            200: {
                "description": "The AI SDK's UI message stream, version 1. JSON with `stream=false`.",
                # Generated clients read the first.
                "content": {"application/json": {"schema": reference(ChatAnswer.__name__)}, **EVENTS},
            },
            202: {
                "description": "With `background=true`: the message is stored and will be answered.",
                "model": AcceptedMessage,
            },
        },
    ),
)
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


@_router.get(
    "/chat/{session_id}/stream",
    **described(
        errors.TooManyReaders,
        errors.RegistryUnavailable,
        responses={
            200: {"description": "The answer's event stream, from its first event.", "content": EVENTS},
            204: {"description": "No answer is running, and none has just ended."},
        },
    ),
)
async def resume(
    session_id: Annotated[str, Path(pattern=RUN_PATTERN, description="The session's id, or an `x-workflow-run-id`.")],
    start_index: Annotated[
        int | None,
        Query(
            alias="startIndex",
            ge=-MOST_EVENTS,
            le=MOST_EVENTS,
            description="Skip so many events of the answer, also after it has ended. Negative: all but the last ones.",
        ),
    ] = None,
    last_event_id: Annotated[
        str | None, Header(description="The id of the last event that an EventSource has read.")
    ] = None,
    x_ai_sdk: SdkVersion = None,
) -> None:
    """Stream the running answer from its first event, or from a position in it.

    If the stream ends without `finish`, resume again.
    """


@_router.post(
    "/chat/approvals/{request_id}",
    **described(
        errors.TurnInProgress,
        *ANSWERS,
        errors.TooManyTurns,
        *PAID,
        takes=[Decision],
        responses={
            200: {
                "description": "The decision is stored. The turn continues if no other request is open.",
                "model": Decided,
            }
        },
    ),
)
async def decide(request_id: Annotated[str, Path(pattern=ID_PATTERN)]) -> None:
    """Approve or deny a waiting tool call, as any permitted approver. The turn continues for its own user."""


def chat_openapi(auth_mode: AuthMode, prefix: str) -> dict[str, Any]:
    """Return the OpenAPI document of the routes, which are served under a prefix."""
    description = "Streams answers as the AI SDK's UI message stream."
    app = DescribedApp(TITLE, description, (ChatAnswer, Decision, *BODIES), servers=[{"url": prefix or "/"}])
    app.state.auth_mode = auth_mode
    app.include_router(_router)
    document = app.openapi()
    document["components"]["schemas"] |= event_schemas()
    return document


def chat_page() -> HTMLResponse:
    """Return Swagger UI for the document beside the page."""
    return get_swagger_ui_html(openapi_url="openapi.json", title=f"{TITLE} - Swagger UI")
