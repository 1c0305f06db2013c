"""The sessions function's routes, against the real MongoDB and the offline model, by events of both formats in turn."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from pymongo.database import Database

from local.aws import Aws
from local.model import OfflineModel
from omniagent import Query
from omniagent.app.application import Application
from omniagent.app.on_lambda import AwsPlatform
from omniagent.http.sessions_app import sessions_app
from omniagent.persistence.store import ConversationStore
from omniagent.settings import Settings
from project import project
from tests.fixtures.conversation import Conversation
from tests.fixtures.function_url import SIGNING_ROLE, AsyncFunctionUrl
from tests.fixtures.live_turns import begin_turn, end_turn

Json = dict[str, Any]


@pytest.fixture
def settings(mongod: str, database: Database[Json], model: OfflineModel) -> Settings:
    return Settings(
        trusted_principals=SIGNING_ROLE,
        mongodb_uri=mongod,
        mongodb_database=database.name,
        openai_base_url=model.base_url,
    )


@pytest.fixture
async def application(settings: Settings, store: ConversationStore) -> AsyncIterator[Application]:
    application = Application(project, AwsPlatform(settings), local=True)
    yield application
    await application.close()


@pytest.fixture
def talk(conversation: Conversation, application: Application) -> Conversation:
    """A session of the user whom the API knows by the same name."""
    talk = conversation.but(user=f"user:{conversation.user}")
    application.registry = talk.registry
    return talk


@pytest.fixture
async def client(application: Application, talk: Conversation) -> AsyncIterator[httpx.AsyncClient]:
    transport, headers = AsyncFunctionUrl(sessions_app(application)), {"x-user-id": talk.user.removeprefix("user:")}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
        yield http


def problem(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["code"]


async def test_a_session_is_made_once_read_renamed_and_deleted(client: httpx.AsyncClient) -> None:
    made = await client.post("/sessions", json={"id": "trip", "name": " Lisbon "})
    assert made.status_code == 201
    assert made.json() == {
        "id": "trip",
        "name": "Lisbon",
        "agent": None,
        "latestTurnNumber": 0,
        "answering": False,
        "waiting": False,
        "createdAt": made.json()["createdAt"],
        "updatedAt": made.json()["updatedAt"],
        "extra": {},
        "snippet": None,
    }
    again = await client.post("/sessions", json={"id": "trip", "name": "Porto"})
    assert (again.status_code, again.json()) == (200, made.json())
    assert (await client.get("/sessions/trip")).json() == made.json()
    renamed = await client.patch("/sessions/trip", json={"name": "Porto"})
    assert (renamed.status_code, renamed.json()) == (200, {**made.json(), "name": "Porto"})
    deleted = await client.delete("/sessions/trip")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert problem(await client.get("/sessions/trip")) == (404, "not_found")
    assert problem(await client.delete("/sessions/trip")) == (404, "not_found")


async def test_history_is_what_the_client_saw_in_pages_of_whole_turns(
    client: httpx.AsyncClient, talk: Conversation
) -> None:
    events = await talk.ask("Hello there")
    await talk.ask("And again")
    page = (await client.get(f"/sessions/{talk.session_id}/messages")).json()
    assert page["before"] is None
    assert [message["role"] for message in page["messages"]] == ["user", "assistant", "user", "assistant"]
    question, answer = page["messages"][:2]
    assert question["parts"] == [{"type": "text", "text": "Hello there"}]
    text = "".join(event["delta"] for event in events if event["type"] == "text-delta")
    assert answer["parts"] == [{"type": "step-start"}, {"type": "text", "text": text, "state": "done"}]
    started, finished = (next(e for e in events if e["type"] == kind) for kind in ("start", "finish"))
    assert answer["id"] == started["messageId"]
    place = {"nodeId": answer["id"], "parentId": question["metadata"]["nodeId"]}
    assert answer["metadata"] == {**started["messageMetadata"], **finished["messageMetadata"], **place}
    path = f"/sessions/{talk.session_id}/messages"
    newest = (await client.get(path, params={"limit": 3})).json()
    older = (await client.get(path, params={"before": newest["before"]})).json()
    assert newest["messages"] == page["messages"][2:], "a turn is not split"
    assert (older["messages"], older["before"]) == (page["messages"][:2], None)


async def test_a_page_of_huge_turns_stays_below_what_lambda_can_return(
    client: httpx.AsyncClient, talk: Conversation
) -> None:
    session = talk.session
    for number in (1, 2, 3, 4):
        await end_turn(session, await begin_turn(session, "x" * 1_500_000, message_id=f"m{number}"))
    path, before, seen = f"/sessions/{talk.session_id}/messages", "9", []
    while before:
        response = await client.get(path, params={"before": before})
        assert len(response.content) < 5_000_000
        before = response.json()["before"]
        seen += [message["id"] for message in response.json()["messages"]]
    assert (len(seen), {"m1", "m2", "m3", "m4"} <= set(seen)) == (8, True)
    assert len(await nodes_of(client, talk.session_id)) == 8


async def nodes_of(client: httpx.AsyncClient, session_id: str, **query: Any) -> list[Json]:
    """Read a tree page by page."""
    nodes: list[Json] = []
    while True:
        response = await client.get(f"/sessions/{session_id}/tree", params=query)
        assert len(response.content) < 5_000_000
        nodes += response.json()["messages"]
        query["after"] = response.json()["after"]
        if query["after"] is None:
            return nodes


async def test_the_tree_has_every_branch_and_a_switch_shows_another(
    client: httpx.AsyncClient, talk: Conversation
) -> None:
    async def shown(**query: str) -> list[Json]:
        page = await client.get(f"{path}/messages", params=query)
        return [message["metadata"] for message in page.json()["messages"]]

    path = f"/sessions/{talk.session_id}"
    for query in (Query("[echo:One.]", "m1"), Query("[echo:Two.]", "m2"), Query("[echo:Other.]", "m2")):
        await talk.ask(query)
    edited = await shown()
    nodes = await nodes_of(client, talk.session_id, limit=4)
    ids = [None, *(node["message"]["id"] for node in nodes)]
    assert len(set(ids)) == 7
    assert all(node["parentId"] in ids[: ids.index(node["message"]["id"])] for node in nodes)
    assert (await client.get(f"{path}/tree")).json()["headId"] == edited[-1]["nodeId"]
    siblings = edited[2]["siblings"]
    assert siblings == {"index": 2, "count": 2, "previous": siblings["previous"]}
    first = await shown(branch=siblings["previous"])
    assert first[2]["siblings"] == {"index": 1, "count": 2, "next": edited[2]["nodeId"]}
    assert await shown() == edited, "reading a branch does not switch to it"
    switched = await client.put(f"{path}/branch", json={"nodeId": siblings["previous"]})
    assert (switched.status_code, switched.json()["id"]) == (200, talk.session_id)
    assert (await shown())[:3] == first[:3]


async def test_a_living_turn_is_left_alone(client: httpx.AsyncClient, talk: Conversation) -> None:
    turn = await begin_turn(talk.session, "Hello?")
    assert (await client.get(f"/sessions/{talk.session_id}")).json()["answering"] is True
    refused = await client.delete(f"/sessions/{talk.session_id}/messages/m1")
    assert problem(refused) == (409, "turn_in_progress")
    assert refused.headers["retry-after"] == "1"
    late = await client.post(f"/sessions/{talk.session_id}/cancel", json={"message_id": "m0"})
    assert problem(late) == (409, "no_running_turn")
    stopped = await client.post(f"/sessions/{talk.session_id}/cancel", json={"message_id": "m1"})
    assert (stopped.status_code, stopped.json()) == (202, {"sessionId": talk.session_id, "accepted": "cancel"})
    assert (await talk.registry.signals(talk.session.key, turn.journal)).stop


async def test_an_empty_session_gets_a_name_without_asking_the_model(
    client: httpx.AsyncClient, model: OfflineModel
) -> None:
    await client.post("/sessions", json={"id": "empty"})
    asked = len(model.requests)
    assert (await client.post("/sessions/empty/name")).json()["name"] == "New chat"
    assert len(model.requests) == asked


async def test_the_latest_summary_is_read(client: httpx.AsyncClient, talk: Conversation) -> None:
    await talk.ask("Hello")
    path = f"/sessions/{talk.session_id}/summary"
    assert problem(await client.get(path)) == (404, "not_found")
    assert (await client.get(f"/sessions/{talk.session_id}/messages")).json()["summarizedTo"] is None
    summary = talk.store.models.summary(
        session_id=talk.session.key, content="Ada said hello.", token_count=4, start_turn_number=1, end_turn_number=1
    )
    await summary.insert()
    found = (await client.get(path)).json()
    del found["createdAt"]
    assert found == {"content": "Ada said hello.", "tokenCount": 4, "startTurnNumber": 1, "endTurnNumber": 1}
    assert (await client.get(f"/sessions/{talk.session_id}/messages")).json()["summarizedTo"] == 1


async def test_a_summary_without_a_queue_says_what_is_missing(client: httpx.AsyncClient) -> None:
    await client.post("/sessions", json={"id": "trip"})
    response = await client.post("/sessions/trip/summary")
    assert problem(response) == (503, "no_queue")
    assert "SUMMARY_QUEUE_URL" in response.json()["detail"]


async def test_a_summary_is_queued_by_the_sessions_key(
    client: httpx.AsyncClient, talk: Conversation, application: Application, local_aws: Aws
) -> None:
    url = local_aws.sqs.create_queue(QueueName=talk.session_id)["QueueUrl"]
    application.platform = AwsPlatform(replace(application.settings, summary_queue_url=url))
    path = f"/sessions/{talk.session_id}/summary"

    async def asked(*, rebuild: bool) -> tuple[int, str]:
        response = await client.post(path, params={"rebuild": rebuild})
        return response.status_code, response.json()["accepted"]

    await talk.ask("[echo:One.]")
    assert await asked(rebuild=False) == (200, "unchanged"), "the latest turn is never summarized"
    await talk.ask("[echo:Two.]")
    assert [await asked(rebuild=False) for _ in range(2)] == [(202, "summary"), (202, "queued")]
    assert [await asked(rebuild=True) for _ in range(2)] == [(202, "summary"), (202, "queued")]
    assert problem(await client.post("/sessions/unknown/summary")) == (404, "not_found")
    messages = local_aws.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    jobs = [json.loads(message["Body"]) for message in messages]
    assert jobs == [{"session_id": talk.session.key, "rebuild": rebuild} for rebuild in (False, True)]

    await talk.runner().summarize(rebuild=True)
    await application.end_summary(talk.session.key, rebuild=True, is_done=True)
    assert await asked(rebuild=True) == (200, "unchanged"), "nothing has changed since the last rebuild"
    question = talk.messages[0]["client_message_id"]
    assert (await client.delete(f"/sessions/{talk.session_id}/messages/{question}")).status_code == 204
    assert await asked(rebuild=False) == (200, "unchanged")
    assert await asked(rebuild=True) == (202, "summary"), "the summary may tell of the deleted message"
