"""One session, driven in any order against a simple model of the promises."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from omniagent import Agent, AnswerStream, InMemorySessionManager, Query, SessionMessage, tool
from omniagent.ai.approvals import requests_of
from omniagent.ai.operator import TurnOperator
from omniagent.errors import NotFound, TurnInProgress
from omniagent.messages import TextPart, ToolPart
from omniagent.protocol import sse
from omniagent.providers import ModelRequest
from omniagent.settings import Busy
from omniagent.testing import Gate, ScriptedModel, ToolCall
from tests.fixtures.answers import answer_of
from tests.fixtures.examples import examples
from tests.runner.processes import Process
from tests.runner.sessions import QUICK, Sessions, parts_of, until

LEASE_SECONDS = QUICK.lease_seconds
PATIENCE_SECONDS = 60.0
SETTINGS = replace(QUICK, tick_seconds=0.001, context_max_turns=2, max_readers_per_user=100)

Result = TypeVar("Result")
kinds = st.sampled_from(["quick", "tool", "talking", "silent", "asking"])


@dataclass
class Expected:
    """A turn as the promises want it."""

    number: int
    message_id: str
    status: str = ""
    """The status of its answer; empty while it has none."""


@dataclass
class Running:
    """A turn that has not ended, the process that runs it, and everybody who reads it."""

    turn: Expected
    query: Query
    process: Process
    stream: AnswerStream
    gate: Gate
    kind: str
    is_stopped: bool = False
    """It was to be stopped when its process was dead already."""
    readers: list["asyncio.Task[bytes]"] = field(default_factory=list)


class OneSession(RuleBasedStateMachine):
    """`turns` and `running` are the model; the store, the registry and the counters are what is checked against it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.sessions = Sessions(SETTINGS)
        self.store, self.registry = self.sessions.store, self.sessions.registry
        self.turns: list[Expected] = []
        self.running: Running | None = None
        self.messages = 0
        self.model_calls = self.expected_model_calls = 0
        self.tool_runs = self.expected_tool_runs = 0
        self.script: list[Any] = []
        self.model = ScriptedModel(default=self._next_answer)

    # What a user, a page or an operator does.

    @rule(kind=kinds)
    def send(self, kind: str) -> None:
        self.messages += 1
        query = Query(f"Question {self.messages}?", f"m{self.messages}")
        if self.running is not None:
            self._joined_or_refused(query)
        else:
            if self._waits:
                self.turns[-1].status = "cancelled"  # what it asked is closed unanswered
            self.turns.append(turn := Expected(len(self.turns) + 1, query.message_id))
            self._answered(query, turn, kind)

    @precondition(lambda self: self.turns)
    @rule(kind=kinds, data=st.data())
    def retry(self, kind: str, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from(self.turns))
        query = Query(f"Question {turn.message_id[1:]}?", turn.message_id)
        if self.running is not None and turn is self.running.turn:  # whether it answers it, or answers it again
            self._joined(self._do(self._runner().start(query)))
        elif turn is self.turns[-1] and turn.status not in ("complete", "waiting"):
            self._answered(query, turn, kind)
        else:
            self._replayed(self._do(self._runner().start(query)), turn)

    @rule(kind=kinds)
    def regenerate(self, kind: str) -> None:
        query = Query(regenerate=True)
        if self.running is not None:
            self._joined_or_refused(query)
        elif not self.turns:
            with pytest.raises(NotFound):
                self._do(self._runner().start(query))
        else:
            self._answered(query, self.turns[-1], kind)

    @rule()
    def resume(self) -> None:
        stream = self._do(self._runner().resume())
        if self.running is not None:
            assert stream is not None
            self._joined(stream)
        elif stream is not None:  # one that has just ended is shown once more
            self._replayed(stream, self.turns[-1])

    @rule()
    def stop(self) -> None:
        assert self._do(self._runner().stop()) is (self.running is not None or self._waits)
        if self._waits:
            self.turns[-1].status = "cancelled"
        if self.running is not None and self.running.process.is_dead:
            self.running.is_stopped = True
        elif self.running is not None:
            self._ended("cancelled")

    @precondition(lambda self: self._waits)
    @rule(is_approved=st.booleans(), times=st.integers(1, 2))
    def answer(self, is_approved: bool, times: int) -> None:
        """Answer what the turn waits for. The same again runs nothing again."""
        turn, script = self.turns[-1], ["An answer."]
        asked = self._do(answer_of(self._session(), turn.number))
        assert asked is not None
        [request] = requests_of(asked, user="ada")
        self.expected_model_calls += 1
        self.expected_tool_runs += is_approved
        self.script = script
        for _ in range(times):
            stream = self._do(_opened(self._runner().reply(request.approve() if is_approved else request.deny())))
            assert self._do(stream.result()).status == "complete"
            self._do(stream.ended())
        turn.status = "complete"

    @precondition(lambda self: self.running and not self.running.process.is_dead)
    @rule(busy=st.sampled_from(["queue", "steer", "interrupt"]))
    def post(self, busy: Busy) -> None:
        """Send a message while another one is being answered. It is answered after that one, or joins its answer."""
        assert self.running is not None
        self.messages += 1
        query, turn = Query(f"Question {self.messages}?", f"m{self.messages}", busy=busy), self.running.turn
        self.script, self.expected_model_calls = ["An answer."], self.expected_model_calls + 1
        stream = self._do(self._runner().start(query))
        if busy != "interrupt":
            self.running.gate.set()
        self._ended("cancelled" if busy == "interrupt" else "complete")
        answer = self._do(answer_of(self._session(), turn.number))
        if answer is None or query.message_id not in answer.steering_ids:
            self.turns.append(Expected(turn.number + 1, query.message_id, "complete"))
        else:
            assert busy == "steer"
        assert self._do(stream.result()).turn_number == len(self.turns)
        self._do(stream.ended())

    @precondition(lambda self: self.running and not self.running.process.is_dead)
    @rule()
    def let_go(self) -> None:
        assert self.running is not None
        self.running.gate.set()
        self._ended("complete")

    @precondition(lambda self: self.running and not self.running.process.is_dead)
    @rule()
    def kill(self) -> None:
        assert self.running is not None
        self._do(self._logged(self.running.stream.message_id))
        self.running.process.is_dead = True

    @rule()
    def time_passes(self) -> None:
        """Longer than a lease: a living process has written meanwhile, and the turn of a dead one is finished."""
        if self.running is None:
            self.sessions.pass_by(LEASE_SECONDS + 1)
        elif not self.running.process.is_dead:
            self._do(self._time_passes())
        else:
            self._finish_dead()

    def _finish_dead(self) -> None:
        """Another process or a reader finishes the turn, or closes it if it was to be stopped."""
        assert self.running is not None
        self.sessions.pass_by(LEASE_SECONDS + 1)
        running, self.running, self.script = self.running, None, ["An answer."]
        self._do(self._runner().take_up())
        self._do(until(self._is_idle))
        self.expected_model_calls += not running.is_stopped
        if not (running.is_stopped and running.kind == "silent" and running.turn.status):
            running.turn.status = "cancelled" if running.is_stopped else "complete"
        answer = self._do(answer_of(self._session(), running.turn.number))
        assert answer is not None
        assert running.is_stopped or answer.text == "An answer."
        for reader in running.readers:
            assert _text(self._do(_ready(reader))) == answer.text

    @rule()
    def delete(self) -> None:
        if not self.turns:
            with pytest.raises(NotFound):
                self._do(self._runner().erase_session())
            return
        assert self._do(self._runner().erase_session())
        running, self.running, self.turns = self.running, None, []
        if running is None or running.process.is_dead:
            return  # its readers look at the session only in each third of a lease
        result = self._do(running.stream.result())
        assert (result.stored, result.error and result.error.code) == (False, "turn_lost")
        self._do(running.stream.ended())
        for reader in running.readers:
            self._do(_ready(reader))

    @rule(rebuild=st.booleans())
    def summarize(self, rebuild: bool) -> None:
        if not self.turns:
            with pytest.raises(NotFound):
                self._do(self._runner().summarize(rebuild=rebuild))
        else:
            assert self._do(self._runner().summarize(rebuild=rebuild)).is_done

    # What must be true whatever was done.

    @invariant()
    def every_turn_is_there_once_and_ended_one_way(self) -> None:
        messages = self._do(self._active_path())
        assert [(m.turn_number, m.id) for m in messages if m.role == "user"] == [
            (turn.number, turn.message_id) for turn in self.turns
        ]
        answers = {m.turn_number: m.status for m in messages if m.role == "assistant"}
        assert answers == {turn.number: turn.status for turn in self.turns if turn.status}
        assert len(messages) == len(self.turns) + len(answers)

    async def _active_path(self) -> list[SessionMessage]:
        """The history up to the leaf, and the message that is being answered."""
        head = await self._session().head()
        if head is None:
            return []
        question = head.turn.message if head.turn is not None else None
        return [*await self._session().path(head.leaf), *([question] if question is not None else [])]

    @invariant()
    def the_session_is_held_by_its_running_turn_and_by_nothing_else(self) -> None:
        head = self._do(self._session().head())
        assert (head.latest_turn_number if head else 0) == len(self.turns)
        assert bool(head and head.running) is (self.running is not None)
        assert bool(head and head.waiting) is (self.running is None and self._waits)
        assert not (head and head.queue)

    @invariant()
    def nothing_was_asked_or_done_twice(self) -> None:
        assert self.model_calls == self.expected_model_calls
        assert self.tool_runs == self.expected_tool_runs

    @invariant()
    def summaries_follow_each_other_and_leave_the_latest_turn_alone(self) -> None:
        session = self.store.sessions.get(self._session().key)
        end = 0
        for summary in session.summaries if session else []:
            assert summary.start_turn_number == end + 1
            assert summary.start_turn_number <= summary.end_turn_number < len(self.turns)
            end = summary.end_turn_number

    def teardown(self) -> None:
        self.loop.run(_cancelled())
        self.loop.close()

    # How it is done.

    def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run(asyncio.wait_for(work, PATIENCE_SECONDS))

    def _session(self) -> InMemorySessionManager:
        return self.sessions.session()

    def _runner(self, process: Process | None = None) -> TurnOperator:
        process = process or Process(self.sessions)

        @tool
        async def work() -> str:
            """Work."""
            self.tool_runs += 1
            return "worked"

        @tool(approval=True)
        async def pay() -> str:
            """Pay."""
            self.tool_runs += 1
            return "paid"

        return TurnOperator(
            Agent("helper", "", [work, pay]), process.session, provider=self.model, registry=process.registry
        )

    def _next_answer(self, _: ModelRequest) -> Any:
        self.model_calls += 1
        return self.script.pop(0)

    def _answered(self, query: Query, turn: Expected, kind: str) -> None:
        """Start a turn. A quick one is read to its end; others run until somebody ends them."""
        gate = Gate()
        scripts: dict[str, list[Any]] = {
            "quick": ["An answer."],
            "tool": [ToolCall("work"), "An answer."],
            "talking": [["An", gate, " answer."]],
            "silent": [[gate, "An answer."]],
            "asking": [ToolCall("pay")],
        }
        self.script = scripts[kind]
        self.expected_model_calls += len(self.script)
        self.expected_tool_runs += kind == "tool"
        if self._waits:  # its requests are closed as unanswered
            self.turns[-1].status = "cancelled" if turn is self.turns[-1] else self.turns[-1].status
        process = Process(self.sessions)
        stream = self._do(self._runner(process).start(query))
        self.running = Running(turn, query, process, stream, gate, kind)
        self._joined(stream)
        if kind in ("talking", "silent"):
            self._do(gate.reached())
        else:
            self._ended("waiting" if kind == "asking" else "complete")

    @property
    def _waits(self) -> bool:
        return self.running is None and bool(self.turns) and self.turns[-1].status == "waiting"

    def _joined(self, stream: AnswerStream) -> None:
        """Read along until the turn ends. The process that dies takes its own readers with it."""
        assert self.running is not None
        if stream is not self.running.stream:
            assert stream.message_id == self.running.stream.message_id
            self.running.readers.append(self._do(_started(_read(stream))))

    def _ended(self, status: str) -> None:
        assert self.running is not None
        running, self.running = self.running, None
        result = self._do(running.stream.result())
        self._do(running.stream.ended())
        assert (result.status, result.stored) == (status, True)
        if not (status == "cancelled" and running.kind == "silent" and running.turn.status):
            running.turn.status = status
        assert self._do(self._session().node(result.message_id)) == result.message
        seen = self._do(_read(running.stream))
        for reader in running.readers:
            assert _events(self._do(_ready(reader))) == _events(seen)
        assert _text(seen) == result.text

    def _replayed(self, stream: AnswerStream, turn: Expected) -> None:
        answer = self._do(answer_of(self._session(), turn.number))
        assert answer is not None
        assert stream.message_id == answer.id
        parts = parts_of(self._do(_read(stream)))
        if any(isinstance(part, ToolPart) and part.request for part in answer.parts):
            # A stream does not tell all of what was asked and answered.
            assert [type(part) for part in parts] == [type(part) for part in answer.parts]
        else:
            assert parts == answer.parts

    def _joined_or_refused(self, query: Query) -> None:
        assert self.running is not None
        if query.regenerate and self.running.turn.status:  # it replaces an answer already
            self._joined(self._do(self._runner().start(query)))
            return
        with pytest.raises(TurnInProgress):
            self._do(self._runner().start(query))

    async def _time_passes(self) -> None:
        """Let time pass no faster than the living process renews its lease."""
        key, journal = self._session().key, self.running.stream.message_id if self.running else ""

        async def has_written() -> bool:
            [newest] = await self.registry.read(key, journal, newest=True)
            return newest.at >= since

        await self._logged(journal)
        for _ in range(3):
            self.sessions.pass_by(LEASE_SECONDS / 2)
            since = self._session().now()
            await until(has_written)

    async def _is_idle(self) -> bool:
        head = await self.sessions.head()
        return head.running is None

    async def _logged(self, turn_id: str) -> None:
        """Wait for the turn's first tick: whoever joins one that died before it waits for its lease to run out."""
        while not await self.registry.read(self._session().key, turn_id):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def _read(stream: AnswerStream) -> bytes:
    frames = b"".join([frames async for frames in stream.sse()])
    assert frames.endswith(sse.DONE)
    return frames


async def _opened(stream: AnswerStream) -> AnswerStream:
    return await stream


async def _started(work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
    return asyncio.create_task(work)


async def _ready(task: "asyncio.Task[Result]") -> Result:
    return await task


def _events(frames: bytes) -> list[Any]:
    return list(sse.decode(frames))


def _text(frames: bytes) -> str:
    return "".join(part.text for part in parts_of(frames) if isinstance(part, TextPart))


async def _cancelled() -> None:
    """End what dead processes have left. Some of it insists on a second try."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=0.01)


OneSession.TestCase.settings = settings(
    max_examples=examples(10),
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestOneSession = OneSession.TestCase
