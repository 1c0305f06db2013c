"""Registries that misbehave, claims and messages for every registry, and a way to wait for what they see."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from omniagent.errors import RegistryUnavailable
from omniagent.session.manager import new_id
from omniagent.turns.lease import Claim, InboxMessage, OnDead, Renewal, RunningTurn, TurnRegistry
from omniagent.turns.memory_registry import MemoryRegistry


@dataclass(slots=True)
class Unreliable(MemoryRegistry):
    """Can be down, or lose its answers: what was asked is done, and nobody is told."""

    is_down: bool = False
    error: Exception | None = None
    """Raised instead of `RegistryUnavailable` while it is down."""
    loses_answers: bool = False
    renewals: int = 0
    refusals: int = 0
    appends: int = 0
    reads: list[int] = field(default_factory=list)
    """The chunk numbers after which the log was read."""

    async def claim(self, claim: Claim, on_dead: OnDead | None = None) -> RunningTurn | None:
        self._refuse_when_down()
        return await MemoryRegistry.claim(self, claim, on_dead)

    async def renew(self, claim: Claim) -> Renewal:
        self._refuse_when_down()
        self.renewals += 1
        return await MemoryRegistry.renew(self, claim)

    async def append(self, claim: Claim, number: int, frames: bytes) -> bool:
        self._refuse_when_down()
        self.appends += 1
        is_ours = await MemoryRegistry.append(self, claim, number, frames)
        if self.loses_answers:
            raise RegistryUnavailable("the answer was lost")
        return is_ours

    async def release(self, claim: Claim, taken: Collection[str] = ()) -> bool:
        self._refuse_when_down()
        return await MemoryRegistry.release(self, claim, taken)

    async def read(self, session: str, turn_id: str, after: int = -1) -> list[tuple[int, bytes]]:
        self._refuse_when_down()
        self.reads.append(after)
        return await MemoryRegistry.read(self, session, turn_id, after)

    def _refuse_when_down(self) -> None:
        if self.is_down:
            self.refusals += 1
            raise self.error or RegistryUnavailable("down")


@dataclass(slots=True)
class Hanging(MemoryRegistry):
    """Its owner can hang: renewals wait until the test lets them go on."""

    renewing: asyncio.Event = field(default_factory=asyncio.Event)

    async def renew(self, claim: Claim) -> Renewal:
        await self.renewing.wait()
        return await MemoryRegistry.renew(self, claim)


async def until(happened: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that no event announces."""
    async with asyncio.timeout(60):
        while not await happened():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def next_claim(claim: Claim) -> Claim:
    return Claim(claim.session, "turn-2", "message-2")


def messages(*ids: str, steers: bool = False) -> list[InboxMessage]:
    return [InboxMessage(each, f"Text of {each}: ü", steers=steers) for each in ids]


async def post(registry: TurnRegistry, claim: Claim, *ids: str) -> None:
    for message in messages(*ids):
        assert await registry.post(claim, message, 10)


async def waiting(registry: TurnRegistry, claim: Claim) -> list[str]:
    running = await registry.running(claim.session)
    return [] if running is None else [message.id for message in running.inbox]


def claim_of(claim: Claim, message_id: str) -> Claim:
    return Claim(claim.session, new_id(), message_id)
