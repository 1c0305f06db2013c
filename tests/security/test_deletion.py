"""Deletion over HTTP and by the run function: of any size, and not to be forged."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omniagent.errors import OmniAgentError
from omniagent.session.ids import user_id_of
from tests.fixtures.functions import load
from tests.fixtures.jobs import CONTEXT, RecordedQueue, batch, failures
from tests.fixtures.world import World

Json = dict[str, Any]
SWEEP = {"kind": "sweep"}


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The run function's module, in the world of the test."""
    monkeypatch.setattr(world.application.platform, "run_queue", RecordedQueue())
    return load("run", world.application)


def let_time_pass(world: World) -> None:
    """Let all marks grow old."""
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    for collection in (world.database.users, world.database.sessions):
        collection.update_many({"erased_at": {"$type": "date"}}, {"$set": {"erased_at": an_hour_ago}})


def test_a_sweep_whose_deletion_fails_is_an_error_of_the_function(world: World, run: Any) -> None:
    """It raises the function's alarm."""

    async def on_erase(user: str, session_id: str | None) -> None:
        raise OSError("the team's store is down")

    user = world.user()
    user.ask("[echo:Hello.]")
    with world.changed(on_erase=on_erase):
        assert user.call("DELETE", "/users/me").status_code == 204
        let_time_pass(world)
        with pytest.raises(OmniAgentError, match="2 deletions failed"):
            run.handler(SWEEP, CONTEXT)
    run.handler(SWEEP, CONTEXT)
    assert world.database.users.find_one({"_id": user_id_of(user.client_id)}) is None


def test_no_queue_that_the_chat_function_writes_to_brings_a_deletion(world: World, run: Any, summary: Any) -> None:
    user = world.user()
    user.ask("[echo:Hello.]")
    forged: list[Json] = [{"kind": "erase", "id": key} for key in (user.key, user_id_of(user.client_id))]
    for function in (run, summary):
        for job in (*forged, SWEEP, {"indexes": True}, {"model_ends": True}):
            assert failures(function.handler(batch(json.dumps(job)), CONTEXT)) == ["message-1"]
    assert len(user.messages()) == 2


def test_an_operator_deletes_a_session_or_a_user_by_its_id(world: World, run: Any) -> None:
    user = world.user()
    for job_id in (user.key, user_id_of(user.client_id)):
        user.ask("[echo:Hello.]")
        assert run.handler({"kind": "erase", "id": job_id}, CONTEXT) == {"status": "erased", "id": job_id}
        assert user.call("GET", "/sessions/{}").status_code == 404
    assert run.handler({"kind": "erase", "id": user.key}, CONTEXT) == {"status": "not_found", "id": user.key}
