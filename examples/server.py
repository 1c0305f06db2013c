"""A plain FastAPI server with OmniAgent as a library, without any AWS.

    .venv/bin/python -m examples.server 8080
    curl -N http://127.0.0.1:8080/chat -H 'content-type: application/json' -d '{"session_id": "demo", "query": "Hello"}'

SIGTERM and Ctrl-C end the running turns in order: what was streamed is stored before the process ends. A turn of a
server that was killed is finished by the next one that runs.
MONGODB_URI, OPENAI_API_KEY and OPENAI_BASE_URL are used when they are set; `local_services` starts what is not.
"""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from examples.local_services import local_services
from omniagent import (
    Agent,
    AnswerStream,
    MongoBackendAdapter,
    MongoSessionManager,
    MongoTurnRegistry,
    OmniAgentError,
    Query,
    Runner,
    TurnWatcher,
)

HEADERS = {"cache-control": "no-store", "x-vercel-ai-ui-message-stream": "v1"}

agent = Agent("example", "You are a helpful assistant. Be brief.")


class Question(BaseModel):
    session_id: str
    query: str
    message_id: str = ""
    """The same id again joins or replays the answer instead of asking the model twice."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    adapter = MongoBackendAdapter()
    async with adapter as store:
        adapter.end_turns_on(signal.SIGTERM, signal.SIGINT)
        app.state.store = store
        app.state.registry = MongoTurnRegistry(store)
        async with TurnWatcher(store, app.state.registry, lambda at: runner(app, at.user, at.session_id)):
            yield


app = FastAPI(lifespan=lifespan)


def current_user(x_user_id: Annotated[str, Header()] = "you") -> str:
    """Return who is calling. Use your own authentication here."""
    return x_user_id


User = Annotated[str, Depends(current_user)]


@app.post("/chat")
async def chat(question: Question, user: User, request: Request) -> Response:
    stream = await runner(request.app, user, question.session_id).start(Query(question.query, question.message_id))
    return streamed(stream)


@app.get("/chat/{session_id}/stream")
async def resume(session_id: str, user: User, request: Request) -> Response:
    stream = await runner(request.app, user, session_id).resume()
    return Response(status_code=204) if stream is None else streamed(stream)


@app.post("/sessions/{session_id}/cancel", status_code=202)
async def cancel(session_id: str, user: User, request: Request, message_id: str | None = None) -> dict[str, bool]:
    return {"stopped": await runner(request.app, user, session_id).stop(message_id)}


def runner(app: FastAPI, user: str, session_id: str) -> Runner:
    session = MongoSessionManager(app.state.store, user, session_id)
    return Runner(agent, session, registry=app.state.registry)


def streamed(stream: AnswerStream) -> Response:
    return StreamingResponse(stream.sse(), media_type="text/event-stream", headers=HEADERS)


@app.exception_handler(OmniAgentError)
async def refuse(_: Request, error: OmniAgentError) -> Response:
    """A refusal comes before the stream begins. `public` is the text that a caller may see."""
    content = {"title": error.title, "status": error.status, "detail": error.public, "code": error.code}
    return JSONResponse(content, error.status, media_type="application/problem+json")


if __name__ == "__main__":
    with local_services():
        uvicorn.run(app, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8080)
