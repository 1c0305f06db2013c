"""A server with OmniAgent's HTTP API and an authentication of its own, without any AWS.

    .venv/bin/python -m examples.server 8080
    curl -N http://127.0.0.1:8080/chat -H 'content-type: application/json' -d '{"session_id": "demo", "query": "Hello"}'

It has chat, resume, stop, history, sessions and approvals, as the functions on Lambda do; /docs and /chat/docs describe
them.
SIGTERM and Ctrl-C end the running turns in order: what was streamed is stored before the process ends. A turn of a
server that was killed is finished by the next one that runs.
MONGODB_URI, OPENAI_API_KEY and OPENAI_BASE_URL are used when they are set; `local_services` starts what is not.
"""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request

from examples.local_services import local_services
from omniagent import Agent, Project, tool
from omniagent.server import Application, Caller, chat_app, sessions_app


@tool(approval=True)
async def refund(order_id: str) -> str:
    """Refund an order. A human approves it first."""
    return f"Order {order_id} is refunded."


project = Project(agent=Agent("example", "You are a helpful assistant. Be brief.", [refund]))


async def current_user(request: Request) -> Caller:
    """Return who is calling. Use your own authentication here."""
    return Caller(request.headers.get("x-user-id", "you"))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    application = Application(project)
    api = chat_app(application, authenticate=current_user)
    api.mount("/", sessions_app(application, authenticate=current_user))
    app.mount("/", api)  # last, behind routes of your own
    async with application.serving(signal.SIGTERM, signal.SIGINT):
        yield


app = FastAPI(lifespan=lifespan, docs_url=None, openapi_url=None)


if __name__ == "__main__":
    with local_services():
        uvicorn.run(app, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8080)
