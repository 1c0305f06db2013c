"""The summary function as Lambda calls it: batches, direct calls, and the same message twice."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from pymongo.database import Database

from local.model import OfflineModel
from omniagent.aws.queues import SummaryQueue
from omniagent.errors import ModelError, SessionErased
from omniagent.lambda_runtime import event_loop
from omniagent.session.manager import new_id, session_key, user_id_of
from omniagent.turns.lease import Claim
from tests.fixtures.world import User, World, open_world

Json = dict[str, Any]
EVENTS = Path(__file__).parents[2] / "events"
CONTEXT = SimpleNamespace(aws_request_id="request-1", get_remaining_time_in_millis=lambda: 120_000)
HURRIED = SimpleNamespace(aws_request_id="request-2", get_remaining_time_in_millis=lambda: 10_000)
"""No time is left for a new piece of work."""
BEFORE = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel) -> Iterator[World]:
    with open_world(mongod, model.base_url) as world:
        yield world


@pytest.fixture
def summary(world: World) -> Any:
    return world.summary


class Chats:
    """Sessions written with a plain client, as turns would have left them.

    Each has one turn more than it says: the latest may be answered again, and is not summarized.
    """

    def __init__(self, database: Database[Json]) -> None:
        self._database = database

    def add(self, turns: int, *, key: str = "", active: bool = False, text: str = "Tell me about Lisbon.") -> str:
        key = key or session_key(user_id_of("user:ada"), new_id())
        running = "running" if active else None
        latest = turns + 1
        session = {
            "_id": key,
            "user_id": key.partition(":")[0],
            "latest_turn_number": latest,
            "active_turn_id": running,
        }
        self._database.sessions.replace_one({"_id": key}, session, upsert=True)
        user_id = key.partition(":")[0]
        self._database.users.update_one({"_id": user_id}, {"$setOnInsert": {"client_id": "user:ada"}}, upsert=True)
        for number in range(1, latest + 1):
            said = {"user": f"{text} Question {number}?", "assistant": f"Fact {number}."}
            for role, words in said.items():
                message = {
                    "session_id": key,
                    "turn_number": number,
                    "role": role,
                    "parts": [{"type": "text", "text": words}],
                    "client_message_id": f"{role}-{number}",
                }
                where = {"session_id": key, "turn_number": number, "role": role}
                self._database.messages.replace_one(where, message, upsert=True)
        return key

    def remove_turn(self, key: str, number: int) -> None:
        self._database.messages.delete_many({"session_id": key, "turn_number": number})

    def summaries(self, key: str) -> list[tuple[int, int]]:
        found = self._database.summaries.find({"session_id": key}).sort("end_turn_number")
        return [(summary["start_turn_number"], summary["end_turn_number"]) for summary in found]

    def content(self, key: str) -> str:
        latest = self._database.summaries.find_one({"session_id": key}, sort=[("end_turn_number", -1)])
        assert latest is not None
        text: str = latest["content"]
        return text


@pytest.fixture
def chats(world: World) -> Chats:
    return Chats(world.database)


def batch(*bodies: str) -> Json:
    return {
        "Records": [
            {"messageId": f"message-{number}", "body": body, "eventSource": "aws:sqs"}
            for number, body in enumerate(bodies, 1)
        ]
    }


def order(key: str, **more: Any) -> str:
    return json.dumps({"session_id": key, **more})


def failures(answer: Json) -> list[str]:
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def test_a_summary_is_brought_up_to_the_turn_before_the_latest(summary: Any, chats: Chats) -> None:
    key = chats.add(3)
    answer = summary.handler({"session_id": key}, CONTEXT)
    assert answer == {"session_id": key, "status": "summarized", "end_turn_number": 3}
    assert chats.summaries(key) == [(1, 3)]
    assert chats.content(key)


def test_a_session_can_be_named_by_its_user(summary: Any, chats: Chats) -> None:
    key = chats.add(1)
    answer = summary.handler({"user": "user:ada", "session_id": key.partition(":")[2]}, CONTEXT)
    assert (answer["session_id"], answer["status"]) == (key, "summarized")


def test_the_next_summary_continues_the_last(summary: Any, chats: Chats, model: OfflineModel) -> None:
    key = chats.add(2)
    summary.handler({"session_id": key}, CONTEXT)
    first = chats.content(key)
    chats.add(4, key=key)
    summary.handler({"session_id": key}, CONTEXT)
    assert chats.summaries(key) == [(1, 2), (3, 4)]
    asked = json.dumps(model.requests[-1].body, ensure_ascii=False)
    assert "assistant: Fact 3." in asked
    assert "assistant: Fact 2." not in asked
    assert json.dumps(first, ensure_ascii=False)[1:-1] in asked


def test_a_message_that_comes_twice_costs_nothing(summary: Any, chats: Chats, model: OfflineModel) -> None:
    key = chats.add(2)
    assert failures(summary.handler(batch(order(key), order(key)), CONTEXT)) == []
    asked = len(model.requests)
    assert failures(summary.handler(batch(order(key)), CONTEXT)) == []
    assert summary.handler({"session_id": key}, CONTEXT)["status"] == "unchanged"
    assert len(model.requests) == asked
    assert chats.summaries(key) == [(1, 2)]


def test_a_running_turn_is_left_out(summary: Any, chats: Chats) -> None:
    key = chats.add(2, active=True)
    assert summary.handler({"session_id": key}, CONTEXT)["end_turn_number"] == 2
    only = chats.add(0, active=True)
    assert summary.handler({"session_id": only}, CONTEXT)["status"] == "unchanged"
    assert (chats.summaries(key), chats.summaries(only)) == ([(1, 2)], [])


def test_deleted_turns_leave_no_gap(summary: Any, chats: Chats) -> None:
    key = chats.add(5)
    for number in (1, 3, 5):
        chats.remove_turn(key, number)
    summary.handler({"session_id": key}, CONTEXT)
    assert chats.summaries(key) == [(1, 4)]
    assert summary.handler({"session_id": key}, CONTEXT)["status"] == "unchanged"


def test_a_long_history_is_summarized_in_stored_steps(summary: Any, chats: Chats) -> None:
    key = chats.add(120)
    assert summary.handler({"session_id": key}, CONTEXT)["end_turn_number"] == 120
    ranges = chats.summaries(key)
    assert ranges[0][0] == 1
    assert ranges[-1][1] == 120
    assert all(later[0] == earlier[1] + 1 for earlier, later in pairwise(ranges))


def test_a_rebuild_puts_one_summary_in_the_place_of_all(summary: Any, chats: Chats, model: OfflineModel) -> None:
    key = chats.add(60)
    summary.handler({"session_id": key}, CONTEXT)
    assert len(chats.summaries(key)) > 1
    chats.remove_turn(key, 1)
    asked = len(model.requests)
    answer = summary.handler({"session_id": key, "rebuild": True}, CONTEXT)
    assert (answer["status"], answer["end_turn_number"]) == ("summarized", 60)
    assert chats.summaries(key) == [(1, 60)]
    assert "Question 1?" not in json.dumps([request.body for request in model.requests[asked:]])


def test_a_rebuild_of_nothing_leaves_nothing(summary: Any, chats: Chats) -> None:
    key = chats.add(1)
    summary.handler({"session_id": key}, CONTEXT)
    chats.remove_turn(key, 1)
    assert summary.handler({"session_id": key, "rebuild": True}, CONTEXT)["status"] == "unchanged"
    assert chats.summaries(key) == []


def test_one_poisoned_session_does_not_block_the_others(summary: Any, chats: Chats) -> None:
    good, also_good = chats.add(2), chats.add(2)
    poisoned = chats.add(2, text="[summary:fail:500]")
    bodies = (order(good), order(poisoned), "{not json", order(also_good), "{}")
    assert failures(summary.handler(batch(*bodies), CONTEXT)) == ["message-2", "message-3", "message-5"]
    assert [chats.summaries(key) for key in (good, poisoned, also_good)] == [[(1, 2)], [], [(1, 2)]]


def test_a_batch_that_fails_altogether_is_reported_message_by_message(summary: Any) -> None:
    assert failures(summary.handler(batch("{not json", "[]"), CONTEXT)) == ["message-1", "message-2"]


def test_an_empty_summary_is_no_summary(summary: Any, chats: Chats) -> None:
    key = chats.add(2, text="[summary:empty]")
    with pytest.raises(ModelError):
        summary.handler({"session_id": key}, CONTEXT)
    assert chats.summaries(key) == []


def test_a_session_that_is_gone_needs_no_summary(summary: Any) -> None:
    key = session_key(user_id_of("user:ada"), "gone")
    assert summary.handler({"session_id": key}, CONTEXT) == {"session_id": key, "status": "not_found"}
    assert failures(summary.handler(batch(order(key)), CONTEXT)) == []


@pytest.mark.parametrize("event", [{}, {"session_id": ""}, {"session_id": {"$ne": None}}, {"session_id": "x" * 300}])
def test_a_direct_call_that_names_no_session_is_refused(summary: Any, event: Json) -> None:
    with pytest.raises(ValidationError):
        summary.handler(event, CONTEXT)


@pytest.fixture
def queued(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Json]:
    """What the functions send to the queue."""
    sent: list[Json] = []

    class Queue(SummaryQueue):
        async def send(self, key: str, *, rebuild: bool = False) -> None:
            sent.append({"session_id": key, "rebuild": rebuild})

        async def send_erasure(self, key: str) -> None:
            sent.append({"session_id": key, "erase": True})

        async def send_user_erasure(self, user_id: str, before: datetime, *, delay_seconds: float = 0) -> None:
            sent.append({"user_id": user_id, "erase": True, "before": before.isoformat()})

        async def send_retention(self) -> None:
            sent.append({"retention": True})

    monkeypatch.setattr(world.services, "summary_queue", Queue(""))
    return sent


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_summary_that_does_not_end_in_time_goes_on_from_the_queue(
    summary: Any, chats: Chats, queued: list[Json], rebuild: bool
) -> None:
    key = chats.add(60)
    answer = summary.handler({"session_id": key, "rebuild": rebuild}, HURRIED)
    assert answer["status"] == "unfinished"
    [rest] = queued
    assert rest == {"session_id": key, "rebuild": rebuild}
    assert failures(summary.handler(batch(json.dumps(rest)), CONTEXT)) == []
    assert chats.summaries(key)[-1][1] == 60


def test_a_deletion_that_does_not_end_in_time_is_finished_from_the_queue(
    world: World, summary: Any, chats: Chats, queued: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    user = world.user()
    for _ in range(3):
        user.ask("[echo:Hello.]")
    chats.add(600, key=user.key)
    monkeypatch.setattr("omniagent.http.sessions_app.time_left", lambda _: lambda: 0.0)
    assert user.call("DELETE", "/sessions/{}").status_code == 204
    assert user.call("GET", "/sessions/{}").status_code == 404
    assert world.database.messages.count_documents({"session_id": user.key}) > 0
    while queued:
        assert failures(summary.handler(batch(json.dumps(queued.pop())), CONTEXT)) == []
    assert world.database.messages.count_documents({"session_id": user.key}) == 0
    assert world.database.sessions.find_one({"_id": user.key}) is None


def test_a_user_that_is_deleted_in_pieces_is_gone_at_the_end(
    world: World, summary: Any, chats: Chats, queued: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    user = world.user()
    user.ask("[echo:Hello.]")
    user_id = user_id_of(user.client_id)
    keys = [chats.add(300, key=session_key(user_id, new_id())) for _ in range(2)]
    monkeypatch.setattr("omniagent.http.sessions_app.time_left", lambda _: lambda: 0.0)
    assert user.call("DELETE", "/users/me").status_code == 204
    assert {json.dumps(job) for job in queued} == {json.dumps(queued[0])}
    while queued:
        assert failures(summary.handler(batch(json.dumps(queued.pop())), CONTEXT)) == []
    assert world.database.users.find_one({"_id": user_id}) is None
    for key in (user.key, *keys):
        assert world.database.messages.count_documents({"session_id": key}) == 0


def test_a_deletion_whose_hook_fails_is_repeated_by_the_queue(
    world: World, summary: Any, queued: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_down, calls = True, []

    async def on_erase(user: str, session_id: str | None) -> None:
        if is_down:
            raise OSError("the team's store is down")
        calls.append((user, session_id))

    monkeypatch.setattr(world.services, "project", replace(world.services.project, on_erase=on_erase))
    user = world.user()
    user.ask("[echo:Hello.]")
    assert user.call("DELETE", "/users/me").status_code == 204
    late, now = queued
    assert len(failures(summary.handler(batch(json.dumps(now)), CONTEXT))) == 1, "the queue delivers it again"
    assert user.call("GET", "/sessions/{}").status_code == 404
    is_down = False
    for job in (now, late):
        deliver(summary, job)
    assert calls == [(user.client_id, user.session), (user.client_id, None)]
    assert world.database.users.find_one({"_id": user_id_of(user.client_id)}) is None


def deliver(summary: Any, job: Json) -> None:
    """Deliver a message of the queue."""
    assert failures(summary.handler(batch(json.dumps(job)), CONTEXT)) == []


def test_a_deletion_that_is_delivered_late_or_twice_leaves_alone_what_was_made_since(
    world: World, summary: Any, queued: list[Json]
) -> None:
    user = world.user()
    user_id = user_id_of(user.client_id)
    user.ask("[echo:Before.]")
    assert user.call("DELETE", "/users/me").status_code == 204
    [look_again] = queued
    user.ask("[echo:After.]")
    for job in (look_again, {"session_id": user.key, "erase": True}, {"user_id": user_id, "erase": True}):
        for _ in range(2):
            deliver(summary, job)
    assert [message["role"] for message in user.messages()] == ["user", "assistant"]
    # An operator who asks for it directly means what there is now.
    assert summary.handler({"user_id": user_id, "erase": True}, CONTEXT)["status"] == "erased"
    assert user.call("GET", "/sessions/{}").status_code == 404


def test_a_session_that_was_committed_behind_a_deletion_is_found(
    world: World, summary: Any, queued: list[Json]
) -> None:
    """Its process died between its commit and its look at the user, who was gone by then."""
    user = world.user()
    user_id = user_id_of(user.client_id)
    late = session_key(user_id, new_id())

    def commit_late() -> None:
        world.database.sessions.insert_one({"_id": late, "user_id": user_id, "created_at": BEFORE})
        world.database.messages.insert_one({"session_id": late, "turn_number": 1, "role": "user"})

    user.ask("[echo:Hello.]")
    assert user.call("DELETE", "/users/me").status_code == 204
    commit_late()
    deliver(summary, queued[-1])
    assert world.database.sessions.find_one({"_id": late}) is None
    assert world.database.messages.count_documents({"session_id": late}) == 0
    commit_late()
    assert user.call("DELETE", "/users/me").status_code == 204, "the user may also ask again"
    assert world.database.sessions.find_one({"_id": late}) is None


def test_a_session_is_not_made_for_a_user_who_was_deleted_meanwhile(world: World) -> None:
    """The transaction itself looks, whoever dies after it."""
    user = world.user()
    user_id = user_id_of(user.client_id)

    async def make() -> None:
        session = await world.services.session(user.client_id, new_id())
        await session.slots.ensure_user()
        world.database.users.delete_one({"_id": user_id})
        with pytest.raises(SessionErased):
            await (await world.services.catalog()).create(session, "Late")

    event_loop.run(make())
    assert world.database.sessions.count_documents({"user_id": user_id}) == 0


@pytest.fixture
def retained(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are kept for thirty days."""
    monkeypatch.setattr(world.services, "settings", replace(world.services.settings, session_retention_days=30))


def left_alone(world: World, user: User, days: float) -> None:
    """Nothing was said in the user's session for so many days."""
    last = datetime.now(UTC) - timedelta(days=days)
    world.database.sessions.update_one({"_id": user.key}, {"$set": {"updated_at": last}})


@pytest.mark.usefixtures("retained")
def test_sessions_that_were_left_too_long_ago_are_deleted_with_all_they_had(
    world: World, summary: Any, chats: Chats
) -> None:
    old, dead, recent, cut_off = (world.user() for _ in range(4))
    for user in (old, dead, recent, cut_off):
        user.ask("[echo:Hello.]")
    left_alone(world, old, 31)
    left_alone(world, dead, 31)
    left_alone(world, recent, 29)
    world.database.sessions.update_one({"_id": dead.key}, {"$set": {"active_turn_id": "a process that died"}})
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1, seconds=1)
    world.database.sessions.update_one({"_id": cut_off.key}, {"$set": {"erased_at": an_hour_ago}})
    claim = Claim(old.key, "turn", "message")
    event_loop.run(world.services.registry.append(claim, 0, b"what was streamed"))
    assert summary.handler({"retention": True}, CONTEXT) == {"status": "retained", "deleted": 3}
    for user in (old, dead, cut_off):
        assert user.call("GET", "/sessions/{}").status_code == 404
        assert world.database.sessions.find_one({"_id": user.key}) is None
        assert world.database.messages.count_documents({"session_id": user.key}) == 0
    assert event_loop.run(world.services.registry.read(old.key, "turn")) == []
    assert len(recent.messages()) == 2
    old.ask("[echo:I am back.]")
    assert summary.handler({"retention": True}, CONTEXT)["deleted"] == 0


@pytest.mark.usefixtures("retained")
def test_retention_that_does_not_end_in_time_goes_on_from_the_queue(
    world: World, summary: Any, queued: list[Json]
) -> None:
    user = world.user()
    user.ask("[echo:Hello.]")
    left_alone(world, user, 31)
    assert summary.handler({"retention": True}, HURRIED)["deleted"] == 0
    [rest] = queued
    deliver(summary, rest)
    assert user.call("GET", "/sessions/{}").status_code == 404


def test_without_the_setting_everything_is_kept(world: World, summary: Any) -> None:
    user = world.user()
    user.ask("[echo:Hello.]")
    left_alone(world, user, 3650)
    assert summary.handler({"retention": True}, CONTEXT) == {"status": "retained", "deleted": 0}
    assert len(user.messages()) == 2


def test_the_sample_events_are_understood(summary: Any, chats: Chats) -> None:
    direct = json.loads((EVENTS / "summary-direct.json").read_text())
    chats.add(3, key=direct["session_id"])
    assert summary.handler(direct, CONTEXT)["status"] == "summarized"
    assert failures(summary.handler(json.loads((EVENTS / "summary-sqs-batch.json").read_text()), CONTEXT)) == []
    poisoned = json.loads((EVENTS / "summary-poisoned.json").read_text())
    assert failures(summary.handler(poisoned, CONTEXT)) == [poisoned["Records"][1]["messageId"]]
