"""Take a session's claim, and have its turn watched: `taken`, `requested` and `Notice`."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from omniagent.turns.lease import Claim, OnDead, Renewal, RunningTurn, TurnRegistry

logger = logging.getLogger(__name__)
RELEASE_SECONDS = 2.0
NOTICE_SECONDS = 20.0
"""How long a turn waits until it is watched. AWS's own calls give up earlier."""
LATE_CLAIM_SECONDS = 1.0
"""A lease begins when the claim is sent. One that was granted so much later is renewed before it is used."""


async def requested(registry: TurnRegistry, claim: Claim, request: Awaitable[RunningTurn | None]) -> RunningTurn | None:
    """Await a claim request. A failed request may still have been granted, so the claim is then released.

    A stopped turn's claim stays and its lease is ended: the stop flag is in it.
    """
    try:
        return await request
    except BaseException:
        with suppress(Exception):
            async with asyncio.timeout(RELEASE_SECONDS):
                await (registry.let_go(claim) if claim.is_stopped else registry.release(claim))
        raise


async def taken(registry: TurnRegistry, claim: Claim, on_dead: OnDead | None = None) -> RunningTurn | None:
    """Claim a session, like `registry.claim`. A claim that was granted late is renewed before it is used."""

    async def take() -> RunningTurn | None:
        is_lost = True
        while is_lost:
            asked_at = time.monotonic()
            held = await registry.claim(claim, on_dead)
            is_late = held is None and time.monotonic() - asked_at >= LATE_CLAIM_SECONDS
            is_lost = is_late and await registry.renew(claim) == Renewal.LOST
        return held

    return await requested(registry, claim, take())


class Notice:
    """Has one turn watched: sent in parallel with the turn's other work, and again every tick until it has arrived."""

    def __init__(self, send: Callable[[], Coroutine[Any, Any, bool]] | None = None) -> None:
        """`send` returns whether the notice has arrived."""
        self._send = send
        self._sending: asyncio.Task[bool] | None = None

    def give(self) -> None:
        """Send the notice. Does nothing if it was already given."""
        if self._sending is None and self._send is not None:
            self._sending = asyncio.create_task(self._send(), name="notice")

    def give_again(self) -> None:
        """Send the notice again if it has failed."""
        sent = self._sending
        if sent is not None and sent.done() and not sent.cancelled() and not sent.result():
            self._sending = None
            self.give()

    async def given(self) -> None:
        """Wait until it is sent or has failed. One that hangs is given up: the turn does not hang with it."""
        if self._sending is not None:
            _, hanging = await asyncio.wait([self._sending], timeout=NOTICE_SECONDS)
            if hanging:
                logger.warning("notice takes too long and is cancelled")
                self.withdraw()

    def withdraw(self) -> None:
        """Cancel the notice of a turn that does not begin. One that was already sent does no harm."""
        if self._sending is not None:
            self._sending.cancel()
