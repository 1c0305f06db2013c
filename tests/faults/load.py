"""Users who keep talking, whatever happens to the servers."""

import asyncio
import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults.client import POLL_SECONDS, Client, Stream
from tests.faults.house import House
from tests.faults.truth import Tally

PROMPTS = (
    "[echo:A short answer.]",
    "[slow:10][long:40]",
    "[slow:5][tool:blink][then][slow:10][long:30]",
    '[tool:pause {"seconds": 0.2}][tool:blink][then][echo:Both done.]',
    "[reason][slow:5][long:30]",
)


@dataclass
class User:
    """Says one thing after the other in one session.

    When an answer breaks off, an insistent user sends the same message again until it is answered; another one goes on
    with the next message, and what had come of the answer stays as it is.
    """

    client: Client
    insists: bool
    tally: Tally
    prompts: Iterator[str]
    heard: asyncio.Semaphore
    """Released with every response."""
    broken: list[Stream] = field(default_factory=list)
    """The streams that broke off and were left at that."""
    _broke_at: float | None = None

    async def talk(self, until: asyncio.Event, at_least: int) -> None:
        """Go on until told to stop, and for some turns in any case."""
        turns = 0
        while turns < at_least or not until.is_set():
            await self._say(next(self.prompts), uuid.uuid4().hex)
            turns += 1

    async def _say(self, text: str, message_id: str) -> None:
        while True:
            stream = await self.client.say(text, message_id)
            self._note(stream)
            if stream.finished_as in {"complete", "failed"}:
                return
            if stream.status == 200 and not self.insists:
                self.broken.append(stream)
                return
            await asyncio.sleep(POLL_SECONDS)

    def _note(self, stream: Stream) -> None:
        """Measure from a break to the next turn that begins."""
        self.heard.release()
        began = stream.status == 200 and stream.finished_as != "interrupted"
        if began and self._broke_at is not None:
            self.tally.waits.append(stream.began_at - self._broke_at)
            self._broke_at = None
        if stream.cut or stream.status == 502:
            self._broke_at = time.monotonic()


class Crowd:
    """Several users at once, each with a session and a stream of prompts of their own."""

    def __init__(self, house: House, size: int, *, turns: int, seed: int) -> None:
        self._house = house
        self._turns_each = -(-turns // size)
        self._enough = asyncio.Event()
        self._heard = asyncio.Semaphore(0)
        self.users = [
            User(house.client(), bool(number % 2), house.tally, _endless(random.Random(seed + number)), self._heard)
            for number in range(size)
        ]

    async def hears(self, responses: int) -> None:
        """Wait until so many more responses have ended, well or not."""
        while not self._heard.locked():
            await self._heard.acquire()
        for _ in range(responses):
            await self._heard.acquire()

    async def __aenter__(self) -> "Crowd":
        talks = (user.talk(self._enough, self._turns_each) for user in self.users)
        self._talking = asyncio.gather(*talks)
        return self

    async def __aexit__(self, *failure: object) -> None:
        """Let everybody finish what they are at, then hold every session against the promises."""
        self._enough.set()
        if any(failure):
            self._talking.cancel()
            await asyncio.gather(self._talking, return_exceptions=True)
            return
        await self._talking
        for user in self.users:
            # Whatever broke last is repaired by who comes next.
            assert (await user.client.accepted("[echo:goodbye]")).finished_as == "complete"
            self._house.check(user.client)
            for stream in user.broken:
                if not await _was_finished(self._house, user.client, stream):
                    self._house.check_interrupted(user.client, stream)


async def _was_finished(house: House, client: Client, stream: Stream) -> bool:
    """Whether the turn had stored its answer when the stream broke off."""
    answer = house.read(client).answer(stream.answer_id)
    assert answer is not None
    return bool(answer["status"] != "interrupted")


def _endless(chance: random.Random) -> Iterator[str]:
    while True:
        yield chance.choice(PROMPTS)
