"""The summary function as Lambda calls it: batches, direct calls, and the same message twice."""

import asyncio
import json
from typing import Any

import pytest
from pydantic import ValidationError

from local.model import OfflineModel
from omniagent.app.application import Application
from omniagent.session.ids import session_key, user_id_of
from omniagent.settings import Settings
from tests.fixtures.jobs import CONTEXT, HURRIED, Chats, RecordedQueue, batch, failures, order
from tests.fixtures.world import World

Json = dict[str, Any]


def test_a_session_can_be_named_by_its_user(summary: Any, chats: Chats) -> None:
    key = chats.add(1)
    answer = summary.handler({"user": "user:ada", "session_id": key.partition(":")[2]}, CONTEXT)
    assert (answer["session_id"], answer["status"]) == (key, "summarized")


def test_a_message_that_comes_twice_costs_nothing(summary: Any, chats: Chats, model: OfflineModel) -> None:
    key = chats.add(2)
    assert failures(summary.handler(batch(order(key), order(key)), CONTEXT)) == []
    asked = len(model.requests)
    assert failures(summary.handler(batch(order(key)), CONTEXT)) == []
    assert summary.handler({"session_id": key}, CONTEXT)["status"] == "unchanged"
    assert len(model.requests) == asked
    assert chats.summaries(key) == [(1, 2)]


def test_one_poisoned_session_does_not_block_the_others(summary: Any, chats: Chats) -> None:
    good, also_good = chats.add(2), chats.add(2)
    poisoned = chats.add(2, text="[summary:fail:500]")
    bodies = (order(good), order(poisoned), "{not json", order(also_good), "{}")
    assert failures(summary.handler(batch(*bodies), CONTEXT)) == ["message-2", "message-3", "message-5"]
    assert [chats.summaries(key) for key in (good, poisoned, also_good)] == [[(1, 2)], [], [(1, 2)]]


def test_a_session_that_is_gone_needs_no_summary(summary: Any) -> None:
    key = session_key(user_id_of("user:ada"), "gone")
    assert summary.handler({"session_id": key}, CONTEXT) == {"session_id": key, "status": "not_found"}
    assert failures(summary.handler(batch(order(key)), CONTEXT)) == []


@pytest.mark.parametrize("event", [{}, {"session_id": ""}, {"session_id": {"$ne": None}}, {"session_id": "x" * 300}])
def test_a_direct_call_that_names_no_session_is_refused(summary: Any, event: Json) -> None:
    with pytest.raises(ValidationError):
        summary.handler(event, CONTEXT)


def test_models_that_end_soon_are_counted_and_logged(
    summary: Any,
    model: OfflineModel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert summary.handler({"model_ends": True}, CONTEXT) == {"status": "checked", "ending": []}
    monkeypatch.setitem(model.shutdown_dates, Settings().model, "2001-02-03")
    assert summary.handler({"model_ends": True}, CONTEXT) == {"status": "checked", "ending": [Settings().model]}
    counts = [json.loads(line)["ModelsEndingSoon"] for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    assert counts == [[0.0], [1.0]]
    [warning] = [record.__dict__ for record in caplog.records if record.message == "model ends soon"]
    assert (warning["model"], str(warning["shutdown_date"])) == (Settings().model, "2001-02-03")


def test_a_rebuild_that_comes_twice_is_done_once(summary: Any, chats: Chats, model: OfflineModel) -> None:
    key = chats.add(2)
    rebuild = order(key, rebuild=True)
    assert failures(summary.handler(batch(rebuild), CONTEXT)) == []
    asked = len(model.requests)
    assert failures(summary.handler(batch(rebuild, rebuild), CONTEXT)) == []
    assert len(model.requests) == asked
    assert chats.summaries(key) == [(1, 2)]
    assert summary.handler({"session_id": key, "rebuild": True}, CONTEXT)["status"] == "summarized", "by hand"


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_summary_that_does_not_end_in_time_goes_on_from_the_queue(
    summary: Any, chats: Chats, queue: RecordedQueue, rebuild: bool
) -> None:
    key = chats.add(60)
    answer = summary.handler({"session_id": key, "rebuild": rebuild}, HURRIED)
    assert answer["status"] == "unfinished"
    [rest] = queue.sent
    assert rest == {"session_id": key, "rebuild": rebuild}
    assert failures(summary.handler(batch(json.dumps(rest)), CONTEXT)) == []
    assert chats.summaries(key)[-1][1] == 60


def test_the_indexes_of_a_release_are_built_by_a_direct_call(summary: Any, world: World) -> None:
    note = world.database["omniagent_schema"]
    note.delete_many({})
    assert summary.handler({"indexes": True}, CONTEXT) == {"status": "indexed"}
    assert note.count_documents({}) == 1


def test_a_build_longer_than_the_invocation_is_reported_as_going_on(
    summary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def build_indexes(_: Application) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Application, "build_indexes", build_indexes)
    assert summary.handler({"indexes": True}, HURRIED) == {"status": "building"}
