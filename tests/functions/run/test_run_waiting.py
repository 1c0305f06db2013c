"""Turns that wait, as the run function sees them: they expire, and the messages behind them are run."""

from typing import Any

import pytest

from omniagent.turns.registry import MemoryRegistry, TurnRegistry
from tests.fixtures.conversation import move_clock
from tests.fixtures.world import User, World
from tests.functions.run.dead_turns import Json, RunFunction, queue_behind, stored_answer

REFUND = '[tool:refund {"order": 42, "euros": 500}] [then] [echo:Done.]'


def hold_up(world: World, user: User) -> None:
    """Have a turn wait for an approval, and a message wait for it whose process is gone."""
    assert user.ask(REFUND, message_id="m1")[-1]["data"]["status"] == "waiting"
    queue_behind(world, user.key, "[echo:The second.]")


def approvals(user: User) -> list[Json]:
    """The replies that approve what the last message asks."""
    calls = [part for part in user.messages()[-1]["parts"] if part["type"] == "tool-refund"]
    return [{"tool_call_id": call["toolCallId"], "approved": True} for call in calls]


def test_a_sweep_closes_only_requests_that_have_expired(
    run: RunFunction, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired, waiting = world.user(), world.user()
    expired.ask(REFUND)
    with monkeypatch.context() as patch:
        move_clock(patch, days=40)
        waiting.ask(REFUND)
    move_clock(monkeypatch, days=61)
    run.work()
    assert stored_answer(world, expired.key)["status"] == "cancelled"
    assert expired.messages()[-1]["metadata"]["stopReason"] == "expired"
    assert stored_answer(world, waiting.key)["status"] == "waiting"
    assert run.sweep()["sessions"] == 0


@pytest.mark.parametrize("way", ["sweep", "stop", "deletion"])
def test_a_message_that_waited_for_a_turn_is_run_when_that_turn_is_closed(
    run: RunFunction, world: World, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    user = world.user()
    hold_up(world, user)
    match way:
        case "sweep":
            move_clock(monkeypatch, days=61)
            run.sweep()
        case "stop":
            assert user.call("POST", "/sessions/{}/cancel", json={"message_id": "m1"}).status_code == 202
        case _:
            path = f"/sessions/{{}}/messages/{user.messages()[-1]['id']}"
            assert user.call("DELETE", path).status_code == 204
    [job] = run.queue.taken("run")
    run.take(job)
    assert stored_answer(world, user.key, 2)["parts"][-1]["text"] == "The second."


class Counted(MemoryRegistry):
    """Counts its calls: each would be a request of DynamoDB."""

    calls = 0

    def __getattribute__(self, name: str) -> Any:
        if name in TurnRegistry.__abstractmethods__:
            Counted.calls += 1
        return super().__getattribute__(name)


def test_a_waiting_turn_costs_nothing(run: RunFunction, world: World) -> None:
    """Not even with a message behind it: the sweep reads for all sessions at once."""
    world.use(Counted())
    user = world.user()
    hold_up(world, user)
    requests = Counted.calls
    world.database.command("profile", 2)
    assert run.sweep()["sessions"] == 0
    world.database.command("profile", 0)
    assert (Counted.calls, run.queue.sent) == (requests, [])
    done = list(world.database["system.profile"].find())
    assert [operation for operation in done if "find" in operation.get("command", {})], "it is profiled"
    writes = {"insert", "update", "remove", "findAndModify", "findandmodify"}
    assert [each for each in done if each["op"] in writes or writes & each.get("command", {}).keys()] == []
    assert user.post({"session_id": user.session, "replies": approvals(user)}).status_code == 200
    run.take(*run.queue.taken("run"))
    assert stored_answer(world, user.key, 2)["parts"][-1]["text"] == "The second."
