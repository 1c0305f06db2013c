"""Users who keep talking, whatever happens to the servers."""

import asyncio
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import httpx

from tests.faults.client import Client, Exchange, Stream
from tests.faults.house import House
from tests.faults.truth import Findings

KINDS = {"plain": 4, "tool": 4, "long": 4, "regenerate": 2, "summary": 1}
"""What a user does, and how often."""
ENDED = {"complete", "failed", "cancelled"}
POLL_SECONDS = 0.2
STUCK_SECONDS = 90.0
"""Far more than any outage of the soak lasts."""
REFUSALS = {409, 502, 503}
"""Busy, killed, or without a server: what a client may be told while things break."""
WORDS = ("all", "is", "well", "that", "ends")
LONG_WORDS = 100
REPEATED_SHARE = 0.1


@dataclass(frozen=True)
class Prompt:
    """What is sent, and what must come of it."""

    text: str
    says: str
    steps: int = 1
    charges: int = 0

    @classmethod
    def make(cls, kind: str, message_id: str, chance: random.Random) -> "Prompt":
        """Make a prompt whose answer is known. The message id in it tells the model's requests apart."""
        if kind == "long":
            words = " ".join(chance.choice(WORDS) for _ in range(LONG_WORDS))
            says = f"{message_id} {words}"
            return cls(f"[slow:20][echo:{says}]", says)
        says = f"{message_id} said."
        if kind == "tool":
            charge = f"[tool:charge {json.dumps({'order': message_id})}]"
            beside = chance.choice(["", '[tool:pause {"seconds": 0.3}]', "[tool:blink]"])
            return cls(f"[slow:10]{charge}{beside}[then][slow:20][echo:{says}]", says, steps=2, charges=1)
        reasons = chance.choice(["", "[reason]"])
        return cls(f"{reasons}[slow:10][echo:{says}]", says)


@dataclass
class Diary:
    """What all users did and met."""

    turns: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    """From each stream that broke to the next turn that its session began, in seconds."""
    findings: Findings = field(default_factory=Findings)
    followed: int = 0
    stopped: int = 0
    left: int = 0
    sent_twice: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note_turn(self, kind: str) -> None:
        self.turns[kind] += 1
        self.changed.set()


class User:
    """Says one thing after the other in one session.

    When an answer breaks off, an insistent user sends the same again until it is answered; another one goes on with
    the next message, and what had come of the answer stays as it is.
    """

    def __init__(self, client: Client, diary: Diary, chance: random.Random, *, insists: bool) -> None:
        self.client = client
        self.prompts: dict[str, Prompt] = {}
        self.regenerated: dict[str, list[str]] = {}
        """By message, the answers that were to be replaced."""
        self.repeated: Counter[str] = Counter()
        """By message, how often it was sent again after its answer."""
        self.broken: list[Stream] = []
        """The streams that broke off and were left at that."""
        self._diary = diary
        self._chance = chance
        self._insists = insists
        self._broke_at: float | None = None

    async def talk(self, until: asyncio.Event) -> None:
        while not until.is_set():
            kind = self._chance.choices(list(KINDS), list(KINDS.values()))[0]
            try:
                async with asyncio.timeout(STUCK_SECONDS):
                    await self._turn(kind)
            except TimeoutError:
                self._diary.findings.stuck.append(f"{kind} turn of {self.client.session} is not answered")
                return
            self._diary.note_turn(kind)

    async def _turn(self, kind: str) -> None:
        message_id = uuid.uuid4().hex
        prompt = self.prompts[message_id] = Prompt.make(kind, message_id, self._chance)
        if kind == "summary":
            await self._quietly(self.client.summarize)
        habit = self._chance.choice(["follow", "stop", "leave", "twice", "", ""]) if kind == "long" else ""
        stream = await self._answered(lambda: self.client.ask(prompt.text, message_id), habit)
        if stream is not None and stream.finished_as == "complete" and self._chance.random() < REPEATED_SHARE:
            await self._repeat(prompt, stream)
        if kind == "regenerate" and stream is not None and stream.finished_as == "complete":
            answer_id = stream.answer_id
            self.regenerated.setdefault(message_id, []).append(answer_id)
            await self._answered(lambda: self.client.regenerate(answer_id))

    async def _repeat(self, prompt: Prompt, answered: Stream) -> None:
        """Send an answered message once more, as a client does that has lost the answer: it is replayed."""
        again = await self.client.say(prompt.text, answered.message_id)
        if again.status == 200:
            self.repeated[str(answered.message_id)] += 1
            if again.finished_as and (again.answer_id, again.text) != (answered.answer_id, answered.text):
                self._diary.findings.doubled.append(f"message {answered.message_id} is answered again")

    async def _answered(self, send: Callable[[], Exchange], habit: str = "") -> Stream | None:
        """Send until there is an answer. None when the user lost patience with one that broke off."""
        while True:
            stream = await self._read(send, habit)
            self._note(stream)
            if stream.finished_as in ENDED:
                return stream
            if stream.status == 200 and not self._insists:
                self.broken.append(stream)
                return None
            if not stream.cut and stream.status not in REFUSALS | {200}:
                self._diary.findings.diverging.append(f"{stream.status} {stream.body.decode()}")
                return None
            habit = ""
            await asyncio.sleep(POLL_SECONDS)

    async def _read(self, send: Callable[[], Exchange], habit: str) -> Stream:
        """Read an answer as people do: from two pages, with a finger on Stop, or with the connection lost."""
        exchange = send()
        if not habit or not await exchange.shows("text-delta"):
            return await exchange.end()
        match habit:
            case "follow":
                self._diary.followed += 1
                await self.client.resume().end()
            case "twice":
                self._diary.sent_twice += 1
                await send().end()
            case "stop":
                self._diary.stopped += 1
                await self._quietly(lambda: self.client.stop(exchange.stream.message_id))
            case "leave":
                self._diary.left += 1
                await exchange.leave()
        return await exchange.end() if habit != "leave" else exchange.stream

    async def _quietly(self, request: Callable[[], Awaitable[object]]) -> None:
        """Ask for something that may fail while things break."""
        with suppress(httpx.TransportError):
            await request()

    def _note(self, stream: Stream) -> None:
        """Measure from a break to the next turn that begins."""
        began = stream.status == 200 and bool(stream.pieces) and stream.finished_as != "interrupted"
        if began and self._broke_at is not None:
            self._diary.waits.append(stream.began_at - self._broke_at)
            self._broke_at = None
        if stream.cut or stream.status == 502:
            self._broke_at = time.monotonic()


class Crowd:
    """Several users at once, each with two sessions, until so many turns are over."""

    def __init__(self, house: House, users: int, *, turns: int, seed: int) -> None:
        self.diary = Diary()
        self.users: list[User] = []
        self._turns = turns
        self._enough = asyncio.Event()
        for number in range(2 * users):
            client = house.client(None if number % 2 == 0 else self.users[-1].client.user)
            chance = random.Random(seed + number)
            self.users.append(User(client, self.diary, chance, insists=number // 2 % 2 == 0))

    async def talk(self) -> None:
        """Let everybody talk until `enough`."""
        await asyncio.gather(*(user.talk(self._enough) for user in self.users))

    async def reached(self, share: float) -> None:
        """Wait until this share of the turns is over."""
        while self.diary.turns.total() < share * self._turns:
            self.diary.changed.clear()
            await self.diary.changed.wait()

    def enough(self) -> None:
        """Let everybody finish what they are at."""
        self._enough.set()
