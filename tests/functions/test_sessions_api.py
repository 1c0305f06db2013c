"""The sessions function's routes, against the real MongoDB and the offline model, by events of both formats in turn."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from local.model import OfflineModel
from omniagent import SessionManager
from omniagent.lambda_runtime import event_loop
from tests.fixtures.function_url import PAYLOADS, Json
from tests.fixtures.jobs import RecordedQueue
from tests.fixtures.live_turns import begin_turn, end_turn
from tests.fixtures.world import User, World

MESSAGES, SUMMARY = "/sessions/{}/messages", "/sessions/{}/summary"


@pytest.fixture
def user(world: World) -> User:
    """A user of this test alone."""
    return replace(world, payloads=PAYLOADS).user()


@pytest.fixture
def session(world: World, user: User) -> SessionManager:
    """The user's session, as a turn has it."""
    return event_loop.run(world.application.session(user.client_id, user.session))


def problem(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["code"]


def test_a_session_is_made_once_read_renamed_and_deleted(user: User) -> None:
    made = user.call("POST", "/sessions", json={"id": user.session, "name": " Lisbon "})
    assert made.status_code == 201
    assert made.json() == {
        "id": user.session,
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
    again = user.call("POST", "/sessions", json={"id": user.session, "name": "Porto"})
    assert (again.status_code, again.json()) == (200, made.json())
    assert user.call("GET", "/sessions/{}").json() == made.json()
    renamed = user.call("PATCH", "/sessions/{}", json={"name": "Porto"})
    assert (renamed.status_code, renamed.json()) == (200, {**made.json(), "name": "Porto"})
    deleted = user.call("DELETE", "/sessions/{}")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert problem(user.call("GET", "/sessions/{}")) == (404, "not_found")
    assert problem(user.call("DELETE", "/sessions/{}")) == (404, "not_found")


def test_history_is_what_the_client_saw_in_pages_of_whole_turns(user: User) -> None:
    events = user.ask("Hello there")
    user.ask("And again")
    page = user.call("GET", MESSAGES).json()
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
    newest = user.call("GET", MESSAGES, params={"limit": 3}).json()
    older = user.call("GET", MESSAGES, params={"before": newest["before"]}).json()
    assert newest["messages"] == page["messages"][2:], "a turn is not split"
    assert (older["messages"], older["before"]) == (page["messages"][:2], None)


def test_a_page_of_huge_turns_stays_below_what_lambda_can_return(user: User, session: SessionManager) -> None:
    async def converse() -> None:
        for number in (1, 2, 3, 4):
            await end_turn(session, await begin_turn(session, "x" * 1_500_000, message_id=f"m{number}"))

    event_loop.run(converse())
    before, seen = "9", []
    while before:
        response = user.call("GET", MESSAGES, params={"before": before})
        assert len(response.content) < 5_000_000
        before = response.json()["before"]
        seen += [message["id"] for message in response.json()["messages"]]
    assert (len(seen), {"m1", "m2", "m3", "m4"} <= set(seen)) == (8, True)
    assert len(nodes_of(user)) == 8


def nodes_of(user: User, **query: Any) -> list[Json]:
    """Read a tree page by page."""
    nodes: list[Json] = []
    while True:
        response = user.call("GET", "/sessions/{}/tree", params=query)
        assert len(response.content) < 5_000_000
        nodes += response.json()["messages"]
        query["after"] = response.json()["after"]
        if query["after"] is None:
            return nodes


def test_the_tree_has_every_branch_and_a_switch_shows_another(user: User) -> None:
    def shown(**query: str) -> list[Json]:
        page = user.call("GET", MESSAGES, params=query)
        return [message["metadata"] for message in page.json()["messages"]]

    for text, message_id in (("One.", "m1"), ("Two.", "m2"), ("Other.", "m2")):
        user.ask(f"[echo:{text}]", message_id=message_id)
    edited = shown()
    nodes = nodes_of(user, limit=4)
    ids = [None, *(node["message"]["id"] for node in nodes)]
    assert len(set(ids)) == 7
    assert all(node["parentId"] in ids[: ids.index(node["message"]["id"])] for node in nodes)
    assert user.call("GET", "/sessions/{}/tree").json()["headId"] == edited[-1]["nodeId"]
    siblings = edited[2]["siblings"]
    assert siblings == {"index": 2, "count": 2, "previous": siblings["previous"]}
    first = shown(branch=siblings["previous"])
    assert first[2]["siblings"] == {"index": 1, "count": 2, "next": edited[2]["nodeId"]}
    assert shown() == edited, "reading a branch does not switch to it"
    switched = user.call("PUT", "/sessions/{}/branch", json={"nodeId": siblings["previous"]})
    assert (switched.status_code, switched.json()["id"]) == (200, user.session)
    assert shown()[:3] == first[:3]


def test_a_living_turn_is_left_alone(world: World, user: User, session: SessionManager) -> None:
    turn = event_loop.run(begin_turn(session, "Hello?"))
    assert user.call("GET", "/sessions/{}").json()["answering"] is True
    refused = user.call("DELETE", f"{MESSAGES}/m1")
    assert problem(refused) == (409, "turn_in_progress")
    assert refused.headers["retry-after"] == "1"
    late = user.call("POST", "/sessions/{}/cancel", json={"message_id": "m0"})
    assert problem(late) == (409, "no_running_turn")
    stopped = user.call("POST", "/sessions/{}/cancel", json={"message_id": "m1"})
    assert (stopped.status_code, stopped.json()) == (202, {"sessionId": user.session, "accepted": "cancel"})
    assert event_loop.run(world.application.registry.signals(user.key, turn.journal)).stop


def test_an_empty_session_gets_a_name_without_asking_the_model(user: User, model: OfflineModel) -> None:
    user.call("POST", "/sessions", json={"id": user.session})
    asked = len(model.requests)
    assert user.call("POST", "/sessions/{}/name").json()["name"] == "New chat"
    assert len(model.requests) == asked


def test_the_latest_summary_is_read(world: World, user: User) -> None:
    user.ask()
    assert problem(user.call("GET", SUMMARY)) == (404, "not_found")
    assert user.call("GET", MESSAGES).json()["summarizedTo"] is None
    models = event_loop.run(world.application.store()).models
    turns = {"start_turn_number": 1, "end_turn_number": 1}
    event_loop.run(models.summary(session_id=user.key, content="Ada said hello.", token_count=4, **turns).insert())
    found = user.call("GET", SUMMARY).json()
    del found["createdAt"]
    assert found == {"content": "Ada said hello.", "tokenCount": 4, "startTurnNumber": 1, "endTurnNumber": 1}
    assert user.call("GET", MESSAGES).json()["summarizedTo"] == 1


def test_a_summary_is_queued_by_the_sessions_key(world: World, user: User, queue: RecordedQueue) -> None:
    def asked(*, rebuild: bool) -> tuple[int, str]:
        response = user.call("POST", SUMMARY, params={"rebuild": rebuild})
        return response.status_code, response.json()["accepted"]

    async def rebuild() -> None:
        await (await world.application.runner_of_key(user.key)).summarize(rebuild=True)
        await world.application.end_summary(user.key, rebuild=True, is_done=True)

    user.ask("[echo:One.]", message_id="m1")
    assert asked(rebuild=False) == (200, "unchanged"), "the latest turn is never summarized"
    user.ask("[echo:Two.]")
    assert [asked(rebuild=False) for _ in range(2)] == [(202, "summary"), (202, "queued")]
    assert [asked(rebuild=True) for _ in range(2)] == [(202, "summary"), (202, "queued")]
    assert problem(user.call("POST", "/sessions/unknown/summary")) == (404, "not_found")
    assert queue.sent == [{"session_id": user.key, "rebuild": rebuild} for rebuild in (False, True)]

    event_loop.run(rebuild())
    assert asked(rebuild=True) == (200, "unchanged"), "nothing has changed since the last rebuild"
    assert user.call("DELETE", f"{MESSAGES}/m1").status_code == 204
    assert asked(rebuild=False) == (200, "unchanged")
    assert asked(rebuild=True) == (202, "summary"), "the summary may tell of the deleted message"
