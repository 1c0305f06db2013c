"""The run function as Lambda calls it: it looks after turns, and finishes those whose process died."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from local.model import OfflineModel
from omniagent.aws.queues import RunQueue
from omniagent.errors import RegistryUnavailable
from omniagent.lambda_runtime import event_loop
from omniagent.messages import TextPart
from omniagent.session.manager import TurnStart, new_id
from omniagent.turns.lease import Claim
from omniagent.turns.memory_registry import MemoryRegistry
from tests.fixtures.conversation import Clock
from tests.fixtures.functions import load
from tests.fixtures.jobs import CONTEXT, batch, failures
from tests.fixtures.world import World, open_world

Json = dict[str, Any]


class RecordedWatches(RunQueue):
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__("")
        self.sent: list[Json] = []

    async def send_watch(self, key: str, turn_id: str, *, delay_seconds: float, tries: int = 0) -> None:
        self.sent.append({"session_id": key, "turn_id": turn_id, "delay": delay_seconds, "tries": tries})


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel) -> Iterator[World]:
    with open_world(mongod, model.base_url, run_queue_url="https://sqs.eu-west-1.amazonaws.com/1/run") as world:
        yield world


@pytest.fixture
def watches(world: World) -> RecordedWatches:
    queue = RecordedWatches()
    world.services.__dict__["run_queue"] = queue
    return queue


@pytest.fixture
def clock(world: World) -> Clock:
    """The clock of the leases."""
    clock = Clock()
    world.services.__dict__["registry"] = MemoryRegistry(lease_seconds=10.0, clock=clock)
    return clock


@pytest.fixture
def run(world: World, watches: RecordedWatches, clock: Clock) -> Any:
    return load("run", world.services)


def begin(world: World) -> tuple[str, str]:
    """Begin a turn that nobody runs. Returns the key of its session, and its id."""

    async def begun() -> tuple[str, str]:
        session = await world.services.session("user:ada", new_id())
        turn_id = new_id()
        await session.admit(5, turn_id)
        await world.services.registry.claim(Claim(session.key, turn_id, "m1"))
        await session.begin_turn(TurnStart(turn_id, 1, "m1", [TextPart(text="[echo:Finished after all.]")]))
        return session.key, turn_id

    return event_loop.run(begun())


def watch(key: str, turn_id: str, **more: Any) -> str:
    return json.dumps({"session_id": key, "turn_id": turn_id, **more})


def answer_of(world: World, key: str) -> Json | None:
    return world.database.messages.find_one({"session_id": key, "role": "assistant"})


def test_a_turn_that_lives_is_looked_at_again_when_its_lease_has_run_out(
    run: Any, world: World, watches: RecordedWatches, clock: Clock
) -> None:
    key, turn_id = begin(world)
    clock.pass_by(4)
    assert failures(run.handler(batch(watch(key, turn_id, tries=3)), CONTEXT)) == []
    assert watches.sent == [{"session_id": key, "turn_id": turn_id, "delay": 7, "tries": 0}]
    assert answer_of(world, key) is None


def test_a_dead_turn_is_finished_and_looked_after_meanwhile(
    run: Any, world: World, watches: RecordedWatches, clock: Clock
) -> None:
    key, turn_id = begin(world)
    clock.pass_by(10)
    assert failures(run.handler(batch(watch(key, turn_id)), CONTEXT)) == []
    answer = answer_of(world, key)
    assert answer is not None
    assert (answer["status"], answer["client_message_id"]) == ("complete", turn_id)
    assert [(sent["turn_id"], sent["delay"]) for sent in watches.sent] == [(turn_id, 31)]


def test_a_turn_that_has_ended_needs_nothing(run: Any, world: World, watches: RecordedWatches, clock: Clock) -> None:
    key, turn_id = begin(world)
    clock.pass_by(10)
    run.handler(batch(watch(key, turn_id)), CONTEXT)
    watches.sent.clear()
    assert failures(run.handler(batch(watch(key, turn_id), watch(key, "another")), CONTEXT)) == []
    assert watches.sent == []


def test_of_several_dead_turns_each_gets_an_invocation_of_its_own(
    run: Any, world: World, watches: RecordedWatches, clock: Clock
) -> None:
    turns = [begin(world) for _ in range(3)]
    clock.pass_by(10)
    run.handler(batch(*(watch(*turn) for turn in turns)), CONTEXT)
    assert [answer_of(world, key) is not None for key, _ in turns] == [True, False, False]
    again = [(sent["session_id"], sent["turn_id"]) for sent in watches.sent if not sent["delay"]]
    assert again == turns[1:]


def test_a_look_that_fails_is_repeated_soon_and_not_for_ever(
    run: Any, world: World, watches: RecordedWatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, turn_id = begin(world)

    async def down(_: str) -> None:
        raise RegistryUnavailable("down")

    monkeypatch.setattr(world.services.registry, "running", down, raising=False)
    assert failures(run.handler(batch(watch(key, turn_id, tries=2)), CONTEXT)) == []
    assert [sent["tries"] for sent in watches.sent] == [3]
    assert failures(run.handler(batch(watch(key, turn_id, tries=run.MAX_TRIES)), CONTEXT)) == ["message-1"]


def test_what_is_no_watch_goes_to_the_dead_letters(run: Any) -> None:
    assert failures(run.handler(batch("{}", "nonsense"), CONTEXT)) == ["message-1", "message-2"]


def test_a_turn_can_be_continued_by_hand(run: Any, world: World, clock: Clock) -> None:
    key, turn_id = begin(world)
    clock.pass_by(10)
    event = {"session_id": key, "turn_id": turn_id}
    assert run.handler(event, CONTEXT) == {"session_id": key, "status": "continued"}
    assert run.handler(event, CONTEXT) == {"session_id": key, "status": "looked"}
