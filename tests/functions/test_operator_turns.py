"""The operator's list of turns, and the stop of one: the run function, invoked directly."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from local.model import OfflineModel
from omniagent.lambda_runtime import event_loop
from omniagent.messages import CallRequest, ToolPart
from omniagent.session.live import SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.turns.state import transition
from omniagent.turns.state_events import Wait
from tests.fixtures.functions import load
from tests.fixtures.jobs import CONTEXT
from tests.fixtures.live_turns import begin_turn, end_turn, enqueue
from tests.fixtures.world import User, World, open_world

Json = dict[str, Any]
LATER = datetime(2100, 1, 1, tzinfo=UTC)
TEXT = "what nobody else may read"


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel) -> Iterator[World]:
    with open_world(mongod, model.base_url) as world:
        yield world


@pytest.fixture
def run(world: World) -> Any:
    world.database.sessions.delete_many({})  # an earlier test's turns
    return load("run", world.application)


async def wait(session: SessionManager) -> None:
    """Let the session's turn wait for an approval."""
    turn = await begin_turn(session, TEXT)
    request = CallRequest(id="r1", kind="approval", expires_at=LATER)
    part = ToolPart(call_id="c1", name="refund", input={"text": TEXT}, request=request)
    head = await session.head()
    assert head is not None
    answer = SessionMessage(turn.id, "assistant", turn.number, [part], "waiting")
    assert await session.write(transition(head, Wait(turn.run, answer), session.now()))


def session_of(world: World, user: User) -> SessionManager:
    return event_loop.run(world.application.session(user.client_id, user.session))


def listed(run: Any) -> list[Json]:
    answer = run.handler({"kind": "turns"}, CONTEXT)
    assert TEXT not in json.dumps(answer)
    turns: list[Json] = answer["turns"]
    return turns


def test_turns_of_all_users_are_listed_without_their_text(run: Any, world: World) -> None:
    running, waiting, ended = world.user(), world.user(), world.user()
    turn = event_loop.run(begin_turn(session_of(world, running), TEXT))
    event_loop.run(enqueue(session_of(world, running), TEXT, "next"))
    event_loop.run(wait(session_of(world, waiting)))
    event_loop.run(end_turn(session_of(world, ended), event_loop.run(begin_turn(session_of(world, ended), TEXT))))
    turns = listed(run)
    assert [(each["session_id"], each["state"]) for each in turns] == [
        (running.key, "running"),
        (running.key, "queued"),
        (waiting.key, "waiting"),
    ]
    assert [each["id"] for each in turns[:2]] == [f"{running.key}/{turn.id}", f"{running.key}/next"]
    assert turns[0]["since"].startswith(turn.since.strftime("%Y-%m-%dT%H:%M:%S"))
    assert turns[2]["until"].startswith("2100-01-01")


def test_one_message_in_line_is_stopped_and_the_turn_runs_on(run: Any, world: World) -> None:
    user = world.user()
    event_loop.run(begin_turn(session_of(world, user)))
    event_loop.run(enqueue(session_of(world, user), TEXT, "next"))
    stop = {"kind": "stop", "id": f"{user.key}/next"}
    assert run.handler(stop, CONTEXT) == {"status": "stopped", "id": stop["id"]}
    assert [each["state"] for each in listed(run)] == ["running"]
    assert run.handler(stop, CONTEXT)["status"] == "nothing"


def test_everything_of_a_session_is_stopped_by_its_key(run: Any, world: World) -> None:
    user = world.user()
    event_loop.run(begin_turn(session_of(world, user), is_dead=True))
    event_loop.run(enqueue(session_of(world, user), TEXT, "next"))
    assert run.handler({"kind": "stop", "id": user.key}, CONTEXT)["status"] == "stopped"
    assert listed(run) == []
    assert user.messages()[1]["metadata"]["status"] == "cancelled"


def test_a_waiting_turn_is_stopped_by_the_id_of_the_list(run: Any, world: World) -> None:
    user = world.user()
    event_loop.run(wait(session_of(world, user)))
    [turn] = listed(run)
    assert run.handler({"kind": "stop", "id": turn["id"]}, CONTEXT)["status"] == "stopped"
    assert listed(run) == []


def test_a_stop_of_an_unknown_turn_changes_nothing(run: Any, world: World) -> None:
    unknown = world.user()
    assert run.handler({"kind": "stop", "id": unknown.key}, CONTEXT)["status"] == "not_found"
    with pytest.raises(ValidationError):
        run.handler({"kind": "stop", "id": "*"}, CONTEXT)
