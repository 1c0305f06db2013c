"""Accepts a message now, to be answered later by another process. Until then it is in the session's inbox.

Imported only for background messages.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from omniagent.ai.result import AnswerSource
from omniagent.errors import InvalidRequest, NotRegenerable, SessionErased, TooManyTurns, TurnInProgress
from omniagent.session.manager import SessionManager, message_id_of, new_id
from omniagent.turns.claiming import requested
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.inbox import MAX_POSTED_CHARS, UNLIMITED_SECONDS, found_with_answer, open_posted, run_next
from omniagent.turns.lease import ERASE, REPAIR, Claim, InboxMessage, Reader, RunningTurn
from omniagent.turns.query import Query
from omniagent.turns.repair import is_dead, released_late, waited_for
from omniagent.turns.setup import TurnSetup

logger = logging.getLogger(__name__)

NOT_A_MESSAGE = "Only a new message can be answered in the background."
ANSWERED_BADLY = "The answer to this message is incomplete. Send the message without `background` to answer it again."


class Acceptance:
    """Accepts one message, under the query's busy policy."""

    def __init__(self, setup: TurnSetup, query: Query) -> None:
        self._session = setup.session
        self._registry = setup.registry
        self._meter = setup.meter
        self._settings = setup.settings
        self._on_begin = setup.hooks.on_begin
        self._query = query
        self._seat: Reader | None = None
        self._is_posted = False
        self._is_unattended = False
        """Already queued, and no process holds the session: the poster may have died before `on_posted`."""
        self._message = InboxMessage(query.message_id, query.text, steers=query.busy == "steer")

    async def accept(self, on_posted: Callable[[str], Awaitable[None]] | None = None) -> None:
        """Make the message durable. `on_posted` is called if this call posted it.

        If it was already queued and no process holds the session, it gets a watch (`on_begin`): its poster may have
        died before `on_posted`. That counts as a request.

        Raises `InvalidRequest`, `NotRegenerable`, `TurnInProgress`, `TooManyTurns`, `QueueFull`,
        `BudgetExceeded`, `SessionErased`, and what `on_posted` raises if no other process will answer the message.
        """
        if self._query.regenerate or not self._query.text:
            raise InvalidRequest(NOT_A_MESSAGE)
        if len(self._query.text) > MAX_POSTED_CHARS:
            raise InvalidRequest(f"A background message may have at most {MAX_POSTED_CHARS} characters.")
        await self._session.create()  # so that a deletion of the session finds the message
        is_accepted = False
        try:
            while (posted := await self._attempt()) is None:
                pass
            is_accepted = posted
            if on_posted is not None and self._is_posted:
                is_accepted = await self._announced(on_posted)
            elif self._is_unattended and self._on_begin is not None:
                await self._meter.admit()  # each watch costs something
                await self._on_begin(self._query.message_id, 0)
        finally:
            if not is_accepted:
                await self._give_back()

    async def _announced(self, on_posted: Callable[[str], Awaitable[None]]) -> bool:
        """Call `on_posted`. If it fails, remove the message from the inbox, unless another turn's watch will run it."""
        try:
            await on_posted(self._query.message_id)
        except Exception as exc:
            if await self._took_back():
                await self._give_back()
                raise
            # The turn that holds the session, or a message queued before this one, has a watch that also runs this one.
            logger.warning("accepted message not announced", extra={"cause": f"{type(exc).__name__}: {exc}"})
        return True

    async def _took_back(self) -> bool:
        """Remove the message from the inbox. False if the session is claimed, or others are queued before it."""
        claim = Claim(self._session.key, new_id(), self._query.message_id)
        if await requested(self._registry, claim, self._registry.claim(claim)) is not None:
            return False
        await asyncio.shield(self._registry.release(claim, [self._query.message_id]))
        return True

    async def _attempt(self) -> bool | None:
        """Post the message. Return whether it is queued, or None to retry."""
        if await self._is_answered():
            return False
        held = await self._registry.running(self._session.key)
        if held is None:
            claim = Claim(self._session.key, new_id(), self._query.message_id)
            held = await requested(self._registry, claim, self._registry.claim(claim))
            if held is None:
                return await self._post_first(claim)
        return await self._meet(held)

    async def _post_first(self, claim: Claim) -> bool:
        """Post the message to an unclaimed session: claim, post, release. The session is then reserved for it."""
        try:
            await self._count()
            return await self._post(claim, await self._waiting_id())
        finally:
            await asyncio.shield(self._registry.release(claim))

    async def _is_answered(self) -> bool:
        """Whether the session already has the message. Its dead turn is continued without a new request."""
        found = await found_with_answer(self._session, self._query.message_id)
        if found is None:
            return False
        message, answer = found
        self._query.check_same(message)
        if answer is not None and answer.status not in ("complete", "waiting"):
            raise NotRegenerable(ANSWERED_BADLY)
        return True

    async def _meet(self, held: RunningTurn) -> bool | None:
        """Apply the busy policy to the turn that holds the session, or to its queued messages."""
        if held.claim.message_id == ERASE:
            raise SessionErased
        if self._query.is_queued(held.inbox):
            if held.alive and await self._is_being_posted(held.claim):
                await asyncio.sleep(self._settings.tick_seconds)
                return None
            self._is_unattended = not held.alive  # else the turn that holds the session has a watch
            return True
        if held.alive and held.claim.message_id in (REPAIR, self._query.message_id):
            await asyncio.sleep(self._settings.tick_seconds)  # a repair, or a request that posts or begins it
            return None
        if held.alive and await released_late(self._registry, held.claim, await self._session.head()):
            return None
        is_busy = held.alive or held.inbox  # otherwise a dead turn, which is continued before this message
        # A message sent while a turn waits replaces the answer to its request, whatever the policy.
        ends = None if held.alive else await self._waiting_id()
        if is_busy and ends is None and self._query.busy in (None, "reject"):
            raise TurnInProgress(retry_after=1.0 if held.stopping else max(1.0, held.lease_left))
        await self._count()
        stop = self._query.busy == "interrupt" and held.alive
        return await self._post(held.claim, message_id_of(held.claim.turn_id) if stop else ends, stop=stop) or None

    async def _is_being_posted(self, claim: Claim) -> bool:
        """Whether another request for this message holds the session: it posts the message, or begins its turn."""
        if claim.message_id != self._query.message_id:
            return False
        head = await self._session.head()
        return head is None or head.latest_turn_id != claim.turn_id

    async def _post(self, claim: Claim, ends: str | None, *, stop: bool = False) -> bool:
        message = replace(self._message, interrupts=ends or "")
        self._is_posted = await self._registry.post(claim, message, self._settings.max_queued_messages, stop=stop)
        return self._is_posted

    async def _waiting_id(self) -> str | None:
        head = await self._session.head()
        return None if head is None else head.waiting_id

    async def _give_back(self) -> None:
        if self._seat is not None:
            await self._registry.leave(self._seat)

    async def _count(self) -> None:
        """Count the request, and the message among the user's readers."""
        if self._seat is None:
            self._seat = _seat(self._session, self._query.message_id)
            others = await self._registry.enter(self._seat)
            if len(others) > self._settings.max_readers_per_user:
                raise TooManyTurns
        await self._meter.admit()


def _seat(session: SessionManager, message_id: str) -> Reader:
    """Return the reader that counts a queued message. Another process removes it; it expires after an hour."""
    return Reader(f"{session.session_id}/{message_id}", session.user_id, session.key, UNLIMITED_SECONDS)


async def run_accepted(setup: TurnSetup, message_id: str, limit: TimeLimit) -> AnswerSource | None:
    """Run the turn of an accepted message. None if it is no longer queued.

    Messages and dead turns before it come first. Also None if a turn before it waits for a human: the process that
    continues that turn answers the message. Raises `TurnInProgress` while another process holds the session, or the
    error that refuses the turn; the message then stays queued.
    """
    held = await setup.registry.running(setup.session.key)
    if held is None or all(message.id != message_id for message in held.inbox):
        await setup.registry.leave(_seat(setup.session, message_id))
        return None
    if held.alive:
        raise TurnInProgress
    if await waited_for(setup.session, held) is not None:
        await setup.registry.leave(_seat(setup.session, message_id))
        return None
    if held.inbox[0].id == message_id and not is_dead(held, await setup.session.head()):
        source = await open_posted(setup, held, limit)
    else:
        source = await run_next(setup, limit)
    if source is None:
        raise TurnInProgress
    return source
