"""Deletion and retention: of any size, repeatable, and nothing that was made since is lost."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omniagent.errors import SessionErased
from omniagent.lambda_runtime import event_loop
from omniagent.persistence.session_writes import SessionWrites
from omniagent.session.ids import new_id, session_key, user_id_of
from omniagent.turns.registry import Chunk
from tests.fixtures.jobs import CONTEXT, HURRIED, Chats, RecordedDeletions, batch, deliver, failures
from tests.fixtures.live_turns import begin_turn
from tests.fixtures.world import User, World

Json = dict[str, Any]
BEFORE = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def queued(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Json]:
    """What the functions send to the queue."""
    queue = RecordedDeletions()
    monkeypatch.setattr(world.application.platform, "deletion_queue", queue)
    return queue.sent


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

    monkeypatch.setattr(world.application, "project", replace(world.application.project, on_erase=on_erase))
    user = world.user()
    for path in ("/sessions/{}", "/users/me"):
        user.ask("[echo:Hello.]")
        assert user.call("DELETE", path).status_code == 204
        assert user.call("GET", "/sessions/{}").status_code == 404
        for job in queued:
            failed = failures(summary.handler(batch(json.dumps(job)), CONTEXT))
            assert len(failed) == 1, "the queue delivers it again, and at last it is a dead letter"
        is_down = False
        while queued:
            deliver(summary, queued.pop())
        is_down = True
    assert calls == [(user.client_id, user.session)] * 2 + [(user.client_id, None)]
    assert world.database.users.find_one({"_id": user_id_of(user.client_id)}) is None


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


@pytest.mark.usefixtures("queued")
@pytest.mark.parametrize("whole_user", [True, False])
def test_no_deletion_is_taken_from_a_queue_that_the_chat_function_writes_to(
    world: World, summary: Any, whole_user: bool
) -> None:
    user = world.user()
    user.ask("[echo:Hello.]")
    later = {"erase": True, "before": (datetime.now(UTC) + timedelta(days=1)).isoformat()}
    forged = later | ({"user_id": user_id_of(user.client_id)} if whole_user else {"session_id": user.key})
    for job in (forged, {"retention": True}, {"indexes": True}):
        assert failures(summary.handler(batch(json.dumps(job), queue="summaries"), CONTEXT)) == ["message-1"]
    assert len(user.messages()) == 2


def test_a_session_that_was_committed_behind_a_deletion_is_found(
    world: World, summary: Any, queued: list[Json]
) -> None:
    """Its process died between its commit and its look at the user, who was gone by then."""
    user = world.user()
    user_id = user_id_of(user.client_id)
    late = session_key(user_id, new_id())

    def commit_late() -> None:
        world.database.sessions.insert_one(
            {"_id": late, "user_id": user_id, "created_at": BEFORE, "version": 1, "latest_turn_number": 1}
        )
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


def test_a_session_is_not_made_for_a_user_who_was_deleted_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = world.user()
    user_id = user_id_of(user.client_id)
    ensure_user = SessionWrites.ensure_user

    async def deleted_meanwhile(writes: SessionWrites) -> None:
        await ensure_user(writes)
        world.database.users.delete_one({"_id": user_id})

    async def make() -> None:
        session = await world.application.session(user.client_id, new_id())
        monkeypatch.setattr(SessionWrites, "ensure_user", deleted_meanwhile)
        with pytest.raises(SessionErased):
            await (await world.application.catalog()).create(session, "Late")

    event_loop.run(make())
    assert world.database.sessions.count_documents({"user_id": user_id}) == 0


@pytest.fixture
def retained(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are kept for thirty days."""
    monkeypatch.setattr(
        world.application.platform, "settings", replace(world.application.settings, session_retention_days=30)
    )


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
    left_alone(world, recent, 29)
    session = event_loop.run(world.application.session(dead.client_id, dead.session))
    event_loop.run(begin_turn(session, is_dead=True))
    left_alone(world, dead, 31)
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1, seconds=1)
    world.database.sessions.update_one({"_id": cut_off.key}, {"$set": {"erased_at": an_hour_ago}})
    chunk = Chunk(0, "run", datetime.now(UTC), b"what was streamed")
    event_loop.run(world.application.registry.append(old.key, "turn", chunk))
    assert summary.handler({"retention": True}, CONTEXT) == {"status": "retained", "deleted": 3}
    for user in (old, dead, cut_off):
        assert user.call("GET", "/sessions/{}").status_code == 404
        assert world.database.sessions.find_one({"_id": user.key}) is None
        assert world.database.messages.count_documents({"session_id": user.key}) == 0
    assert event_loop.run(world.application.registry.read(old.key, "turn")) == []
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
