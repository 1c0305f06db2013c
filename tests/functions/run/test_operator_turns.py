"""The operator's list of turns, and the stop of one: the run function, invoked directly."""

import json
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from omniagent.lambda_runtime import event_loop
from omniagent.messages import CallRequest, ToolPart
from omniagent.session.live import SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.turns.state import transition
from omniagent.turns.state_events import Wait
from tests.fixtures.live_turns import begin_turn, end_turn
from tests.fixtures.world import User, World
from tests.functions.run.dead_turns import Json, RunFunction, queue_behind

LATER = datetime(2100, 1, 1, tzinfo=UTC)
TEXT = "what nobody else may read"


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


def listed(run: RunFunction) -> list[Json]:
    answer = run.invoke({"kind": "turns"})
    assert TEXT not in json.dumps(answer)
    turns: list[Json] = answer["turns"]
    return turns


def test_turns_of_all_users_are_listed_without_their_text(run: RunFunction, world: World) -> None:
    running, waiting, ended = world.user(), world.user(), world.user()
    turn = event_loop.run(begin_turn(session_of(world, running), TEXT))
    queue_behind(world, running.key, TEXT, "next")
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


def test_one_message_in_line_is_stopped_and_the_turn_runs_on(run: RunFunction, world: World) -> None:
    user = world.user()
    event_loop.run(begin_turn(session_of(world, user)))
    queue_behind(world, user.key, TEXT, "next")
    stop = {"kind": "stop", "id": f"{user.key}/next"}
    assert run.invoke(stop) == {"status": "stopped", "id": stop["id"]}
    assert [each["state"] for each in listed(run)] == ["running"]
    assert run.invoke(stop)["status"] == "nothing"


def test_everything_of_a_session_is_stopped_by_its_key(run: RunFunction, world: World) -> None:
    user = world.user()
    event_loop.run(begin_turn(session_of(world, user), is_dead=True))
    queue_behind(world, user.key, TEXT, "next")
    assert run.invoke({"kind": "stop", "id": user.key})["status"] == "stopped"
    assert listed(run) == []
    assert user.messages()[1]["metadata"]["status"] == "cancelled"


def test_a_waiting_turn_is_stopped_by_the_id_of_the_list(run: RunFunction, world: World) -> None:
    user = world.user()
    event_loop.run(wait(session_of(world, user)))
    [turn] = listed(run)
    assert run.invoke({"kind": "stop", "id": turn["id"]})["status"] == "stopped"
    assert listed(run) == []


def test_a_stop_of_an_unknown_turn_changes_nothing(run: RunFunction, world: World) -> None:
    unknown = world.user()
    assert run.invoke({"kind": "stop", "id": unknown.key})["status"] == "not_found"
    with pytest.raises(ValidationError):
        run.invoke({"kind": "stop", "id": "*"})
