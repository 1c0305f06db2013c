"""A team's server: the HTTP API with an authentication of its own, asked from within its process."""

import asyncio

import httpx
from starlette.requests import Request

from omniagent import Agent, Project
from omniagent.server import Application, Caller, chat_app, sessions_app


async def current_user(_: Request) -> Caller:
    return Caller("you")


async def main() -> None:
    application = Application(Project(agent=Agent("example", "You are a helpful assistant.")))
    api = chat_app(application, authenticate=current_user)
    api.mount("/", sessions_app(application, authenticate=current_user))
    transport = httpx.ASGITransport(api)
    async with application.serving(), httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        answer = await http.post("/chat", json={"session_id": "s1", "query": "Hello"})
        print(answer.text.splitlines()[-2])
        print([session["id"] for session in (await http.get("/sessions")).json()["sessions"]])


asyncio.run(main())
