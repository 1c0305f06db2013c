"""Races of queued, steering and interrupting messages with the end of a turn, a turn that waits, a stop, and kills.

Each race has one session, several processes and a clock of its own, and is made by its seed alone.
"""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

from omniagent import AnswerStream, Query, RunContext, Settings, ToolReply, ToolRequest, tool
from omniagent.ai.operator import TurnOperator
from omniagent.errors import OmniAgentError
from omniagent.messages import steering_of
from omniagent.providers import ModelRequest
from omniagent.session.live import SessionMessage
from omniagent.settings import Busy
from omniagent.testing import ScriptedModel, ToolCall
from tests.runner.processes import Process, cancel_all_but
from tests.runner.sessions import Sessions

LEASE_SECONDS = 10.0
PATIENCE_SECONDS = 120.0
SETTINGS = Settings(tick_seconds=0.001, lease_seconds=LEASE_SECONDS, max_readers_per_user=50)
BUSY: tuple[Busy, ...] = get_args(Busy)
LAST = "last"
FAULTS = ("lost", "doubled", "out of order", "answered twice", "run twice")


@dataclass
class Posted:
    """A request that somebody has sent, and what became of it."""

    query: Query
    process: Process
    after: tuple[str, ...] = ()
    """The messages that must be answered before it: those that were accepted before it was sent."""
    parent: str | None = None
    """The node that the message, or the regenerated answer, has to follow. None: the latest."""
    stream: AnswerStream | None = None
    refusal: OmniAgentError | None = None

    @property
    def id(self) -> str:
        return self.query.message_id

    @property
    def is_accepted(self) -> bool:
        return self.stream is not None


@dataclass
class Race:
    """One session, and everything that happens to it."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    chances: ClassVar[Mapping[str, int]] = {"send": 6, "answer": 8, "stop": 2, "kill": 2}
    events: ClassVar[tuple[int, int]] = (2, 6)
    """How many happen, at least and at most."""

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.sessions = Sessions(SETTINGS)
        self.model = ScriptedModel(default=self._next_answer)
        self.posted: list[Posted] = []
        self.processes: list[Process] = []
        self.tasks: list[tuple[Posted, asyncio.Task[None]]] = []
        """The requests. One that takes long is left alone until the end."""
        self.answered: Counter[str] = Counter()
        """How often the model was asked each message for the first time in a turn."""
        self.paid: Counter[str] = Counter()
        """How often each call of a tool has run."""

    async def run(self) -> None:
        await self._begin()
        for _ in range(self.dice.randint(*self.events)):
            await self._pause()
            await self._happen()
        await self._end()
        await self._check()

    async def _begin(self) -> None:
        await self._send(self._message("reject"))

    async def _happen(self) -> None:
        """Send something, or answer what is asked, or stop, or kill."""
        requests = await self._asked()
        chances = {**self.chances, **({} if requests else {"answer": 0})}
        match self.dice.choices(list(chances), list(chances.values()))[0]:
            case "answer":
                await self._answer(requests)
            case "stop":
                meant = self.dice.choice([None, *(each.id for each in self.posted), *self._nodes()])
                self.counts["stopped"] += await self._runner(self._process()).stop(meant)
            case "kill":
                self.dice.choice(self.posted).process.is_dead = True
                self.counts["killed"] += 1
            case kind:
                await self._request(kind)

    def _nodes(self) -> Sequence[str]:
        """What a stop may name besides messages."""
        return ()

    async def _request(self, _: str) -> None:
        await self._send(self._message(self.dice.choice(BUSY)))

    def _message(self, busy: Busy) -> Query:
        message_id = f"m{len(self.posted) + 1}"
        return Query(f"{message_id}?", message_id, busy=busy)

    async def _send(self, query: Query, parent: str | None = None, *, seconds: float = 0.02) -> None:
        """Send a request from a process of its own. One that takes long is left alone."""
        posted = Posted(query, self._process(), self._accepted, parent)
        self.posted.append(posted)
        self.tasks.append((posted, task := asyncio.create_task(self._start(posted))))
        await asyncio.wait([task], timeout=seconds)

    async def _asked(self) -> Sequence[ToolRequest]:
        """What the session waits for."""
        return await self.sessions.runner(self.model).requests()

    async def _answer(self, requests: Sequence[ToolRequest]) -> None:
        """Approve or deny what is asked, twice at once."""
        is_approved = self.dice.random() < 0.7
        answers = [request.approve() if is_approved else request.deny() for request in requests]
        self.counts["approved" if is_approved else "denied"] += 1
        for _ in range(2):
            task = asyncio.create_task(self._given(self._process(), answers))
            await asyncio.wait([task], timeout=0.01)

    async def _given(self, process: Process, answers: list[ToolReply]) -> None:
        with suppress(OmniAgentError):
            stream = await self._runner(process).reply(*answers)
            await stream.ended()

    async def _start(self, posted: Posted) -> None:
        try:
            posted.stream = await self._runner(posted.process).start(posted.query)
        except OmniAgentError as exc:
            posted.refusal = exc

    async def _end(self) -> None:
        """Let the dead be found dead, and send a last message: whoever waits is answered before it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await self.sessions.head()).running and not await self._runner(self._process()).has_work():
                await self._let_pass(LEASE_SECONDS / 4)
            await self._send(Query(LAST, LAST, busy="queue"), seconds=0)
            last = self.posted[-1]
            while await self._is_busy():
                await self._approve_all()
                with suppress(OmniAgentError):
                    await self._runner(self._process()).take_up()
                await self._let_pass(LEASE_SECONDS / 10)
            assert last.stream is not None, last.refusal
            await last.stream.ended()

    async def _let_pass(self, seconds: float) -> None:
        self.sessions.pass_by(seconds)
        await asyncio.sleep(0.003)

    async def _is_busy(self) -> bool:
        """Whether something runs or waits, or a living request is neither accepted nor refused."""
        head = await self.sessions.head()
        is_open = any(not task.done() for asked, task in self.tasks if not asked.process.is_dead)
        return head.turn is not None or bool(head.queue) or is_open

    async def _approve_all(self) -> None:
        if requests := await self._asked():
            self.counts["approved"] += 1
            await self._given(self._process(), [request.approve() for request in requests])

    async def _check(self) -> None:
        messages = self.sessions.store.sessions[self.sessions.session().key].messages
        said = [said for message in messages for said in _said(message)]
        times = Counter(said)
        for message in self.posted:
            self._found("lost", message.is_accepted and not times[message.id], (message.query, said))
            self._found("doubled", times[message.id] > 1, (message.id, said))
            self.counts[message.query.busy or ""] += message.is_accepted
        questions = [message.id for message in messages if message.role == "user"]
        for message in self.posted:
            for earlier in message.after if message.id in questions else ():
                is_before = earlier in questions[: questions.index(message.id)]
                self._found("out of order", not is_before, (earlier, message.id, said))
        self._found("lost", LAST not in questions, said)
        answers = [message for message in messages if message.role == "assistant"]
        numbers = [answer.turn_number for answer in answers]
        self._found("answered twice", numbers != list(range(1, len(questions) + 1)), (numbers, said))
        self.counts["joined"] += sum(len(answer.steering_ids) for answer in answers)
        self.counts.update(answer.status for answer in answers)
        self._found("run twice", any(number > 1 for number in self.paid.values()), self.paid)
        if not any(process.is_dead for process in self.processes):
            # A process that dies between its model call and its first write has asked for nothing.
            asked_twice = {text: number for text, number in self.answered.items() if number > 1}
            self._found("answered twice", bool(asked_twice), asked_twice)

    def _found(self, fault: str, is_there: bool, details: object) -> None:
        if is_there:
            self.counts[fault] += 1
            print(f"seed {self.seed}: {fault}: {details}", file=sys.stderr)

    @property
    def _accepted(self) -> tuple[str, ...]:
        """What was accepted so far. A steering message has no turn of its own, unless it comes too late."""
        return tuple(each.id for each in self.posted if each.is_accepted and each.query.busy != "steer")

    def _next_answer(self, request: ModelRequest) -> Any:
        last = request.messages[-1]
        if last.role == "user":
            self.answered[last.text] += 1
        match self.dice.randint(0, 5):
            case 0:
                return "An answer."
            case 5 if len(request.messages) < 12:
                return ["May I? ", ToolCall("pay")]
            case 1 if len(request.messages) < 12:
                return ["Working. ", ToolCall("work")]
            case _:
                pause = asyncio.Event()
                asyncio.get_running_loop().call_later(self.dice.randint(0, 8) / 1000, pause.set)
                return ["An", pause, " answer."]

    async def _pause(self) -> None:
        if self.dice.random() < 0.5:
            await asyncio.sleep(self.dice.choice((0, 0.001, 0.003)))

    def _process(self) -> Process:
        self.processes.append(process := Process(self.sessions))
        return process

    def _runner(self, process: Process) -> TurnOperator:
        async def run_once(context: RunContext) -> str:
            self.paid[f"{context.turn_id} {context.call_id}"] += 1
            await asyncio.sleep(self.dice.choice((0, 0.002, 0.004)))
            return "done"

        work, pay = (
            tool(name="work", description="Work.")(run_once),
            tool(name="pay", description="Pay.", approval=True)(run_once),
        )
        return self.sessions.runner(self.model, work, pay, session=process.session, registry=process.registry)


def _said(message: SessionMessage) -> list[str]:
    """The ids of the user's messages that a stored message holds."""
    if message.role == "user":
        return [message.id]
    return [part.message_id for part in steering_of(message.parts)]


def race(seeds: range, kind: type[Race] = Race) -> Counter[str]:
    """Run races and return what has happened in them, and what was wrong: the `FAULTS`."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        with asyncio.Runner() as loop:
            loop.run(_one(kind(seed, counts)))
        counts["races"] += 1
    return counts


async def _one(race: Race) -> None:
    living = asyncio.all_tasks()
    try:
        await race.run()
    finally:
        await cancel_all_but(living)
