"""The sessions function's app: everything about a chat except the answer."""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from fastapi import APIRouter, Depends, FastAPI, Path, Query
from fastapi.exceptions import RequestValidationError
from pydantic import StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from omniagent import errors
from omniagent.ai.approvals import Approver, may_reply, requests_of
from omniagent.app.application import Application
from omniagent.http.auth import Authenticate, Caller, find_caller
from omniagent.http.bodies import read_model
from omniagent.http.fields import LINE_PATTERN
from omniagent.http.openapi import PAID, DescribedApp, SdkVersion, described
from omniagent.http.resources import (
    Accepted,
    ApprovalList,
    ApprovalResource,
    FeedbackResource,
    LimitUsage,
    MessageList,
    MessageTree,
    NewBranch,
    NewFeedback,
    NewName,
    NewSession,
    SessionList,
    SessionResource,
    StopRequest,
    SummaryResource,
    UsageResource,
)
from omniagent.http.serving import serve
from omniagent.invocation import time_left
from omniagent.persistence.catalog import Catalog, waiting_cursor
from omniagent.persistence.documents import Session
from omniagent.protocol.ui_messages import DEFAULT_SDK, SDK_VERSIONS
from omniagent.session.ids import ID_PATTERN, session_key, user_id_of
from omniagent.session.live import SessionMessage
from omniagent.session.manager import SessionAddress, SessionManager
from omniagent.validation import problems_of

if TYPE_CHECKING:
    from omniagent.ai.operator import TurnOperator

MessageId = Annotated[str, Path(pattern=ID_PATTERN)]
MAX_APPROVAL_PAGES = 10
"""Of 100 waiting turns each. Older ones are listed once newer ones are answered."""
MAX_LISTED_PER_USER = 20
"""Waiting turns of one user in a list: nobody can fill the lists of all approvers."""
Search = Annotated[str, StringConstraints(max_length=100, pattern=LINE_PATTERN)]

router = APIRouter()


async def process_application(request: Request) -> Application:
    application: Application = request.app.state.application
    return application


ProcessApplication = Annotated[Application, Depends(process_application)]
CurrentCaller = Annotated[Caller, Depends(find_caller)]
SessionId = Annotated[str, Path(pattern=ID_PATTERN)]


async def _catalog(application: ProcessApplication) -> Catalog:
    return Catalog(await application.store())


SessionCatalog = Annotated[Catalog, Depends(_catalog)]


async def _own_key(session_id: SessionId, caller: CurrentCaller) -> str:
    return session_key(user_id_of(caller.client_id), session_id)


OwnKey = Annotated[str, Depends(_own_key)]
"""The key of the session in the path, as one of the caller's."""


async def _own_session(key: OwnKey, catalog: SessionCatalog) -> Session:
    return await catalog.get(key)


OwnSession = Annotated[Session, Depends(_own_session)]
"""The caller's session in the path. A request for any other raises `NotFound`."""


async def _own_runner(session_id: SessionId, caller: CurrentCaller, application: ProcessApplication) -> "TurnOperator":
    return await application.runner(caller.client_id, session_id, category=caller.category)


OwnRunner = Annotated["TurnOperator", Depends(_own_runner)]
"""The runner of the caller's session in the path, which need not exist yet."""


def sessions_app(application: Application, *, authenticate: Authenticate | None = None) -> FastAPI:
    """Return the app of the sessions function. `authenticate` as in `chat_app`."""
    is_documented = application.settings.docs_enabled
    app = DescribedApp(
        "OmniAgent sessions",
        "Lists, reads, renames, stops and deletes a user's chats. This page loads its scripts from a CDN.",
        bodies=(NewSession, NewName, NewFeedback, StopRequest, NewBranch),
        docs_url="/docs" if is_documented else None,
        openapi_url="/openapi.json" if is_documented else None,
    )
    serve(app, application, authenticate)
    app.add_exception_handler(RequestValidationError, _raise_invalid)
    app.include_router(router)
    return app


async def _raise_invalid(_: Request, exc: Any) -> NoReturn:
    raise errors.InvalidRequest(problems_of(exc)) from None


@router.post(
    "/sessions",
    status_code=201,
    **described(
        errors.SessionErased,
        errors.TooManyRequests,
        errors.RegistryUnavailable,
        takes=[NewSession],
        needs_body=False,
        responses={200: {"model": SessionResource, "description": "The session already exists."}},
    ),
)
async def create_session(
    request: Request,
    response: Response,
    caller: CurrentCaller,
    application: ProcessApplication,
    catalog: SessionCatalog,
) -> SessionResource:
    """Create a session. If the id exists, return the existing session."""
    body = await read_model(request, NewSession, default={})
    await application.count_request(caller.client_id, caller.category)
    session = await application.session(caller.client_id, body.id, category=caller.category)
    agent = await application.project.name_agent(caller.client_id, caller.category, body.agent) if body.agent else None
    created, is_new = await catalog.create(session, body.name, agent)
    response.status_code = 201 if is_new else 200
    return SessionResource.of(created)


@router.get("/sessions", **described(errors.TooManyRequests, errors.TooManyReaders, errors.RegistryUnavailable))
async def list_sessions(
    caller: CurrentCaller,
    application: ProcessApplication,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    before: Annotated[str | None, Query(max_length=256, description="`before` of the previous page.")] = None,
    search: Annotated[Search | None, Query(description="Text to find in the session's name or messages.")] = None,
) -> SessionList:
    """List the caller's sessions, most recently used first. A search counts as a request of the caller's budget."""
    user_id = user_id_of(caller.client_id)
    catalog = Catalog(await application.store())
    if not search:
        return SessionList.of(await catalog.list_page(user_id, limit=limit, before=before), {})
    await application.count_request(caller.client_id, caller.category)
    async with application.one_search(caller.client_id):
        page = await catalog.list_page(user_id, limit=limit, before=before, search=search)
        found = [session.id for session in page.items]
        return SessionList.of(page, await catalog.snippets(found, search))


@router.get("/sessions/{session_id}", **described(errors.NotFound))
async def get_session(session: OwnSession) -> SessionResource:
    """Read a session."""
    return SessionResource.of(session)


@router.patch("/sessions/{session_id}", **described(errors.NotFound, takes=[NewName]))
async def rename_session(key: OwnKey, request: Request, catalog: SessionCatalog) -> SessionResource:
    """Rename a session."""
    body = await read_model(request, NewName)
    return SessionResource.of(await catalog.rename(key, body.name))


@router.delete("/sessions/{session_id}", status_code=204, **described(errors.NotFound))
async def delete_session(runner: OwnRunner) -> None:
    """Delete a session and all its messages. A running turn is discarded."""
    await runner.erase_session(time_left)


@router.get("/sessions/{session_id}/messages", **described(errors.NotFound))
async def list_messages(
    session: OwnSession,
    catalog: SessionCatalog,
    limit: Annotated[int, Query(ge=2, le=100, description="Maximum number of messages. Turns are not split.")] = 50,
    before: Annotated[int | None, Query(ge=1, le=2**31, description="Return the turns before this number.")] = None,
    *,
    branch: Annotated[str | None, Query(pattern=ID_PATTERN, description="Return the path to this node.")] = None,
    x_ai_sdk: SdkVersion = None,
) -> MessageList:
    """List the messages of the active path in the format of `useChat`: the newest turns, or those before a given turn.

    `metadata.siblings` of a message that was edited or answered again says which one of them it is.
    """
    page, summary = await asyncio.gather(
        catalog.messages_page(session, limit=limit, before=before, branch=branch), catalog.latest_summary(session)
    )
    summarized_to = summary.end_turn_number if summary is not None else None
    return MessageList.of(session.id, page, summarized_to, sdk=SDK_VERSIONS.get(x_ai_sdk, DEFAULT_SDK))


@router.get("/sessions/{session_id}/tree", **described(errors.NotFound))
async def list_tree(
    session: OwnSession,
    catalog: SessionCatalog,
    limit: Annotated[int, Query(ge=1, le=200)] = 100,
    after: Annotated[str | None, Query(max_length=32, description="`after` of the previous page.")] = None,
    *,
    x_ai_sdk: SdkVersion = None,
) -> MessageTree:
    """List the messages of all branches, each after its parent."""
    leaf, page = await catalog.tree_page(session, limit=limit, after=after)
    return MessageTree.of(session.id, leaf, page, sdk=SDK_VERSIONS.get(x_ai_sdk, DEFAULT_SDK))


@router.put("/sessions/{session_id}/branch", **described(errors.NotFound, errors.TurnInProgress, takes=[NewBranch]))
async def switch_branch(key: OwnKey, request: Request, runner: OwnRunner, catalog: SessionCatalog) -> SessionResource:
    """Make the path through a message the active one, down to the end of its newest branch."""
    body = await read_model(request, NewBranch)
    await runner.switch(body.node_id)
    return SessionResource.of(await catalog.get(key))


@router.delete(
    "/sessions/{session_id}/messages/{message_id}", status_code=204, **described(errors.NotFound, errors.TurnInProgress)
)
async def delete_message(
    session: OwnSession, message_id: MessageId, runner: OwnRunner, catalog: SessionCatalog
) -> None:
    """Delete one message. A summary that mentions it does not change until it is rebuilt.

    Deleting a waiting answer withdraws its requests.
    """
    try:
        await runner.withdraw(message_id)
        await catalog.delete_message(session.id, message_id)
    finally:
        # Also if it fails: it may be deleted all the same, or an earlier request deleted it and could not wake.
        await runner.wake()


@router.put("/sessions/{session_id}/messages/{message_id}/feedback", **described(errors.NotFound, takes=[NewFeedback]))
async def rate_answer(message_id: MessageId, request: Request, runner: OwnRunner) -> FeedbackResource:
    """Store the user's feedback on an answer, replacing any earlier feedback."""
    body = await read_model(request, NewFeedback)
    return FeedbackResource.of(await runner.rate(message_id, body.feedback()))


@router.delete("/sessions/{session_id}/messages/{message_id}/feedback", status_code=204, **described(errors.NotFound))
async def delete_feedback(message_id: MessageId, runner: OwnRunner) -> None:
    """Delete the feedback on an answer, if there is any."""
    await runner.rate(message_id, None)


@router.post(
    "/sessions/{session_id}/cancel",
    status_code=202,
    **described(
        errors.NotFound, errors.NoRunningTurn, errors.RegistryUnavailable, takes=[StopRequest], needs_body=False
    ),
)
async def cancel_turn(key: OwnKey, request: Request, runner: OwnRunner, catalog: SessionCatalog) -> Accepted:
    """Stop the running turn and all queued messages, and close a turn that waits for an approval or a client tool.

    The text streamed so far is kept. With `message_id`, stop only the turn of that message: the running turn, a queued
    one, or the one that the message has joined.
    """
    body = await read_model(request, StopRequest, default={})
    if not await runner.stop(body.message_id):
        await catalog.get(key)
        raise errors.NoRunningTurn
    return Accepted(session_id=runner.session_id, accepted="cancel")


@router.post("/sessions/{session_id}/name", **described(errors.NotFound, errors.ModelError, *PAID))
async def name_session_by_model(key: OwnKey, runner: OwnRunner, catalog: SessionCatalog) -> SessionResource:
    """Have the model name the session. If the user sets a name meanwhile, the user's name is kept."""
    await runner.name()
    return SessionResource.of(await catalog.get(key))


@router.get("/sessions/{session_id}/summary", **described(errors.NotFound))
async def get_summary(session: OwnSession, catalog: SessionCatalog) -> SummaryResource:
    """Read the newest summary."""
    summary = await catalog.latest_summary(session)
    if summary is None:
        raise errors.NotFound("There is no such session, or it has no summary yet.")
    return SummaryResource.model_validate(summary, from_attributes=True)


@router.post(
    "/sessions/{session_id}/summary",
    status_code=202,
    **described(
        errors.NotFound,
        errors.QueueUnavailable,
        errors.NoQueue,
        *PAID,
        responses={200: {"model": Accepted, "description": "The summary is up to date. Nothing was queued."}},
    ),
)
async def queue_summary(
    session: OwnSession,
    response: Response,
    runner: OwnRunner,
    application: ProcessApplication,
    catalog: SessionCatalog,
    *,
    rebuild: Annotated[bool, Query(description="Rebuild the summary from the first turn.")] = False,
) -> Accepted:
    """Update the summary in the background. Nothing is queued if a job is already queued or nothing would change."""
    if application.platform.summary_queue is None:
        raise errors.NoQueue
    if await catalog.summary_is_current(session, rebuild=rebuild):
        response.status_code = 200
        return Accepted(session_id=runner.session_id, accepted="unchanged")
    await runner.count_request()
    is_new = await application.queue_summary(session.id, rebuild=rebuild)
    return Accepted(session_id=runner.session_id, accepted="summary" if is_new else "queued")


@router.get("/approvals", **described())
async def list_approvals(
    caller: CurrentCaller,
    application: ProcessApplication,
    catalog: SessionCatalog,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    before: Annotated[str | None, Query(max_length=256, description="`before` of the previous page.")] = None,
) -> ApprovalList:
    """List the requests that the caller may answer: in their own sessions, and for others if the project permits it."""
    # Without `approvers`, nobody approves for others, so only the caller's own sessions are read.
    user_id = None if application.project.approvers is not None else user_id_of(caller.client_id)
    found: list[ApprovalResource] = []
    listed, of_user = 0, Counter[str]()
    for _ in range(MAX_APPROVAL_PAGES):
        page = await catalog.waiting_page(user_id, limit=100, before=before)
        askers = await catalog.askers([key for key, _ in page.items])
        for key, answer in (each for each in page.items if each[0] in askers):
            of_user[askers[key].user] += 1
            if of_user[askers[key].user] > MAX_LISTED_PER_USER:
                continue
            if requests := await _requests_for(application, caller, askers[key], answer):
                found += requests
                listed += 1
            if listed == limit:
                return ApprovalList(approvals=found, before=waiting_cursor(answer).encode())
        before = page.before
        if before is None:
            break
    # The cursor of a turn that the caller may not see would say that there is one.
    return ApprovalList(approvals=found, before=None)


@router.get("/usage", **described(errors.RegistryUnavailable))
async def get_usage(caller: CurrentCaller, application: ProcessApplication) -> UsageResource:
    """Read the caller's limits and usage. Without a limit, nothing is counted."""
    runner = await application.runner(caller.client_id, None, category=caller.category)
    usage = UsageResource.of(runner.budget, await runner.spending())
    agents = {name: LimitUsage.of(*spent) for name, spent in (await runner.agent_spending()).items()}
    return usage.model_copy(update={"agents": agents})


@router.delete("/users/me", status_code=204, **described())
async def delete_me(caller: CurrentCaller, application: ProcessApplication) -> None:
    """Delete the user and all their sessions."""
    runner = await application.runner(caller.client_id, None, category=caller.category)
    await runner.erase_user(time_left)


async def _requests_for(
    application: Application, caller: Caller, address: SessionAddress, answer: SessionMessage
) -> list[ApprovalResource]:
    """Return a waiting answer's requests that the caller may answer. Those that have expired are left out."""
    if answer.waiting_until is not None and answer.waiting_until <= SessionManager.now():
        return []
    approver, is_own = Approver(caller.client_id, caller.category, caller.claims), address.user == caller.client_id
    return [
        ApprovalResource.of(request, is_own=is_own)
        for request in requests_of(answer, user=address.user, category=address.category, session_id=address.session_id)
        if await may_reply(application.project.approvers, approver, request)
    ]
