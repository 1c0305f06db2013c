"""The sessions function: everything about a chat but the answer."""

from typing import Annotated

from fastapi import Path, Query
from pydantic import StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from omniagent import errors
from omniagent.aws.services import Services, get_services
from omniagent.http.auth import Caller
from omniagent.http.body import body_schema, read_model
from omniagent.http.fastapi_app import WITH_BODY, CurrentCaller, ProcessServices, create_app, documented
from omniagent.http.resources import (
    LINE_PATTERN,
    Accepted,
    MessageList,
    NewName,
    NewSession,
    SessionList,
    SessionResource,
    SummaryResource,
)
from omniagent.lambda_runtime.asgi import buffered_handler
from omniagent.persistence.documents import Session
from omniagent.session.identity import ID_PATTERN, session_key, user_id_of
from omniagent.session.naming import name_session
from omniagent.turns.repair import repair_for_reading
from project import project

SessionId = Annotated[str, Path(pattern=ID_PATTERN)]
MessageId = Annotated[str, Path(pattern=ID_PATTERN)]
Search = Annotated[str, StringConstraints(max_length=100, pattern=LINE_PATTERN)]

app = create_app(
    "OmniAgent sessions",
    "A user's chats: list, read, rename, stop and delete them. The page itself needs the internet for its scripts.",
    get_services(project),
)


@app.post(
    "/sessions",
    status_code=201,
    responses=documented(*WITH_BODY) | {200: {"model": SessionResource, "description": "It was there already."}},
    openapi_extra=body_schema(NewSession, required=False),
)
async def create_session(
    request: Request, response: Response, caller: CurrentCaller, services: ProcessServices
) -> SessionResource:
    """Make a session. The same id again returns the session that has it."""
    asked = await read_model(request, NewSession, services.settings.max_body_bytes, default={})
    session = await services.session(caller.client_id, asked.id, category=caller.category)
    made, is_new = await (await services.catalog()).create(session, asked.name)
    response.status_code = 201 if is_new else 200
    return SessionResource.of(made)


@app.get("/sessions", responses=documented())
async def list_sessions(
    caller: CurrentCaller,
    services: ProcessServices,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    before: Annotated[str | None, Query(max_length=256)] = None,
    search: Annotated[Search | None, Query(description="A part of the name.")] = None,
) -> SessionList:
    """List the sessions, the most recently used first."""
    catalog = await services.catalog()
    page = await catalog.list_page(user_id_of(caller.client_id), limit=limit, before=before, search=search)
    return SessionList.of(page)


@app.get("/sessions/{session_id}", responses=documented(errors.NotFound))
async def get_session(session_id: SessionId, caller: CurrentCaller, services: ProcessServices) -> SessionResource:
    return SessionResource.of(await _repaired(services, caller, session_id))


@app.patch(
    "/sessions/{session_id}",
    responses=documented(errors.NotFound, *WITH_BODY),
    openapi_extra=body_schema(NewName),
)
async def rename_session(
    session_id: SessionId, request: Request, caller: CurrentCaller, services: ProcessServices
) -> SessionResource:
    asked = await read_model(request, NewName, services.settings.max_body_bytes)
    return SessionResource.of(await (await services.catalog()).rename(_key(caller, session_id), asked.name))


@app.delete(
    "/sessions/{session_id}", status_code=204, responses=documented(errors.NotFound, errors.RegistryUnavailable)
)
async def delete_session(session_id: SessionId, caller: CurrentCaller, services: ProcessServices) -> None:
    """Delete a session with everything in it. A running turn is lost."""
    key = _key(caller, session_id)
    # The turn first: should this fail, the session is still there to be deleted again.
    await services.registry.erase(key)
    await (await services.catalog()).delete(key)


@app.get("/sessions/{session_id}/messages", responses=documented(errors.NotFound))
async def list_messages(
    session_id: SessionId,
    caller: CurrentCaller,
    services: ProcessServices,
    limit: Annotated[int, Query(ge=2, le=100, description="Messages at most; only whole turns are returned.")] = 50,
    before: Annotated[int | None, Query(ge=1, le=2**31, description="A turn's number.")] = None,
) -> MessageList:
    """Read the newest turns, or those before a given one, as messages that `useChat` takes."""
    session = await _repaired(services, caller, session_id)
    return MessageList.of(await (await services.catalog()).messages_page(session.id, limit=limit, before=before))


@app.delete(
    "/sessions/{session_id}/messages/{message_id}",
    status_code=204,
    responses=documented(errors.NotFound, errors.TurnInProgress),
)
async def delete_message(
    session_id: SessionId, message_id: MessageId, caller: CurrentCaller, services: ProcessServices
) -> None:
    """Delete one message. What a summary tells of it stays until the summary is rebuilt."""
    await (await services.catalog()).delete_message(_key(caller, session_id), message_id)


@app.post(
    "/sessions/{session_id}/cancel",
    status_code=202,
    responses=documented(errors.NotFound, errors.NoRunningTurn, errors.RegistryUnavailable),
)
async def cancel_turn(session_id: SessionId, caller: CurrentCaller, services: ProcessServices) -> Accepted:
    """Tell the running turn to stop. What it has answered so far is kept."""
    key = _key(caller, session_id)
    # Asked first: a session's very first turn runs a moment before the session is stored.
    if not await services.registry.stop(key):
        await (await services.catalog()).get(key)
        raise errors.NoRunningTurn
    return Accepted(session_id=session_id, accepted="cancel")


@app.post("/sessions/{session_id}/name", responses=documented(errors.NotFound))
async def name_session_by_model(
    session_id: SessionId, caller: CurrentCaller, services: ProcessServices
) -> SessionResource:
    """Let the model name the session. A name that somebody chooses meanwhile stands."""
    session = await services.session(caller.client_id, session_id)
    catalog = await services.catalog()
    was = (await catalog.get(session.key)).name
    name = await name_session(services.name_provider(), await session.load(), services.settings)
    await session.rename(name, was=was)
    return SessionResource.of(await catalog.get(session.key))


@app.get("/sessions/{session_id}/summary", responses=documented(errors.NotFound))
async def get_summary(session_id: SessionId, caller: CurrentCaller, services: ProcessServices) -> SummaryResource:
    summary = await (await services.catalog()).latest_summary(_key(caller, session_id))
    if summary is None:
        raise errors.NotFound("There is no such session, or it has no summary yet.")
    return SummaryResource.of(summary)


@app.post(
    "/sessions/{session_id}/summary",
    status_code=202,
    responses=documented(errors.NotFound, errors.QueueUnavailable, errors.NoQueue),
)
async def queue_summary(
    session_id: SessionId,
    caller: CurrentCaller,
    services: ProcessServices,
    rebuild: Annotated[bool, Query(description="Write it anew from the first turn on.")] = False,
) -> Accepted:
    """Have the summary brought up to date soon."""
    session = await (await services.catalog()).get(_key(caller, session_id))
    await services.queue_summary(session.id, rebuild=rebuild)
    return Accepted(session_id=session_id, accepted="summary")


@app.delete("/users/me", status_code=204, responses=documented(errors.RegistryUnavailable))
async def delete_me(caller: CurrentCaller, services: ProcessServices) -> None:
    """Delete the user with all their sessions."""
    catalog = await services.catalog()
    user_id = user_id_of(caller.client_id)
    for key in await catalog.session_keys(user_id):
        await services.registry.erase(key)
    await catalog.delete_user(user_id)


async def _repaired(services: Services, caller: Caller, session_id: str) -> Session:
    """Read a session. Should the process of its last turn have died, the turn is closed first."""
    session = await services.session(caller.client_id, session_id)
    catalog = await services.catalog()
    found = await catalog.get(session.key)
    if await repair_for_reading(session, services.registry, found.active_turn_id):
        return await catalog.get(session.key)
    return found


def _key(caller: Caller, session_id: str) -> str:
    return session_key(user_id_of(caller.client_id), session_id)


handler = buffered_handler(app)
