"""The chat function's routes, with a runner that records how it is called."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.routing import Mount

from omniagent.ai.result import StreamPosition
from omniagent.errors import StorageUnavailable, TurnInProgress
from omniagent.http.bodies import read_chat_request
from omniagent.http.chat_app import chat_app
from omniagent.invocation import invocation_end
from omniagent.messages import TextPart
from omniagent.session.query import Query
from omniagent.settings import Settings

Json = dict[str, Any]


@dataclass
class Answer:
    """An answer of three frames."""

    session_id: str = "s1"
    journal_id: str = "j1"
    message_id: str = "a1"
    seen: int | None = None
    log: list[str] = field(default_factory=list)
    failure: Exception | None = None
    stored: bool = True

    async def sse(self, *, resets: bool = False) -> AsyncIterator[bytes]:
        if self.failure:
            raise self.failure
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"
        yield b"data: [DONE]\n\n"

    async def result(self) -> Any:
        return SimpleNamespace(
            stored=self.stored,
            error=None,
            session_id="s1",
            message_id="a1",
            parts=[TextPart(text="Hi")],
            message=SimpleNamespace(ui_metadata={}),
            text="Hi",
            status="complete",
            output=None,
        )

    async def ended(self) -> None:
        self.log.append("ended")


@dataclass
class StubRunner:
    answer: Answer | None
    session_id: str = "s1"
    refusal: Exception | None = None
    queries: list[Query] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)

    async def start(self, query: Query, *, deadline: float | None) -> Answer | None:
        self.queries.append(query)
        self.deadlines.append(deadline)
        if self.refusal:
            raise self.refusal
        return self.answer

    async def resume(self, *, deadline: float | None, after: StreamPosition | None) -> Answer | None:
        return self.answer


class StubServices:
    """What the app uses of `Services`."""

    def __init__(self, **settings: Any) -> None:
        self.settings = Settings(auth_mode="none", **settings)
        self.local = True
        self.runner_stub = StubRunner(Answer())
        self.asked_for: list[tuple[str, str | None, str | None]] = []
        self.recovered: list[BaseException] = []

    async def runner(self, user: str, session_id: str | None, *, category: str | None = None) -> StubRunner:
        self.asked_for.append((user, session_id, category))
        return self.runner_stub

    async def recover(self, error: BaseException) -> None:
        self.recovered.append(error)


@pytest.fixture
def services() -> StubServices:
    return StubServices()


def client_of(services: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(chat_app(services)), base_url="http://localhost")


@pytest.fixture
async def client(services: StubServices) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(services) as client:
        yield client


def message(text: str, message_id: str | None = "m1", role: str = "user") -> Json:
    return {"id": message_id, "role": role, "parts": [{"type": "text", "text": text}]}


async def test_an_answer_is_streamed_with_its_headers(client: httpx.AsyncClient, services: StubServices) -> None:
    answer = services.runner_stub.answer
    assert answer
    response = await client.post("/chat", json={"query": "Hi", "session_id": "s1"}, headers={"x-user-category": "pro"})
    assert response.text == "data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
    expected = {
        "content-type": "text/event-stream",
        "x-vercel-ai-ui-message-stream": "v1",
        "cache-control": "no-store",
        "x-accel-buffering": "no",
        "x-session-id": "s1",
        "x-workflow-run-id": "s1:j1",
    }
    assert expected.items() <= dict(response.headers).items()
    assert services.asked_for == [("local:me", "s1", "pro")]
    assert services.runner_stub.queries == [Query("Hi")]
    assert answer.log == ["ended"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site", "authorization": "Bearer x"}, 200),
        ({"sec-fetch-site": "cross-site"}, 415),
    ],
)
async def test_a_body_of_fetch_is_json_unless_another_site_sent_it_unasked(
    client: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    sent = {"content-type": "text/plain;charset=UTF-8", **headers}
    response = await client.post("/chat", content=b'{"query": "Hi"}', headers=sent)
    assert response.status_code == status
    if status == 415:
        assert response.json()["detail"] == "Send application/json, not text/plain."


async def test_a_refusal_before_the_first_frame_is_a_problem(client: httpx.AsyncClient, services: StubServices) -> None:
    services.runner_stub.refusal = TurnInProgress(retry_after=3)
    response = await client.post("/chat", json={"query": "Hi"})
    assert (response.status_code, response.json()["code"]) == (409, "turn_in_progress")
    assert response.headers["retry-after"] == "3"
    assert services.recovered == []


async def test_a_failure_before_the_first_frame_is_a_problem_and_the_turn_is_awaited(
    client: httpx.AsyncClient, services: StubServices
) -> None:
    failure = StorageUnavailable("down")
    services.runner_stub.answer = answer = Answer(failure=failure)
    response = await client.post("/chat", json={"query": "Hi"})
    assert (response.status_code, response.json()["code"]) == (503, "storage_unavailable")
    assert services.recovered == [failure]
    assert answer.log == ["ended"]


async def test_without_a_stream_the_answer_is_one_document(client: httpx.AsyncClient, services: StubServices) -> None:
    for flag in ("false", "False", "0"):
        response = await client.post(f"/chat?stream={flag}", json={"query": "Hi"})
        assert response.json()["text"] == "Hi"
        assert response.json()["message"]["id"] == "a1"
    services.runner_stub.answer = answer = Answer(stored=False)
    assert (await client.post("/chat?stream=false", json={"query": "Hi"})).status_code == 503
    assert answer.log == ["ended"]


async def test_a_flag_that_is_no_flag_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/chat?stream=maybe", json={"query": "Hi"})
    assert (response.status_code, response.json()["detail"]) == (422, "query.stream: must be true or false.")


async def test_a_running_answer_is_resumed_or_there_is_none(client: httpx.AsyncClient, services: StubServices) -> None:
    assert (await client.get("/chat/s1/stream")).text.endswith("data: [DONE]\n\n")
    services.runner_stub.answer = None
    response = await client.get("/chat/s1/stream")
    assert (response.status_code, response.content) == (204, b"")
    assert (await client.get("/chat/no%20id/stream")).status_code == 422


async def test_the_deadline_is_lambdas(client: httpx.AsyncClient, services: StubServices) -> None:
    token = invocation_end.set(60.0)
    await client.post("/chat?stream=false", json={"query": "Hi"})
    invocation_end.reset(token)
    assert services.runner_stub.deadlines == [60.0]


async def test_the_document_of_a_typed_answer_has_its_output(client: httpx.AsyncClient, services: StubServices) -> None:
    class City(BaseModel):
        name: str = Field(alias="cityName")

    class Typed(Answer):
        async def result(self) -> Any:
            return SimpleNamespace(**{**vars(await super().result()), "output": City(cityName="Lisbon")})

    assert "output" not in (await client.post("/chat?stream=false", json={"query": "Hi"})).json()
    services.runner_stub.answer = Typed()
    response = await client.post("/chat?stream=false", json={"query": "Hi"})
    assert response.json()["output"] == {"cityName": "Lisbon"}


NEW, ANSWER = message("New"), message("Answer", "a1", "assistant")
LAST: Json = {"messages": [NEW]}
AGAIN: Json = {"messages": [{}], "trigger": "regenerate-message"}


@pytest.mark.parametrize(
    ("body", "query"),
    [
        ({"messages": [message("Old", "m0"), NEW]}, Query("New", "m1", parent="m0")),
        ({"message": NEW}, Query("New", "m1")),
        ({"query": "New", "message_id": "m1"}, Query("New", "m1")),
        ({"query": "New", "agent": "sales"}, Query("New", agent="sales")),
        ({"message": NEW, "agent": "sales"}, Query("New", "m1", agent="sales")),
        (LAST | {"agent": "sales"}, Query("New", "m1", agent="sales")),
        (AGAIN | LAST | {"messageId": "a1"}, Query("New", "m1", regenerate=True, replaces="a1")),
        (AGAIN | {"messages": [ANSWER]}, Query(regenerate=True)),
        (AGAIN | {"messages": [NEW | {"parts": []}], "messageId": "a1"}, Query(regenerate=True, replaces="a1")),
        (AGAIN, Query(regenerate=True)),
        (LAST | {"busy": "queue"}, Query("New", "m1", busy="queue")),
        ({"message": NEW, "busy": "steer"}, Query("New", "m1", busy="steer")),
        ({"query": "New", "message_id": "m1", "busy": "interrupt"}, Query("New", "m1", busy="interrupt")),
        ({"query": "New", "message_id": "m1", "busy": None}, Query("New", "m1")),
        (AGAIN | {"busy": "reject"}, Query(regenerate=True, busy="reject")),
        ({"messages": [ANSWER, NEW], "parentId": "other"}, Query("New", "m1", parent="a1")),
        (LAST | {"parentId": "a1"}, Query("New", "m1", parent="a1")),
        (LAST | {"parentId": None}, Query("New", "m1", parent="")),
        (LAST | {"tools": {}, "metadata": {}}, Query("New", "m1", parent="")),
        (LAST | {"tools": {}}, Query("New", "m1")),
        (LAST, Query("New", "m1")),
        ({"message": NEW, "parentId": "a1"}, Query("New", "m1", parent="a1")),
    ],
)
def test_every_body_becomes_a_query(body: Json, query: Query) -> None:
    assert read_chat_request(body).query == query


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ([], "Send a JSON object"),
        ({}, "Send `messages`"),
        ({"messages": []}, "messages: "),
        ({"messages": [message("Hi", role="assistant")]}, "messages: the last message is the assistant's and replies"),
        ({"messages": [message("Hi", role="system")]}, "messages: the last message must have the role `user`"),
        ({"replies": [{"tool_call_id": "c1", "approved": True}]}, "session_id: "),
        ({"session_id": "s1", "replies": [{"tool_call_id": "c1", "approved": "yes"}]}, "replies.0.approved: "),
        *(
            (
                {"message": {"parts": [{"type": kind}]}},
                f"parts: messages may contain text and data parts only, not '{kind}'.",
            )
            for kind in ("file", "")
        ),
        ({"message": {"content": "Hi"}}, "message: it has `content`, but AI SDK 5 and newer send `parts`"),
        ({"messages": [{}, {"role": "user", "content": "Hi"}]}, "messages.1: it has `content`"),
        ({"message": message("Hi", "no id")}, "message.id: the message's id must be 1 to 128"),
        ({"messages": [message("Hi", "no id")]}, "messages.0.id: the message's id must be 1 to 128"),
        ({"id": "no id", "messages": [message("Hi")]}, "id: the chat's id must be 1 to 128"),
        ({"query": "\ud83d"}, "query: Input should be a valid string"),
        ({"query": 1, "message_id": "no id"}, "query: Input should be a valid string; message_id: "),
        *(
            ({**body, "busy": busy}, "busy: ")
            for body in ({"messages": [message("Hi")]}, {"message": message("Hi")}, {"query": "Hi"})
            for busy in ("later", "", 1, True, ["queue"], "Queue")
        ),
    ],
)
async def test_a_wrong_body_names_the_field(client: httpx.AsyncClient, body: Any, detail: str) -> None:
    response = await client.post("/chat", content=json.dumps(body))
    assert response.status_code == 422
    assert response.json()["detail"].startswith(detail)


def test_of_several_calls_with_one_id_the_last_is_answered() -> None:
    """Some models number the calls of every step anew."""
    earlier = {"type": "tool-locate", "toolCallId": "c1", "state": "output-available", "output": "Rome"}
    asked = {"type": "tool-locate", "toolCallId": "c1", "state": "input-available"}
    approval = {"id": "a2", "approved": True}
    given = {"type": "tool-refund", "toolCallId": "c2", "state": "approval-responded", "approval": approval}
    body = {"id": "s1", "messages": [{"id": "m1", "role": "assistant", "parts": [earlier, asked, given]}]}
    assert [answer.call_id for answer in read_chat_request(body).replies] == ["c2"]


async def test_the_framework_s_own_refusals_are_problems(client: httpx.AsyncClient) -> None:
    assert (await client.get("/nowhere")).json()["code"] == "not_found"
    for method, path, allowed in (("GET", "/chat", "POST"), ("HEAD", "/chat/s1/stream", "GET")):
        response = await client.request(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)
    assert (await client.get("/chat/")).status_code == 404


async def test_under_a_prefix_the_page_finds_its_document(services: StubServices) -> None:
    server = Starlette(routes=[Mount("/api", chat_app(services))])  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://localhost") as client:
        page = await client.get("/api/chat/docs")
        document = await client.get(str(page.url.join("openapi.json")))
    policy = page.headers["content-security-policy"]
    assert "https://cdn.jsdelivr.net" in policy
    assert "frame-ancestors 'none'" in policy
    assert document.json()["servers"] == [{"url": "/api"}]


async def test_the_pages_describe_the_routes_and_can_be_switched_off(client: httpx.AsyncClient) -> None:
    document = (await client.get("/chat/openapi.json")).json()
    assert document["paths"].keys() == {"/chat", "/chat/{session_id}/stream", "/chat/approvals/{request_id}"}
    post = document["paths"]["/chat"]["post"]
    assert [parameter["name"] for parameter in post["parameters"]] == ["stream", "background", "x-ai-sdk"]
    assert list(post["responses"]["200"]["content"]) == ["application/json", "text/event-stream"]
    assert "'openapi.json'" in (await client.get("/chat/docs")).text, "beside the page, under any prefix"
    async with client_of(StubServices(docs_enabled=False)) as quiet:
        for path in ("/chat/docs", "/chat/openapi.json"):
            assert (await quiet.get(path)).status_code == 404
