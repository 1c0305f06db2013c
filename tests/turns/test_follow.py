"""A turn that is followed, through `resume` and a retry: its readers, its process's death, its hand-over."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import pytest

from omniagent import Agent, AnswerStream, TurnHooks, tool
from omniagent.ai import runner
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers.scripted import Gate
from omniagent.ai.result import StreamPosition
from omniagent.errors import TooManyReaders, TurnInProgress
from omniagent.protocol import sse
from omniagent.testing import ScriptedModel, ToolCall
from omniagent.turns import setup
from omniagent.turns.engine import following
from omniagent.turns.journal.readers import LOST
from omniagent.turns.setup import TimeLimit
from omniagent.turns.watch.takeover import MAX_ATTEMPTS
from tests.fixtures.stream import check_order
from tests.runner.processes import Process, cancel_all_but
from tests.runner.sessions import Polled, until
from tests.turns.deaths import LEASE_SECONDS, QUERY, World
from tests.turns.registries import Unreliable

LONG = 600.0
"""Seconds that a process has: more than it needs."""


class FollowersClock:
    """Tells followers how long a journal is silent. A test moves it instead of waiting."""

    passed = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


CLOCK = FollowersClock()


@pytest.fixture(autouse=True)
def _moved_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "time", CLOCK)


class House(World):
    """One session, its registry and any number of processes that share them. Its clock stands still."""

    def __init__(self, *script: object, registry: Polled | None = None) -> None:
        super().__init__()
        self.begun = super().now()
        self.registry = registry or self.registry
        self.gate = Gate()
        self.model = ScriptedModel(*(script or (["Half ", self.gate, "and all."],)))  # type: ignore[arg-type]
        self.hand_overs = 0

        @tool
        async def work() -> str:
            """Work."""
            self.runs.append("work")
            return "worked"

        @tool(approval=True)
        async def pay() -> str:
            """Pay."""
            self.runs.append("pay")
            return "paid"

        self.agent = Agent("helper", "", [work, pay])

    def now(self) -> datetime:
        return self.begun + self.passed

    def worker(self, process: Process | None = None) -> TurnOperator:
        """Return a runner in another process, which may leave its turn to others."""
        process = process or Process(self)
        options = {"registry": process.registry, "hooks": TurnHooks(on_work=self._note)}
        return self.runner(self.model, agent=self.agent, session=process.session, **options)

    def kill(self, process: Process) -> None:
        """End a process and let its lease pass."""
        process.is_dead = True
        CLOCK.passed += LEASE_SECONDS + 1
        self.passed += timedelta(seconds=LEASE_SECONDS + 1)

    async def resumed(self) -> AnswerStream:
        stream = await self.worker().resume()
        assert stream is not None
        return stream

    async def _note(self) -> None:
        self.hand_overs += 1


async def joined(frames: AsyncIterator[bytes]) -> bytes:
    return b"".join([each async for each in frames])


def text_of(stream: bytes) -> str:
    return "".join(event["delta"] for event in sse.decode(stream) if event["type"] == "text-delta")


async def test_readers_are_limited_per_user_and_leave_with_their_stream() -> None:
    house = House()
    house.settings = replace(house.settings, max_readers_per_user=1)
    turn = await house.worker().start(QUERY)
    reader = await house.resumed()
    with pytest.raises(TooManyReaders):
        await house.worker().resume()
    with pytest.raises(TooManyReaders):
        await (await house.worker().start(QUERY)).result()
    house.gate.set()
    assert (await joined(reader.sse())).endswith(sse.DONE)
    await turn.ended()
    assert await house.registry.count_reader(house.session().user_id, "next", 1) == 1


async def test_a_reader_whose_time_is_over_ends_without_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FOLLOW_SECONDS", 0.01)
    house = House()
    turn = await house.worker().start(QUERY)
    assert not (await joined((await house.resumed()).sse())).endswith(sse.DONE)
    with pytest.raises(TurnInProgress):
        await (await house.worker().start(QUERY)).result()
    house.gate.set()
    assert (await turn.result()).text == "Half and all."
    await turn.ended()


async def test_a_reader_of_a_silent_turn_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "KEEP_ALIVE_SECONDS", 0.02)
    house = House([gate := Gate(), "At last."])
    turn = await house.worker().start(QUERY)
    frames = (await house.resumed()).sse()
    comments = 0
    while comments < 3:
        comments += await anext(frames) == sse.KEEP_ALIVE
    gate.set()
    assert text_of(await joined(frames)) == "At last."
    await turn.ended()


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_registry_that_is_down_costs_a_reader_nothing(comes_back: bool) -> None:
    """If it stays down, the reader gets the stored answer."""
    registry = Unreliable()
    house = House(registry=registry)
    turn = await house.worker().start(QUERY)
    reading = asyncio.create_task(joined((await house.resumed()).sse()))
    await house.gate.reached()
    registry.is_down = True

    async def has_failed() -> bool:
        return registry.refusals > 5

    await until(has_failed)
    registry.is_down = not comes_back
    house.gate.set()
    await turn.result()
    CLOCK.passed += LEASE_SECONDS
    shown = await reading
    check_order(list(sse.decode(shown)))
    assert (text_of(shown), shown.endswith(sse.DONE)) == ("Half and all.", True)
    await turn.ended()


@pytest.mark.usefixtures("_buried")
@pytest.mark.parametrize("is_dead_before", [True, False])
async def test_a_position_in_what_a_dead_process_showed_is_lost(is_dead_before: bool) -> None:
    house = House(["Half ", gate := Gate(), "and all."], ["Another answer."])
    process = Process(house)
    turn = await house.worker(process).start(QUERY)
    await gate.reached()
    seen = 0
    async for frames in turn.sse():
        seen += len(list(sse.decode(frames)))
        if "Half" in text_of(frames):
            break
    position = StreamPosition(turn.journal_id, seen)
    if is_dead_before:
        house.kill(process)
        await joined((await house.resumed()).sse())
    house.settings = replace(house.settings, lease_seconds=0.3)  # its follower soon takes silence for death
    rest = await house.worker().resume(after=position)
    assert rest is not None
    if not is_dead_before:
        house.kill(process)
    assert (await joined(rest.sse())).endswith(LOST)
    await rest.ended()


async def test_a_position_is_lost_with_its_journal() -> None:
    house = House("All of it.")
    turn = await house.worker().start(QUERY)
    await turn.ended()
    await house.registry.erase(house.session().key)
    house.settings = replace(house.settings, lease_seconds=0.3)  # its follower soon takes silence for death
    rest = await house.worker().resume(after=StreamPosition(turn.journal_id, 2))
    assert rest is not None
    assert (await joined(rest.sse())).endswith(LOST)


async def test_the_rest_of_a_continued_turn_follows_what_its_client_has_seen() -> None:
    house = House(["Let me see.", ToolCall("pay")], "It is paid.")
    await (await house.worker().start(QUERY)).ended()
    [request] = await house.worker().requests()
    turn = await house.worker().reply(request.approve())
    live = [event async for event in turn]
    await turn.ended()
    rest = await house.worker().resume(after=StreamPosition(turn.journal_id, 3))
    assert rest is not None
    assert [event async for event in rest] == live[3:]
    await rest.ended()


async def test_a_turn_that_waited_and_goes_on_is_followed_from_its_first_event() -> None:
    gate = Gate()
    house = House(["Let me see.", ToolCall("pay")], ["It ", gate, "is paid."])
    waiting = await house.worker().start(QUERY)
    assert (await waiting.result()).status == "waiting"
    await waiting.ended()
    [request] = await house.worker().requests()
    turn = await house.worker().reply(request.approve())
    reading = [
        asyncio.create_task(joined(stream.sse()))
        for stream in (await house.resumed(), await house.worker().start(QUERY))
    ]
    await gate.reached()
    gate.set()
    for shown in await asyncio.gather(*reading):
        assert [event["type"] for event in sse.decode(shown)].count("start") == 1
        assert text_of(shown) == "Let me see.It is paid."
    await turn.ended()
    assert len(house.runs) == 1


# --- A process that dies while it is followed ---


@pytest.fixture
async def _buried() -> AsyncIterator[None]:
    """End what a dead process left behind."""
    living = asyncio.all_tasks()
    yield
    await cancel_all_but(living)


@pytest.mark.usefixtures("_buried")
@pytest.mark.parametrize("how", ["unseen", "resets", "resumes"])
async def test_a_follower_goes_on_with_a_turn_whose_process_dies(how: str) -> None:
    seen, never = Gate(), Gate()
    house = House(["Half ", seen, "an ", never], "A complete answer.")
    process = Process(house)
    await house.worker(process).start(QUERY)
    await seen.reached()

    await until(lambda: house.is_written(b"Half"))
    reader = await house.resumed()
    frames = reader.sse(resets=how == "resets")
    shown = await anext(frames) + await anext(frames)
    assert text_of(shown) == "", "held back until its process is known to be alive"
    if how != "unseen":
        seen.set()
        while text_of(shown) != "Half an ":
            shown += await anext(frames)
    house.kill(process)
    shown += await joined(frames)
    await reader.ended()
    kinds = [event["type"] for event in sse.decode(shown)]
    assert ("reset-step" in kinds, shown.endswith(sse.DONE)) == (how == "resets", how != "resumes")
    assert (
        text_of(shown)
        == {
            "unseen": "A complete answer.",
            "resets": "Half an A complete answer.",
            "resumes": "Half an ",
        }[how]
    )
    answer = await house.answer()
    assert (answer.status, answer.text) == ("complete", "A complete answer.")
    assert text_of(await joined((await house.resumed()).sse())) == answer.text


# --- A turn that is handed over ---


@pytest.fixture
def _closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little time is left wherever a turn may be handed over."""
    monkeypatch.setattr(setup, "CLOSING_SECONDS", math.inf)
    monkeypatch.setattr(runner, "TimeLimit", partial(TimeLimit, opened_at=time.monotonic() - 10 * LONG))


async def handed_on(house: House) -> int:
    """Let one process after the other work on the turn, with the clock standing still. Returns how many did."""
    stream: AnswerStream | None = await house.worker().start(QUERY, deadline=time.monotonic() + LONG)
    processes = 0
    while stream is not None:
        processes += 1
        await stream.ended()
        stream = await house.worker().take_up(deadline=time.monotonic() + LONG)
    return processes


@pytest.mark.usefixtures("_closing")
async def test_a_turn_is_handed_over_any_number_of_times_without_waiting() -> None:
    house = House(*[[f"Step {n}. ", ToolCall("work")] for n in range(4)], "Arrived.")
    processes = await handed_on(house)
    answer = await house.answer()
    assert (answer.status, answer.text) == ("complete", "Step 0. Step 1. Step 2. Step 3. Arrived.")
    assert (len(house.model.requests), len(house.runs)) == (5, 4)
    assert house.hand_overs == processes - 1 > MAX_ATTEMPTS


@pytest.mark.usefixtures("_closing")
async def test_the_follower_of_a_turn_that_is_handed_over_sees_one_stream() -> None:
    house = House(["First ", gate := Gate(), "this. ", ToolCall("work")], "Then that.")
    turn = await house.worker().start(QUERY, deadline=time.monotonic() + LONG)
    result = asyncio.create_task(turn.result())
    await gate.reached()
    reader = await house.resumed()
    gate.set()
    shown = await joined(reader.sse())
    with pytest.raises(TurnInProgress):
        await result
    await reader.ended()
    check_order(list(sse.decode(shown)))
    assert (text_of(shown), house.hand_overs, len(house.runs)) == ("First this. Then that.", 1, 1)


async def test_hand_overs_without_progress_count_as_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = partial(TimeLimit, margin_seconds=2 * LONG, opened_at=time.monotonic() - 10 * LONG)
    monkeypatch.setattr(runner, "TimeLimit", is_over)
    house = House(*[[Gate()] for _ in range(2 * MAX_ATTEMPTS)])
    assert await handed_on(house) == MAX_ATTEMPTS + 1
    assert (await house.answer()).status == "interrupted"
