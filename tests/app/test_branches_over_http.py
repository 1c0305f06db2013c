"""Branches over HTTP, on the real MongoDB: what a page, a second page and another user send."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from omniagent import Agent, Project, Settings, tool
from omniagent.app.application import Application
from omniagent.app.platform import Platform
from omniagent.providers import ModelRequest
from omniagent.server import Caller, chat_app, sessions_app
from omniagent.session.ids import new_id
from omniagent.testing import ScriptedModel, ToolCall

Json = dict[str, Any]
PAID: list[int] = []


@tool(approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return "paid"


def _answer(request: ModelRequest) -> Any:
    said = request.messages[-1].text
    return ["May I? ", ToolCall("pay", {"amount": 5})] if said == "pay" else f"To {said}."


async def user_of(request: Request) -> Caller:
    return Caller(request.headers.get("x-user", "ada"))


class Chat:
    """Pages of one server."""

    def __init__(self, http: httpx.AsyncClient, model: ScriptedModel) -> None:
        self.http = http
        self.model = model

    async def send(self, text: str, message_id: str, *, user: str = "ada", **body: Any) -> str:
        """Send a message, and return the id of its answer."""
        message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
        body = {"id": "chat", "message": message, **body}
        answer = await self.http.post("/chat?stream=false", json=body, headers={"x-user": user})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["message"]["id"])

    async def texts(self) -> list[str]:
        """What the active path says."""
        messages = (await self.http.get("/sessions/chat/messages")).json()["messages"]
        return ["".join(part.get("text", "") for part in message["parts"]) for message in messages]

    async def tree(self) -> list[Json]:
        return list((await self.http.get("/sessions/chat/tree")).json()["messages"])


@pytest.fixture
async def chat(mongod: str) -> AsyncIterator[Chat]:
    PAID.clear()
    settings = Settings(mongodb_uri=mongod, mongodb_database=f"branches_{new_id()[:8]}", tick_seconds=0.02)
    model = ScriptedModel(default=_answer)
    agent = Agent("helper", "", [pay], model="scripted/x")
    application = Application(Project(agent=agent, providers={"scripted": model}), Platform(settings), local=True)
    app = chat_app(application, authenticate=user_of)
    app.mount("/", sessions_app(application, authenticate=user_of))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with application.serving(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield Chat(http, model)


async def test_the_node_of_another_user_looks_unknown(chat: Chat) -> None:
    secret = await chat.send("secret", "m1", user="eve")
    await chat.send("one", "m1")
    await chat.send("two", "m2", parentId=secret)
    assert await chat.texts() == ["one", "To one.", "two", "To two."]
    refused = [
        await chat.http.put("/sessions/chat/branch", json={"nodeId": secret}),
        await chat.http.get("/sessions/chat/messages", params={"branch": secret}),
        await chat.http.delete(f"/sessions/chat/messages/{secret}"),
        await chat.http.put(f"/sessions/chat/messages/{secret}/feedback", json={"rating": "up"}),
        await chat.http.post(
            "/chat",
            json={
                "id": "chat",
                "messages": [{"id": "m9", "role": "user"}],
                "trigger": "regenerate-message",
                "messageId": secret,
            },
        ),
    ]
    assert [response.status_code for response in refused] == [404] * 5


async def test_an_approval_on_an_inactive_branch_goes_on_there(chat: Chat) -> None:
    first = await chat.send("one", "m1")
    second = await chat.send("two", "m2")
    await chat.send("pay", "m3", parentId=first)
    assert (await chat.http.put("/sessions/chat/branch", json={"nodeId": second})).status_code == 200
    assert await chat.texts() == ["one", "To one.", "two", "To two."]
    (request,) = (await chat.http.get("/approvals")).json()["approvals"]
    approved = await chat.http.post(f"/chat/approvals/{request['id']}?stream=false", json={"approved": True})
    assert (approved.status_code, PAID) == (200, [5])
    texts = await chat.texts()
    assert (texts[:3], texts[3].startswith("May I? ")) == (["one", "To one.", "pay"], True)
    assert len(await chat.tree()) == 6


async def test_a_message_keeps_its_parts_and_metadata_as_sent(chat: Chat) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "data-cart", "data": {"items": 2}}]
    metadata = {"mine": 1, "nodeId": "of another message"}
    message = {"id": "m1", "role": "user", "parts": parts, "metadata": metadata}
    assert (await chat.http.post("/chat?stream=false", json={"id": "chat", "message": message})).status_code == 200
    question, _ = (await chat.http.get("/sessions/chat/messages")).json()["messages"]
    assert question["parts"] == parts
    assert question["metadata"].pop("nodeId") != "of another message"
    assert question["metadata"] == {"mine": 1}
