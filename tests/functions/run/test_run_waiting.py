"""Turns that wait, as the run function sees them: they expire, and the messages behind them are run."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import pytest

from omniagent.errors import StorageUnavailable
from omniagent.lambda_runtime import event_loop
from omniagent.messages import CallRequest, TextPart, ToolPart
from omniagent.persistence.catalog import Catalog
from omniagent.session.manager import SessionMessage, TurnStart, new_id
from omniagent.turns.lease import Claim, InboxMessage, TurnRegistry
from omniagent.turns.memory_registry import MemoryRegistry
from tests.fixtures.conversation import Clock, move_clock
from tests.fixtures.jobs import CONTEXT, batch
from tests.fixtures.world import User, World
from tests.functions.run.dead_turns import LEASE_SECONDS, Functions, Json, stored_answer


def test_requests_that_have_expired_are_closed_though_nobody_looks(functions: Functions, world: World) -> None:
    def wait(*, until: datetime) -> str:
        async def waited() -> str:
            session = await world.application.session("user:ada", new_id())
            turn_id = new_id()
            await session.begin_turn(TurnStart(turn_id, 1, "m1", [TextPart(text="Refund it")]))
            request = CallRequest(id=new_id(), kind="approval", expires_at=until)
            part = ToolPart(call_id="c1", name="refund", input={}, request=request)
            await session.finish_turn(SessionMessage(turn_id, "assistant", 1, [part], "waiting"))
            return session.key

        return event_loop.run(waited())

    expired = wait(until=datetime.now(UTC) - timedelta(seconds=1))
    waiting = wait(until=datetime.now(UTC) + timedelta(days=1))
    assert functions.run.handler({"kind": "expiry"}, CONTEXT) == {"status": "closed", "closed": 1}
    assert stored_answer(world, expired)["status"] == "cancelled"
    assert stored_answer(world, waiting)["status"] == "waiting"
    assert functions.run.handler({"kind": "expiry"}, CONTEXT) == {"status": "closed", "closed": 0}


REFUND = '[tool:refund {"order": 42, "euros": 500}] [then] [echo:Done.]'


def hold_up(world: World, user: User) -> None:
    """Have a turn wait for an approval, and a message wait for it whose process is gone."""
    assert user.ask(REFUND, message_id="m1")[-1]["data"]["status"] == "waiting"

    async def posted() -> None:
        claim, registry = Claim(user.key, new_id(), "m1"), world.application.registry
        await registry.claim(claim)
        await registry.post(claim, InboxMessage("m2", "[echo:The second.]"), 5)
        await registry.release(claim)

    event_loop.run(posted())


def approvals(user: User) -> list[Json]:
    """The answers that approve what the last message asks."""
    calls = [part for part in user.messages()[-1]["parts"] if part["type"] == "tool-refund"]
    return [{"tool_call_id": call["toolCallId"], "approved": True} for call in calls]


@pytest.mark.parametrize("way", ["schedule", "look", "late answer", "stop", "deletion"])
def test_a_message_that_waited_for_a_turn_is_run_when_that_turn_is_closed(
    functions: Functions, world: World, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    user = world.user()
    hold_up(world, user)
    answers = approvals(user)
    functions.watches.sent.clear()
    if way not in ("stop", "deletion"):
        move_clock(monkeypatch, days=61)
    match way:
        case "schedule":
            assert functions.run.handler({"kind": "expiry"}, CONTEXT)["status"] == "closed"
        case "look":
            assert user.messages()[-1]["metadata"]["stopReason"] == "expired"
        case "late answer":
            assert user.post({"session_id": user.session, "replies": answers}).status_code == 410
        case "stop":
            assert user.call("POST", "/sessions/{}/cancel", json={"message_id": "m1"}).status_code == 202
        case _:
            path = f"/sessions/{{}}/messages/{user.messages()[-1]['id']}"
            assert user.call("DELETE", path).status_code == 204
    *_, message = [sent for sent in functions.watches.sent if sent["session_id"] == user.key]
    assert message["delay"] == 0
    functions.check(user.key, message["turn_id"])
    assert stored_answer(world, user.key, 2)["parts"][-1]["text"] == "The second."


class Killed(BaseException):
    """The end of a process."""


async def killed(*_: object) -> NoReturn:
    raise Killed


@pytest.mark.parametrize("way", ["schedule", "stop"])
def test_a_queued_message_runs_although_the_closer_of_the_turn_is_killed(
    functions: Functions, world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    user = world.user()
    hold_up(world, user)
    functions.watches.sent.clear()

    def close() -> None:
        if way == "schedule":
            functions.run.handler({"kind": "expiry"}, CONTEXT)
        else:
            runner = event_loop.run(world.application.runner_of_key(user.key))
            event_loop.run(runner.stop("m1"))

    with monkeypatch.context() as patch:
        patch.setattr(MemoryRegistry, "release", killed)
        if way == "schedule":
            move_clock(patch, days=61)
        with pytest.raises(Killed):
            close()
    [message] = functions.watches.taken()
    functions.check(user.key, message["turn_id"])
    assert functions.watches.checks == [("", 0, 31)], "the session is still claimed"
    clock.pass_by(LEASE_SECONDS)
    functions.check(user.key, "")
    assert stored_answer(world, user.key, 2)["parts"][-1]["text"] == "The second."


def test_a_message_behind_a_deleted_answer_runs_although_the_session_was_held(
    functions: Functions, world: World
) -> None:
    user, registry = world.user(), world.application.registry
    hold_up(world, user)
    functions.watches.sent.clear()
    replay = Claim(user.key, new_id(), "regenerate:m1")
    assert event_loop.run(registry.claim(replay)) is None
    path = f"/sessions/{{}}/messages/{user.messages()[-1]['id']}"
    assert user.call("DELETE", path).status_code == 204
    event_loop.run(registry.release(replay))
    [message] = functions.watches.taken()
    functions.check(user.key, message["turn_id"])
    assert stored_answer(world, user.key, 2)["parts"][-1]["text"] == "The second."


def test_a_message_behind_a_deleted_answer_runs_without_any_notice(
    functions: Functions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, delete = world.user(), Catalog.delete_message

    async def deleted(*arguments: Any) -> None:
        await delete(*arguments)
        raise StorageUnavailable("the answer was lost")

    hold_up(world, user)
    functions.watches.sent.clear()
    path = f"/sessions/{{}}/messages/{user.messages()[-1]['id']}"
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "delete_message", deleted)
        assert user.call("DELETE", path).status_code == 503
    functions.watches.sent.clear()  # or its process was killed
    assert user.call("DELETE", path).status_code == 404, "it is gone"
    [message] = functions.watches.taken()
    functions.check(user.key, message["turn_id"])
    assert stored_answer(world, user.key, 2)["parts"][-1]["text"] == "The second."


class Counted(MemoryRegistry):
    """Counts its calls: each would be a request of DynamoDB."""

    calls = 0

    def __getattribute__(self, name: str) -> Any:
        if name in TurnRegistry.__abstractmethods__:
            Counted.calls += 1
        return super().__getattribute__(name)


def test_a_waiting_turn_has_no_watch_and_costs_nothing(functions: Functions, world: World, clock: Clock) -> None:
    """Not even with a message behind it. An hourly look for expired requests serves all sessions, and only reads."""
    world.application.__dict__["registry"] = Counted(lease_seconds=LEASE_SECONDS, clock=clock)
    user = world.user()
    hold_up(world, user)
    world.database.command("profile", 2)
    clock.pass_by(LEASE_SECONDS)
    watches_of_the_turn = [json.dumps(sent) for sent in functions.watches.sent]
    functions.watches.sent.clear()
    for message in watches_of_the_turn:  # sent when it began, delivered while it waits
        functions.watch.handler(batch(message), CONTEXT)
    assert (len(watches_of_the_turn), functions.watches.sent) == (1, [])
    requests = Counted.calls
    functions.run.handler({"kind": "expiry"}, CONTEXT)
    assert (Counted.calls, functions.watches.sent, functions.runs.sent) == (requests, [], [])
    world.database.command("profile", 0)
    done = list(world.database["system.profile"].find())
    assert [operation for operation in done if "find" in operation.get("command", {})], "it is profiled"
    writes = {"insert", "update", "remove", "findAndModify", "findandmodify"}
    assert [each for each in done if each["op"] in writes or writes & each.get("command", {}).keys()] == []
    assert user.post({"session_id": user.session, "replies": approvals(user)}).status_code == 200
    second = stored_answer(world, user.key, 2)
    assert second["parts"][-1]["text"] == "The second.", "whoever approves answers what has waited"
