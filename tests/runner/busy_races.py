"""Races of queued, steering and interrupting messages with the end of a turn, a stop, and kills: `make races`.

Each race has one session, several processes and a clock of its own, and is made by its seed alone.
"""

import asyncio
import logging
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, get_args

from omniagent import (
    Agent,
    AnswerStream,
    InMemoryStore,
    MemoryRegistry,
    ModelRequest,
    Query,
    Runner,
    ScriptedModel,
    Settings,
    ToolCall,
    tool,
)
from omniagent.errors import OmniAgentError
from omniagent.messages import steering_of
from omniagent.session.manager import SessionMessage
from omniagent.settings import Busy
from tests.fixtures.conversation import Clock
from tests.runner.processes import Process, bury

LEASE_SECONDS = 10.0
PATIENCE_SECONDS = 30.0
SETTINGS = Settings(
    tick_seconds=0.001, lease_seconds=LEASE_SECONDS, max_readers_per_session=50, max_readers_per_user=50
)
BUSY: tuple[Busy, ...] = get_args(Busy)
LAST = "last"


@dataclass
class Posted:
    """A message that somebody has sent, and what became of the request."""

    id: str
    busy: Busy
    process: Process
    stream: AnswerStream | None = None
    refusal: OmniAgentError | None = None
    after: tuple[str, ...] = ()
    """The messages that must be answered before it: those that were accepted before it was sent."""

    @property
    def is_accepted(self) -> bool:
        return self.stream is not None


@dataclass
class Race:
    """One session, and everything that happens to it."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.clock = Clock()
        self.store = InMemoryStore()
        self.registry = MemoryRegistry(lease_seconds=LEASE_SECONDS, clock=self.clock)
        self.model = ScriptedModel(default=self._next_answer)
        self.posted: list[Posted] = []
        self.processes: list[Process] = []
        self.stopped: set[str] = set()
        self.answered: Counter[str] = Counter()
        """How often the model was asked each message for the first time in a turn."""

    async def run(self) -> None:
        await self._send("reject")
        for _ in range(self.dice.randint(2, 6)):
            await self._pause()
            await self._happen()
        await self._end()
        self._check()

    async def _happen(self) -> None:
        """Send a message, or stop, or kill."""
        match self.dice.choices(("send", "stop", "kill"), (6, 2, 2))[0]:
            case "send":
                await self._send(self.dice.choice(BUSY))
            case "stop":
                meant = self.dice.choice([None, *(each.id for each in self.posted)])
                self.counts["stopped"] += await self._runner(self._process()).stop(meant)
                self.stopped |= {each.id for each in self.posted} if meant is None else {meant}
            case _:
                self.dice.choice(self.posted).process.is_dead = True
                self.counts["killed"] += 1

    async def _send(self, busy: Busy) -> None:
        """Send a message from a process of its own. A request that takes long is left alone."""
        message = Posted(f"m{len(self.posted) + 1}", busy, self._process(), after=self._accepted)
        self.posted.append(message)
        task = asyncio.create_task(self._start(message))
        await asyncio.wait([task], timeout=0.02)

    async def _start(self, message: Posted) -> None:
        try:
            query = Query(f"{message.id}?", message.id, busy=message.busy)
            message.stream = await self._runner(message.process).start(query)
        except OmniAgentError as exc:
            message.refusal = exc

    async def _end(self) -> None:
        """Let the dead be found dead, and send a last message: whoever waits is answered before it."""
        for _ in range(1000):
            self.clock.pass_by(LEASE_SECONDS / 4)
            await asyncio.sleep(0.003)
            held = await self.registry.running(self._session.key)
            if held is None or not held.alive:
                break
        last = Posted(LAST, "queue", self._process(), after=self._accepted)
        self.posted.append(last)
        ending = asyncio.create_task(self._start(last))
        for _ in range(3000):
            if ending.done() and await self.registry.running(self._session.key) is None:
                break
            self.clock.pass_by(LEASE_SECONDS / 10)
            await asyncio.sleep(0.003)
        assert last.stream is not None, last.refusal
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await last.stream.result()).status == "complete"
            await last.stream.ended()
        await self._runner(self._process()).settle()

    def _check(self) -> None:
        messages = self.store.sessions[self._session.key].messages
        said = [said for message in messages for said in _said(message)]
        times = Counter(said)
        for message in self.posted:
            if message.is_accepted:
                assert times[message.id] == 1, (self.seed, message.id, message.busy, said)
                self.counts[message.busy] += 1
            assert times[message.id] <= 1, (self.seed, message.id, said)
        questions = [message.id for message in messages if message.role == "user"]
        for message in self.posted:
            for earlier in message.after if message.id in questions else ():
                assert earlier in questions[: questions.index(message.id)], (self.seed, earlier, message.id, said)
        assert LAST in questions, (self.seed, said)
        answers = [message for message in messages if message.role == "assistant"]
        assert [answer.turn_number for answer in answers] == list(range(1, len(questions) + 1)), (self.seed, said)
        self.counts["joined"] += sum(len(answer.steering_ids) for answer in answers)
        self.counts.update(answer.status for answer in answers)
        if not any(message.process.is_dead for message in self.posted):
            # A process that dies between its model call and its first write has asked for nothing.
            assert all(number == 1 for number in self.answered.values()), (self.seed, self.answered)

    @property
    def _accepted(self) -> tuple[str, ...]:
        """What was accepted so far. A steering message has no turn of its own, unless it comes too late."""
        return tuple(each.id for each in self.posted if each.is_accepted and each.busy != "steer")

    def _next_answer(self, request: ModelRequest) -> Any:
        last = request.messages[-1]
        if last.role == "user":
            self.answered[last.text] += 1
        match self.dice.randint(0, 3):
            case 0:
                return "An answer."
            case 1 if len(request.messages) < 12:
                return ["Working. ", ToolCall("work")]
            case _:
                pause = _Pause(self.dice.randint(0, 8))
                return ["An", pause, " answer."]

    async def _pause(self) -> None:
        if self.dice.random() < 0.5:
            await asyncio.sleep(self.dice.choice((0, 0.001, 0.003)))

    @property
    def _session(self) -> Any:
        return Process(self.store, self.registry, SETTINGS).session

    def _process(self) -> Process:
        self.processes.append(process := Process(self.store, self.registry, SETTINGS))
        return process

    def _runner(self, process: Process) -> Runner:
        dice = self.dice

        @tool
        async def work() -> str:
            """Work."""
            await asyncio.sleep(dice.choice((0, 0.002, 0.004)))
            return "worked"

        return Runner(Agent("helper", "", [work]), process.session, provider=self.model, registry=process.registry)


class _Pause(asyncio.Event):
    """A pause in an answer, of so many milliseconds."""

    def __init__(self, milliseconds: int) -> None:
        super().__init__()
        self._seconds = milliseconds / 1000

    async def wait(self) -> bool:  # type: ignore[override] # typeshed says Literal[True]
        await asyncio.sleep(self._seconds)
        return True


def _said(message: SessionMessage) -> list[str]:
    """The ids of the user's messages that a stored message holds."""
    if message.role == "user":
        return [message.id]
    return [part.message_id for part in steering_of(message.parts)]


def race(seeds: range) -> Counter[str]:
    """Run races and return what has happened in them."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        with asyncio.Runner() as loop:
            loop.run(_one(Race(seed, counts)))
        counts["races"] += 1
    return counts


async def _one(race: Race) -> None:
    living = asyncio.all_tasks()
    try:
        await race.run()
    finally:
        await bury(living)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for name, count in sorted(race(range(number)).items()):
        print(f"{count:6} {name}")
