"""A team's server: the HTTP API on Starlette, with an authentication of its own."""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request

from omniagent import Agent, Project
from omniagent.server import Application, Caller, chat_app, sessions_app


async def current_user(_: Request) -> Caller:
    return Caller("you")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    application = Application(Project(agent=Agent("example", "You are a helpful assistant.")))
    api = chat_app(application, authenticate=current_user)
    api.mount("/", sessions_app(application, authenticate=current_user))
    app.mount("/", api)
    async with application.serving(signal.SIGTERM, signal.SIGINT):
        yield


uvicorn.run(FastAPI(lifespan=lifespan), port=int(sys.argv[1]))
