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
from functools import partial
from typing import Literal

import httpx

from tests.faults.client import Client, Exchange, Json, Stream, a_moment
from tests.faults.house import House
from tests.faults.truth import Conversation, Findings

KINDS = {
    **dict.fromkeys(("plain", "tool", "long"), 4),
    **dict.fromkeys(("background", "edit", "regenerate older"), 3),
    **dict.fromkeys(("regenerate", "queue", "steer", "interrupt", "approve", "send after"), 2),
    **dict.fromkeys(("summary", "deny", "unanswered"), 1),
}
"""What a user does, and how often."""
WORDS = ("all", "is", "well", "that", "ends")
LONG_WORDS = 100
ENDED = {"complete", "failed", "cancelled", "waiting"}
POLL_SECONDS = 0.2
STUCK_SECONDS = 180.0
"""Far more than any outage of the soak lasts, and than the run function pauses after three deaths of its own."""
REFUSALS = {409, 502, 503}
"""Busy, killed, or without a server: what a client may be told while things break."""
REPEATED_SHARE = 0.1
FOLLOWED_SHARE = 0.5
MESSAGES_OF_A_TURN = 3
Temper = Literal["insists", "goes on", "waits"]
TEMPERS: tuple[Temper, ...] = ("insists", "goes on", "waits")


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
        says, order = f"{message_id} said.", json.dumps({"order": message_id})
        if kind == "tool":
            beside = chance.choice(["", '[tool:pause {"seconds": 0.3}]', "[tool:blink]"])
            return cls(f"[slow:10][tool:charge {order}]{beside}[then][slow:20][echo:{says}]", says, steps=2, charges=1)
        if kind in {"approve", "deny", "unanswered"}:
            charges = 1 if kind == "approve" else 0
            return cls(f"[slow:10][tool:transfer {order}][then][slow:20][echo:{says}]", says, steps=2, charges=charges)
        reasons = chance.choice(["", "[reason]"])
        return cls(f"{reasons}[slow:10][echo:{says}]", says)


@dataclass
class Diary:
    """What all users did and met."""

    turns: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    """From each stream that broke to the next turn that its session began, in seconds."""
    unasked: list[float] = field(default_factory=list)
    """From each stream that broke, and was not asked for again, to its stored answer, in seconds."""
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

    When an answer breaks off, one user insists and sends the same again until it is answered. Another one goes on with
    the next message, whatever becomes of the answer. The third waits until it is finished unasked.
    """

    def __init__(self, house: House, client: Client, diary: Diary, chance: random.Random, temper: Temper) -> None:
        self.client = client
        self.findings = Findings()
        self.prompts: dict[str, Prompt] = {}
        self.parents: dict[str, str] = {}
        """By message, the node that it was sent after. The others follow the latest."""
        self.regenerated: list[str] = []
        """The answers that were to be generated again."""
        self.repeated: dict[str, list[tuple[float, float]]] = {}
        """By message, when it was sent again after its answer, and when that was replayed."""
        self.broken: list[Stream] = []
        """The streams that broke off and were left at that."""
        self._house = house
        self._diary = diary
        self._chance = chance
        self._temper = temper
        self._broke_at: float | None = None

    async def talk(self, until: asyncio.Event) -> None:
        while not until.is_set():
            kind = self._chance.choices(list(KINDS), list(KINDS.values()))[0]
            try:
                async with asyncio.timeout(STUCK_SECONDS):
                    await self._turn(kind)
            except TimeoutError:
                last = list(self.prompts)[-MESSAGES_OF_A_TURN:]
                self.findings.stuck.append(f"{kind} turn of {self.client.session} is not answered, of {last}")
                return
            self._diary.note_turn(kind)

    async def _turn(self, kind: str) -> None:
        match kind:
            case "queue" | "steer" | "interrupt":
                await self._interject(kind)
            case "background":
                await self._leave()
            case "approve" | "deny" | "unanswered":
                await self._decide(kind)
            case "edit" | "send after" | "regenerate older":
                await self._branch(kind)
            case _:
                await self._ask(kind)

    def _message(self, *kinds: str) -> tuple[str, Prompt]:
        message_id = uuid.uuid4().hex
        self.prompts[message_id] = Prompt.make(self._chance.choice(kinds), message_id, self._chance)
        return message_id, self.prompts[message_id]

    async def _ask(self, kind: str) -> None:
        message_id, prompt = self._message(kind)
        if kind == "summary":
            await self._quietly(self.client.summarize)
        habit = self._chance.choice(["follow", "stop", "leave", "twice", "", ""]) if kind == "long" else ""
        stream = await self._sent(partial(self.client.ask, prompt.text, message_id), habit)
        if kind == "regenerate" and stream is not None and stream.finished_as == "complete":
            await self._regenerate(stream.answer_id)

    async def _sent(self, send: Callable[[], Exchange], habit: str = "") -> Stream | None:
        stream = await self._answered(send, habit)
        if stream is not None and stream.finished_as == "complete" and self._chance.random() < REPEATED_SHARE:
            await self._repeat(send, stream)
        return stream

    async def _regenerate(self, answer_id: str) -> None:
        self.regenerated.append(answer_id)
        await self._answered(partial(self.client.regenerate, answer_id))

    async def _branch(self, kind: str) -> None:
        """Leave the active path at any message of the page."""
        page = await self._page() if self.prompts else []
        messages = [each for each in page if each["role"] == ("user" if kind == "edit" else "assistant")]
        if not messages:
            await self._ask("plain")
            return
        chosen = self._chance.choice(messages)
        if kind == "regenerate older":
            await self._regenerate(chosen["id"])
            return
        message_id, prompt = self._message("plain", "tool", "long")
        edits = chosen["id"] if kind == "edit" else None
        self.parents[message_id] = parent = chosen["metadata"].get("parentId", "") if edits else chosen["id"]
        await self._sent(partial(self.client.ask, prompt.text, message_id, edits=edits, parent=parent))

    async def _page(self) -> list[Json]:
        while True:
            with suppress(httpx.HTTPError):
                return await self.client.messages()
            await a_moment()

    async def _interject(self, busy: str) -> None:
        """Say something while an answer is on its way. What is queued comes in the order in which it was sent."""
        async with asyncio.TaskGroup() as reading:

            async def sent(message_id: str, prompt: Prompt, policy: str | None) -> Exchange:
                send = partial(self.client.ask, prompt.text, message_id, policy)
                exchange = send()
                reading.create_task(self._answered(send, begun=exchange))
                await exchange.shows(lambda stream: bool(stream.pieces))
                return exchange

            running = await sent(*self._message("long", "tool"), None)
            kind = self._chance.choice(["start", "text-delta"])
            await running.shows(lambda stream: kind in stream.kinds)
            for _ in range(2 if busy == "queue" else 1):
                await sent(*self._message("plain"), busy)

    async def _leave(self) -> None:
        """Have a message answered in the background, and look at it now and then."""
        message_id, prompt = self._message("plain", "tool", "long")
        while (stream := await self.client.leave(prompt.text, message_id, "queue")).status != 202:
            if self._is_unheard_of(stream):
                return
            if (await self._stored()).is_answered(message_id):
                break  # the response was lost
            await asyncio.sleep(POLL_SECONDS)
        if self._chance.random() < FOLLOWED_SHARE:
            self._diary.followed += 1
            await self.client.resume().end()
        await self._finished_unasked(message_id)

    async def _decide(self, decision: str) -> None:
        """Ask for something that has to be approved. Without an answer, the next message closes the request."""
        message_id, prompt = self._message(decision)
        stream = await self._answered(lambda: self.client.ask(prompt.text, message_id))
        if stream is None:
            # A message that is sent before the request is made would wait until somebody decides.
            await self._finished_unasked(message_id)
            return
        if stream.finished_as != "waiting" or decision == "unanswered":
            return
        answer_id, call_id = stream.answer_id, str(stream.event("tool-approval-request")["toolCallId"])
        approved = decision == "approve"
        await self._answered(lambda: self.client.decide(answer_id, call_id, approved=approved))

    async def _repeat(self, send: Callable[[], Exchange], answered: Stream) -> None:
        """Send an answered message once more, as a client does that has lost the answer: it is replayed."""
        since = time.monotonic()
        again = await send().end()
        if again.status == 200:
            self.repeated.setdefault(str(answered.message_id), []).append((since, time.monotonic()))
            if again.finished_as and (again.answer_id, again.text) != (answered.answer_id, answered.text):
                self.findings.doubled.append(f"message {answered.message_id} is answered again")

    async def _answered(
        self, send: Callable[[], Exchange], habit: str = "", *, begun: Exchange | None = None
    ) -> Stream | None:
        """Send until there is an answer. None when it broke off, and the user went on or waited for its end.

        A message that joined an older answer which was interrupted is not answered again: it is told so each time.
        """
        interrupted = ""
        while True:
            stream = await (begun.end() if begun is not None else self._read(send, habit))
            self._note(stream)
            if stream.finished_as in ENDED or (stream.finished_as and stream.answer_id == interrupted):
                return stream
            interrupted = stream.answer_id if stream.finished_as else ""
            if stream.is_acknowledged and self._temper != "insists":
                self.broken.append(stream)
                if self._temper == "waits":
                    await self._finished_unasked(stream.message_id)
                return None
            if self._is_unheard_of(stream):
                return None
            begun, habit = None, ""
            await asyncio.sleep(POLL_SECONDS)

    def _is_unheard_of(self, stream: Stream) -> bool:
        """Whether a client is told something that it must not be told, whatever breaks."""
        if stream.cut or stream.is_throttled or stream.status in REFUSALS | {200}:
            return False
        self.findings.diverging.append(f"message {stream.message_id}: {stream.status} {stream.body.decode()}")
        return True

    async def _finished_unasked(self, message_id: str | None) -> None:
        """Wait until the answer to a message, or whatever is running, is stored."""
        since = time.monotonic()
        while not (await self._stored()).is_answered(message_id):
            await a_moment()
        self._diary.unasked.append(time.monotonic() - since)

    async def _stored(self) -> Conversation:
        return await asyncio.to_thread(self._house.read, self.client)

    async def _read(self, send: Callable[[], Exchange], habit: str) -> Stream:
        """Read an answer as people do: from two pages, with a finger on Stop, or with the connection lost."""
        exchange = send()
        if not habit or not await exchange.shows(lambda stream: "text-delta" in stream.kinds):
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
            self.users.append(User(house, client, self.diary, chance, TEMPERS[number % len(TEMPERS)]))

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
