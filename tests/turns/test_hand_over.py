"""A turn that needs more time than its process has goes on in the next one, and its readers see one answer."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from omniagent import Agent, AnswerStream, Budget, Query, RunContext, Settings, TurnHooks, tool
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers.llm_provider import ModelRequest, ModelText, ModelToolCall, ModelToolDelta, ModelToolStart
from omniagent.ai.providers.scripted import Beat
from omniagent.errors import TurnInProgress
from omniagent.messages import Part, ToolPart
from omniagent.protocol import sse
from omniagent.session.manager import SessionMessage
from omniagent.testing import InMemoryStore, MemoryCounter, MemoryRegistry, ScriptedModel
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.lease import Claim
from omniagent.turns.replay import record_frames
from omniagent.turns.setup import MAX_ATTEMPTS
from tests.fixtures.conversation import Clock
from tests.runner.processes import Process, bury
from tests.runner.sessions import QUICK

QUERY = Query("Go on and on", "m1")
TOOL_STEPS = 5
LONG, SHORT = 600.0, 1.5
"""Seconds that a process has: more than it needs, or no more than it takes to do a little."""


class Journey:
    """One session whose turn calls a tool in each of its steps, and processes with little time."""

    def __init__(self, *, retry_safe: bool = False) -> None:
        self.store = InMemoryStore()
        self.clock = Clock()
        self.registry = MemoryRegistry(clock=self.clock)
        self.settings: Settings = replace(QUICK, tick_seconds=0.005, name_sessions=False, max_steps=TOOL_STEPS + 1)
        self.budget, self.counter = Budget(), MemoryCounter()
        self.handed_over: list[tuple[str, int]] = []
        self.runs: list[str] = []
        self.stalls_at: set[int] = set()
        """Model calls, by how many tools have run, that do not end in the process that makes them first."""
        self.tool_stalls = False
        self.model = ScriptedModel(default=self._answer)

        @tool(retry_safe=retry_safe)
        async def work(context: RunContext, n: int) -> str:
            """Work."""
            self.runs.append(context.call_id or "")
            if self.tool_stalls:
                self.tool_stalls = False
                await asyncio.Event().wait()
            return f"worked {n}"

        self.agent = Agent("helper", "", [work])

    def runner(self, *, hands_over: bool = True) -> TurnOperator:
        process = Process(self.store, self.registry, self.settings)
        hooks = TurnHooks(on_hand_over=self._note, grace_seconds=60.0) if hands_over else TurnHooks()
        return TurnOperator(
            self.agent,
            process.session,
            provider=self.model,
            registry=process.registry,
            hooks=hooks,
            budget=self.budget,
            counter=self.counter,
        )

    async def finish(self, seconds: float = LONG) -> SessionMessage:
        """Let one process after the other go on until the turn has ended."""
        stream: AnswerStream | None = await self.runner().start(QUERY, deadline=time.monotonic() + seconds)
        while stream is not None:
            await stream.ended()
            lease_left = await self.runner().look(*self.handed_over[-1])
            if lease_left is None:
                break
            self.clock.pass_by(lease_left)  # more than 0 if a busy machine left no time to let go
            stream = await self.runner().take_up(deadline=time.monotonic() + seconds)
        answer = await self.answer()
        assert answer is not None
        return answer

    async def answer(self) -> SessionMessage | None:
        return await Process(self.store, self.registry, self.settings).session.answer(1)

    async def _note(self, turn_id: str, attempt: int) -> None:
        self.handed_over.append((turn_id, attempt))

    def _answer(self, request: ModelRequest) -> list[Beat]:
        done = sum(isinstance(part, ToolPart) for message in request.messages for part in message.parts)
        beats: list[Beat] = [ModelText(f"Step {done}. ")]
        if done in self.stalls_at:
            self.stalls_at.discard(done)
            return [*beats, asyncio.Event()]
        if done == TOOL_STEPS:
            return [*beats, "Arrived."]
        call_id, arguments = f"c{done}", f'{{"n": {done}}}'
        start = ModelToolStart(call_id, "work")
        return [*beats, start, ModelToolDelta(call_id, arguments), ModelToolCall(call_id, "work", arguments)]


@pytest.fixture(autouse=True)
async def _burial() -> AsyncIterator[None]:
    living = asyncio.all_tasks()
    yield
    await bury(living | ({task} if (task := asyncio.current_task()) else set()))


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little time is left at every checkpoint."""
    monkeypatch.setattr(TimeLimit, "is_closing", property(lambda _: True))


async def undisturbed() -> list[Part]:
    journey = Journey()
    await journey.runner().run(QUERY)
    answer = await journey.answer()
    assert answer is not None
    return list(answer.parts)


@pytest.mark.usefixtures("closing")
async def test_a_turn_crosses_many_processes_and_nothing_of_it_is_done_twice() -> None:
    journey = Journey()
    answer = await journey.finish()
    assert answer.status == "complete"
    assert list(answer.parts) == await undisturbed()
    assert len(journey.handed_over) >= 9, "more than so many deaths would have ended it"
    assert len(journey.model.requests) == TOOL_STEPS + 1
    assert journey.runs == [f"c{n}" for n in range(TOOL_STEPS)]
    assert await journey.registry.running("") is None


@pytest.mark.usefixtures("closing")
async def test_its_reader_sees_one_stream() -> None:
    journey = Journey()
    first = await journey.runner().start(QUERY, deadline=time.monotonic() + LONG)
    reader = await journey.runner().resume()
    assert reader is not None
    reading = asyncio.create_task(_bytes_of(reader))
    await first.ended()
    while await journey.runner().look(*journey.handed_over[-1]) is not None:
        stream = await journey.runner().take_up(deadline=time.monotonic() + LONG)
        assert stream is not None
        await stream.ended()
    frames = await reading
    assert frames.endswith(sse.DONE)
    assert record_frames(frames).parts == await undisturbed()


@pytest.mark.usefixtures("closing")
async def test_the_next_process_is_called_while_this_one_lets_go_and_waits_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journey = Journey()
    is_called = asyncio.Event()
    looks: list[float | None] = []
    let_go = MemoryRegistry.let_go

    async def let_go_later(registry: MemoryRegistry, claim: Claim) -> None:
        await is_called.wait()
        await let_go(registry, claim)

    async def look(turn_id: str, attempt: int) -> None:
        looks.append(await journey.runner().look(turn_id, attempt))
        is_called.set()
        looks.append(await journey.runner().look(turn_id, attempt, patience_seconds=60.0))

    monkeypatch.setattr(MemoryRegistry, "let_go", let_go_later)
    monkeypatch.setattr(journey, "_note", look)
    stream = await journey.runner().start(QUERY, deadline=time.monotonic() + LONG)
    await stream.ended()
    [held, free] = looks
    assert held
    assert free == 0.0


@pytest.mark.usefixtures("closing")
async def test_who_waits_for_the_result_is_told_to_ask_again() -> None:
    journey = Journey()
    stream = await journey.runner().start(QUERY, deadline=time.monotonic() + LONG)
    assert not (await _bytes_of(stream)).endswith(sse.DONE)
    with pytest.raises(TurnInProgress):
        await stream.result()


@pytest.mark.usefixtures("closing")
async def test_another_message_does_not_end_a_turn_that_is_about_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    journey, other = Journey(), Query("And now?", "m2")
    first = await journey.runner().start(QUERY, deadline=time.monotonic() + LONG)
    await first.ended()
    monkeypatch.setattr("omniagent.turns.opening.HAND_OVER_SECONDS", 0.0)
    with pytest.raises(TurnInProgress):
        await journey.runner().start(other)
    assert await journey.runner().look(*journey.handed_over[-1]) == 0.0
    assert await journey.runner().settle() is not None, "somebody looks at the messages"

    monkeypatch.setattr("omniagent.turns.opening.HAND_OVER_SECONDS", 60.0)
    waiting = asyncio.create_task(journey.runner().start(replace(other, busy="queue")))
    stream: AnswerStream | None = None
    while stream is None:  # the message may hold the session for a moment
        stream = await journey.runner().take_up()
    await stream.ended()
    answer = await journey.answer()
    assert answer is not None
    assert (answer.status, list(answer.parts)) == ("complete", await undisturbed())
    assert (await (await waiting).result()).turn_number == 2


@pytest.mark.usefixtures("closing")
@pytest.mark.parametrize("message_id", [None, "m1"])
async def test_a_stop_ends_a_turn_that_is_about_to_go_on(message_id: str | None) -> None:
    journey = Journey()
    first = await journey.runner().start(QUERY, deadline=time.monotonic() + LONG)
    await first.ended()
    assert not await journey.runner().stop("another")
    assert await journey.runner().stop(message_id)
    assert await journey.runner().look(*journey.handed_over[-1]) is None
    assert await journey.runner().take_up() is None
    answer = await journey.answer()
    assert answer is not None
    assert (answer.status, answer.text) == ("cancelled", "Step 0. ")


@pytest.mark.usefixtures("closing")
async def test_a_turn_whose_user_has_nothing_left_ends_with_the_reason() -> None:
    journey = Journey()
    journey.budget = Budget(tokens_per_day=1)
    answer = await journey.finish()
    assert (answer.status, answer.metadata["errorCode"]) == ("failed", "budget_exceeded")
    assert len(journey.model.requests) == 1
    assert answer.text.startswith("Step 0. ")


@pytest.mark.usefixtures("closing")
async def test_a_turn_that_nobody_goes_on_with_is_closed_by_the_next_message() -> None:
    journey = Journey()
    first = await journey.runner().start(QUERY, deadline=time.monotonic() + LONG)
    await first.ended()
    await journey.runner(hands_over=False).run(Query("And now?", "m2"))
    answer = await journey.answer()
    assert answer is not None
    assert answer.status == "interrupted"


async def test_the_next_process_repeats_a_step_that_was_cut_off() -> None:
    journey = Journey()
    journey.stalls_at = {1, 2, 3, 4}
    answer = await journey.finish(SHORT)
    assert answer.status == "complete"
    assert list(answer.parts) == await undisturbed()
    assert len(journey.handed_over) == 4
    assert len(journey.model.requests) == TOOL_STEPS + 1 + 4
    assert journey.runs == [f"c{n}" for n in range(TOOL_STEPS)]


@pytest.mark.parametrize("retry_safe", [True, False])
async def test_a_tool_that_is_cut_off_runs_again_only_if_it_may(retry_safe: bool) -> None:
    journey = Journey(retry_safe=retry_safe)
    journey.tool_stalls = True
    answer = await journey.finish(SHORT)
    assert answer.status == "complete"
    assert journey.runs.count("c0") == (2 if retry_safe else 1)
    [first, *_] = [part for part in answer.parts if isinstance(part, ToolPart)]
    assert (first.output == "worked 0") is retry_safe


async def test_a_step_that_no_process_has_the_time_for_ends_the_turn_at_last() -> None:
    journey = Journey()
    journey.model = ScriptedModel(default=_endless)
    answer = await journey.finish(SHORT)
    assert answer.status == "interrupted"
    assert len(journey.model.requests) == MAX_ATTEMPTS + 1


async def test_a_turn_ends_when_it_has_taken_as_long_as_it_may() -> None:
    journey = Journey()
    journey.settings = replace(journey.settings, max_turn_seconds=1.0)
    journey.model = ScriptedModel(default=_endless)
    result = await journey.runner().run(QUERY, deadline=time.monotonic() + LONG)
    assert (result.status, result.metadata["stopReason"]) == ("cancelled", "deadline")
    assert journey.handed_over == []


def test_a_process_keeps_no_more_than_a_quarter_of_its_own_time_for_storing() -> None:
    now = time.monotonic()
    limit = TimeLimit(now + 20, started_at=now - 100, most_seconds=3600, opened_at=now)
    assert limit.stop_at == pytest.approx(now + 15), "however long the turn has taken in others"


async def test_without_somebody_to_go_on_the_deadline_ends_the_turn() -> None:
    journey = Journey()
    journey.stalls_at = {1}
    result = await journey.runner(hands_over=False).run(QUERY, deadline=time.monotonic() + SHORT)
    assert (result.status, result.metadata["stopReason"]) == ("cancelled", "deadline")


def _endless(_: ModelRequest) -> list[Beat]:
    return ["Hm. ", asyncio.Event()]


async def _bytes_of(stream: AnswerStream) -> bytes:
    return b"".join([frames async for frames in stream.sse()])
