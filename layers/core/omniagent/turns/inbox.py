"""A message while a turn runs: refused, posted to the session's inbox, and answered when its turn comes.

Loaded only where a message meets a running turn, or others that wait.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from omniagent.ai.context import call_back
from omniagent.ai.result import AnswerSource, RunResult
from omniagent.errors import (
    InvalidRequest,
    OmniAgentError,
    RegistryUnavailable,
    SessionErased,
    StorageUnavailable,
    TooManyReaders,
    TooManyTurns,
    TurnInProgress,
)
from omniagent.messages import StopReason
from omniagent.protocol import events, sse
from omniagent.session.manager import SessionHead, SessionManager, SessionMessage, message_id_of, new_id
from omniagent.turns.follow import FollowedAnswer, ReaderSeat
from omniagent.turns.keeper import KEEP_ALIVE_SECONDS
from omniagent.turns.lease import REPAIR, Claim, InboxMessage, RunningTurn
from omniagent.turns.plan import Opening
from omniagent.turns.repair import released_late
from omniagent.turns.replay import ReplayedAnswer
from omniagent.turns.setup import Query, TimeLimit, TurnSetup

if TYPE_CHECKING:
    from omniagent.turns.ledger import TurnBudget

logger = logging.getLogger(__name__)

GRACE_TICKS = 4
"""How long a message that waits has the session for itself. Then whoever waits behind it runs its turn."""
INTERRUPT_SECONDS = 30.0
"""How long a regeneration waits for the turn that it interrupts."""
MAX_POSTED_CHARS = 60_000
"""A message must fit into the item of the claim, and into one chunk of the log."""
PAUSE_SECONDS = 2.0
"""Between two attempts to begin a turn that the user's other turns, or a store that is away, hold up."""
UNLIMITED_SECONDS = 3600.0
"""How long somebody who waits without a deadline counts as a reader."""


async def meet(setup: TurnSetup, query: Query, limit: TimeLimit, held: RunningTurn) -> AnswerSource | None:
    """Do what the message's busy policy says. Returns its answer, or None to try the claim again.

    Raises `TurnInProgress`, `InboxFull`, `TooManyReaders` or `BudgetExceeded`.
    """
    query = replace(query, busy=query.busy or "reject")
    can_wait = bool(query.text) and not query.regenerate  # the answers to a turn that waits are no message either
    if can_wait and any(message.id == query.message_id for message in held.inbox):
        return await PostedAnswer(setup, query, limit).joined()
    if not held.alive and (waiting_id := await waited_for(setup, held)) is not None:
        # Instead of an answer: what is asked is closed, and those that waited before this message are answered first.
        if len(query.text) > MAX_POSTED_CHARS:
            raise TurnInProgress
        return await _post(PostedAnswer(setup, query, limit), held, await setup.session.head(), interrupts=waiting_id)
    if not held.alive and query.busy == "reject":
        # Messages wait, and somebody may be about to run the next. If nobody is, this one runs them first.
        taken = await _taken_by(setup)
        if taken is None or not (taken.alive or taken.inbox):
            return None
        if taken.alive:
            raise TurnInProgress
        held, query = taken, replace(query, busy="queue")
    head = await setup.session.head()
    if held.alive and await _is_over(setup, held, head):
        return None
    if (
        query.busy == "reject"
        and can_wait
        and (known := await PostedAnswer(setup, query, limit).known(head)) is not None
    ):
        return known
    if query.busy == "reject" or len(query.text) > MAX_POSTED_CHARS or not (can_wait or query.regenerate):
        raise TurnInProgress(retry_after=1.0 if held.stopping else max(1.0, held.lease_left))
    return await _admitted(setup, query, limit, held, head)


async def _admitted(
    setup: TurnSetup, query: Query, limit: TimeLimit, held: RunningTurn, head: SessionHead | None
) -> AnswerSource | None:
    if query.regenerate:
        return await _interrupt(setup, query, limit, held)
    interrupts = message_id_of(held.claim.turn_id) if query.busy == "interrupt" else ""
    return await _post(PostedAnswer(setup, query, limit), held, head, interrupts=interrupts)


async def _post(
    answer: "PostedAnswer", held: RunningTurn, head: SessionHead | None, *, interrupts: str
) -> AnswerSource | None:
    if held.alive and head is None:
        # Nothing is posted to a session that does not exist yet: its deletion would not find the message.
        await asyncio.sleep(answer.settings.tick_seconds)
        return None
    return await answer.known(head) or await answer.posted(held, interrupts)


async def waited_for(setup: TurnSetup, held: RunningTurn) -> str | None:
    """Return the answer that the messages of the inbox wait for: somebody was asked in it after they were sent.

    None where none waits, or one of them came instead of an answer: they may be answered.
    """
    head = await setup.session.head()
    if head is None or head.has_expired(setup.session.now()):
        return None
    is_ended = any(message.interrupts == head.waiting_id and not message.stopped for message in held.inbox)
    return None if is_ended else head.waiting_id


async def _is_over(setup: TurnSetup, held: RunningTurn, head: SessionHead | None) -> bool:
    """Whether the session is about to be free: its turn has ended, or a dead one is being repaired."""
    if await released_late(setup.registry, held.claim, head):
        return True
    if held.claim.message_id == REPAIR:
        await asyncio.sleep(setup.settings.tick_seconds)
        return True
    return False


async def run_next(setup: TurnSetup, limit: TimeLimit) -> AnswerSource | None:
    """Run the first message of the session's inbox, if nobody does. None when none waits.

    For whoever touches the session after the process of the message's poster has died. Raises what refuses the turn.
    """
    held = await setup.registry.running(setup.session.key)
    if held is None or held.alive or not held.inbox or await waited_for(setup, held) is not None:
        return None
    held = await _taken_by(setup)
    if held is None or held.alive or not held.inbox:
        return None
    return await _continued(setup, limit) or await open_posted(setup, held, limit)


async def look_after(setup: TurnSetup, limit: TimeLimit) -> None:
    """Run the messages that a turn leaves which had waited for somebody: whoever posted them may be long gone."""
    while time.monotonic() < _latest_begin(limit):
        try:
            answer = await run_next(setup, limit)
        except OmniAgentError as exc:
            logger.warning("message of another not answered", extra={"cause": f"{type(exc).__name__}: {exc}"})
            return
        if answer is None:
            return
        await answer.ended()


def _latest_begin(limit: TimeLimit) -> float:
    """When it is too late to begin the turn of a message that has waited: a part of the time is the turn's own."""
    return limit.stop_at - (limit.stop_at - limit.started_at) / 4 if limit.deadline is not None else math.inf


async def _continued(setup: TurnSetup, limit: TimeLimit) -> AnswerSource | None:
    """Continue a turn whose process died: the messages that wait come after it. None when there is none."""
    head = await setup.session.head()
    if head is None or head.active_turn_id is None:
        return None
    from omniagent.turns.takeover import Takeover  # only where a process died

    return await Takeover(setup, replace(limit, started_at=time.monotonic())).open()


async def _taken_by(setup: TurnSetup) -> RunningTurn | None:
    """Wait a moment for somebody to run the next message that waits. Returns what the session is then."""
    for _ in range(GRACE_TICKS):
        held = await setup.registry.running(setup.session.key)
        if held is None or held.alive or not held.inbox:
            break
        await asyncio.sleep(setup.settings.tick_seconds)
    return held


async def _interrupt(setup: TurnSetup, query: Query, limit: TimeLimit, held: RunningTurn) -> AnswerSource | None:
    """Stop the running turn for a regeneration. Its message is stored already, so it need not be posted."""
    patience = min(INTERRUPT_SECONDS, limit.stop_at - limit.started_at)
    if query.busy != "interrupt" or time.monotonic() - limit.started_at > patience:
        raise TurnInProgress
    await setup.registry.stop(setup.session.key, held.claim.turn_id)
    await asyncio.sleep(setup.settings.tick_seconds)
    return None


async def found_with_answer(
    session: SessionManager, message_id: str
) -> tuple[SessionMessage, SessionMessage | None] | None:
    """Return a message that is in the session already, and its answer: for one that has joined an answer, both are it.

    Raises `InvalidRequest` for the id of an answer.
    """
    message = await session.find(message_id)
    if message is None:
        return None
    if message.role == "assistant" and message_id not in message.steering_ids:
        raise InvalidRequest("This message id belongs to an answer. Choose another one.")
    answer = message if message.role == "assistant" else await session.answer(message.turn_number)
    return message, answer


async def open_posted(setup: TurnSetup, held: RunningTurn, limit: TimeLimit) -> AnswerSource | None:
    """Open the answer to the first message of the inbox. The time that it has waited is no part of its turn.

    What another message has come to end need not be waited for.
    """
    limit = replace(limit, started_at=time.monotonic())
    ended = (other.interrupts for other in held.inbox if other.interrupts and not other.stopped)
    message = replace(held.inbox[0], interrupts=next(ended, ""))
    return await Opening(setup, Query(message.text, message.id), limit, message).open_posted()


class PostedAnswer:
    """The answer to a message of the inbox: of its own turn, or of the turn that it has joined.

    Whoever waits holds a process and is counted as a reader. The waiting is a task: it goes on without a reader. One
    whose time is over ends without the end of an answer, and the message stays in the inbox: the same request again
    waits again. Where the turn before it waits for somebody, that is after FOLLOW_SECONDS: it may take a month.
    """

    def __init__(self, setup: TurnSetup, query: Query, limit: TimeLimit) -> None:
        self._setup = setup
        self.settings = setup.settings
        self._session = setup.session
        self._registry = setup.registry
        self._query = query
        self._limit = limit
        self._until = _latest_begin(limit)
        self._seat = ReaderSeat(setup)
        self._free_since: float | None = None
        self._held_up_since: float | None = None
        self._continued_from: str | None = None
        self._log_of: str | None = None
        self._read_to = -1
        self._run_for_others: list[AnswerSource] = []
        self._is_stopped = False
        self._task: asyncio.Task[AnswerSource | None] | None = None

    async def joined(self) -> "PostedAnswer":
        """Wait for a message that is in the inbox already."""
        await self._enter()
        return self._start()

    async def known(self, head: SessionHead | None) -> ReplayedAnswer | None:
        """Return the answer of a message that is in the session already. Raises `TurnInProgress` if it may be
        answered again.
        """
        found = await found_with_answer(self._session, self._query.message_id)
        if found is None:
            return None
        message, answer = found
        is_latest = head is None or message.turn_number == head.latest_turn_number
        is_waiting = head is not None and head.waiting_id is not None
        settled = ("complete", "waiting") if is_waiting else ("complete",)
        if answer is None or (is_latest and answer.status not in settled):
            raise TurnInProgress
        return ReplayedAnswer(self._session.session_id, answer)

    async def posted(self, held: RunningTurn, interrupts: str = "") -> "PostedAnswer | None":
        """Post the message to the turn that holds the session, or held it last. None when it does not any more."""
        await self._enter()
        request: TurnBudget | None = None
        is_posted = False
        query = self._query
        message = InboxMessage(query.message_id, query.text, steers=query.busy == "steer", interrupts=interrupts)
        try:
            if self._setup.account is not None:
                request = self._setup.account.request(new_id())
                await request.admitted()
            most = self.settings.max_waiting_messages
            is_posted = await self._registry.post(held.claim, message, most, stop=query.busy == "interrupt")
        finally:
            if not is_posted:
                if request is not None:
                    await request.give_back()
                await self._seat.leave()
        if is_posted and not held.alive:  # no turn runs that somebody looks after
            await call_back(self._setup.hooks.on_begin, held.claim.turn_id, held.claim.attempt)
        return self._start() if is_posted else None

    @property
    def message_id(self) -> str:
        """The id of the answer's message. Empty while the message waits."""
        source = self._source
        return source.message_id if source is not None else ""

    async def frames(self) -> AsyncIterator[bytes]:
        yield sse.KEEP_ALIVE  # the message is durable: the status line need not wait
        task = self._started
        while not task.done():
            await asyncio.wait([task], timeout=KEEP_ALIVE_SECONDS)
            if not task.done():
                yield sse.KEEP_ALIVE
        if task.cancelled():
            return
        exc = task.exception()
        if exc is not None:
            yield sse.encode(events.Error(_public(exc))) + sse.DONE
        elif (source := task.result()) is not None:
            async for frames in source.frames():
                yield frames

    async def result(self) -> RunResult:
        source = await asyncio.shield(self._started)
        if source is None:
            raise TurnInProgress("The message waits for its turn. Send the same request again.")
        return await source.result()

    async def ended(self) -> None:
        """Wait until nothing more is done here: for the turn of this message, and those that were run before it."""
        await asyncio.wait([self._started])
        sources = [*self._run_for_others, *([self._source] if self._source is not None else [])]
        await asyncio.gather(*(source.ended() for source in sources))
        await self._seat.leave()

    def stop(self, reason: StopReason) -> None:
        """End the turn with what it has. One that has not begun ends when its time has come; nobody waits for it."""
        self._is_stopped = True
        if self._source is not None:
            self._source.stop(reason)

    def shut_down(self) -> None:
        """Wait no more. The message stays in the inbox."""
        self._started.cancel()

    @property
    def _started(self) -> "asyncio.Task[AnswerSource | None]":
        if self._task is None:
            raise RuntimeError("the message was not posted")
        return self._task

    @property
    def _source(self) -> AnswerSource | None:
        task = self._started
        if not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    def _start(self) -> "PostedAnswer":
        self._task = asyncio.create_task(self._wait(), name=f"waiting {self._query.message_id}")
        self._session.open_turns.add(self)
        self._task.add_done_callback(lambda _: self._session.open_turns.discard(self))
        return self

    async def _wait(self) -> AnswerSource | None:
        """Wait until there is an answer to read. None when the time is over."""
        pause = tick = self.settings.tick_seconds
        while time.monotonic() < self._give_up_at:
            try:
                if self._is_stopped:
                    await self._registry.stop(self._session.key, self._query.message_id)
                    return None
                if (source := await self._look()) is not None:
                    return source
                pause = tick if self._held_up_since is None else GRACE_TICKS * tick
            except (TooManyTurns, TurnInProgress, TooManyReaders, StorageUnavailable, RegistryUnavailable) as exc:
                logger.info("message waits", extra={"cause": f"{type(exc).__name__}: {exc}"})
                pause = max(tick, PAUSE_SECONDS)
            await asyncio.sleep(pause)
        return None

    @property
    def _give_up_at(self) -> float:
        if self._held_up_since is None:
            return self._until
        return min(self._until, self._held_up_since + self.settings.follow_seconds)

    async def _look(self) -> AnswerSource | None:
        held = await self._registry.running(self._session.key)
        inbox = held.inbox if held is not None else ()
        place = next((place for place, each in enumerate(inbox) if each.id == self._query.message_id), None)
        if held is not None and held.alive:
            self._free_since = self._held_up_since = None
            if held.claim.message_id == self._query.message_id or (place is not None and await self._has_joined(held)):
                return await self._followed(held.claim)
        if place is None:
            return await self._answered()
        if held is None or held.alive or await self._is_held_up(held, inbox[place]) or not self._may_run(place):
            return None
        if held.claim.token != self._continued_from:
            self._continued_from = held.claim.token  # once: one that cannot be continued is closed by the next turn
            if (dead := await _continued(self._setup, self._limit)) is not None:
                self._run_for_others.append(dead)
                return None
        if place == 0:
            return await open_posted(self._setup, held, self._limit)
        await self._run_for_another(held)
        return None

    async def _is_held_up(self, held: RunningTurn, own: InboxMessage) -> bool:
        """Whether the turn before waits for somebody. A message that was stopped is not waited for then."""
        if await waited_for(self._setup, held) is None:
            self._held_up_since = None
            return False
        self._held_up_since = self._held_up_since or time.monotonic()
        self._is_stopped = self._is_stopped or own.stopped
        return True

    async def _answered(self) -> AnswerSource:
        """Return the stored answer of a message that has left the inbox."""
        message = await self._session.find(self._query.message_id)
        if message is None:
            raise SessionErased
        answer = message if message.role == "assistant" else await self._session.answer(message.turn_number)
        if answer is None:
            raise SessionErased
        return ReplayedAnswer(self._session.session_id, answer)

    async def _has_joined(self, held: RunningTurn) -> bool:
        """Read on in the log of the running turn until the message is there."""
        if self._log_of != held.claim.turn_id:
            self._log_of, self._read_to = held.claim.turn_id, -1
        chunks = await self._registry.read(self._session.key, held.claim.turn_id, self._read_to)
        for number, frames in chunks:
            self._read_to = number
            if any(message_id == self._query.message_id for message_id in sse.steering_ids(frames)):
                return True
        return False

    def _may_run(self, place: int) -> bool:
        """Whether it is this message's turn, or whoever waits before it does not come: each place waits its time."""
        now = time.monotonic()
        self._free_since = self._free_since or now
        if now - self._free_since < place * GRACE_TICKS * self.settings.tick_seconds:
            return False
        self._free_since = None
        return True

    async def _run_for_another(self, held: RunningTurn) -> None:
        """Run the turn of the first message that waits: its own process does not."""
        try:
            source = await open_posted(self._setup, held, self._limit)
        except OmniAgentError as exc:
            if isinstance(exc, TooManyTurns | TurnInProgress | StorageUnavailable | RegistryUnavailable):
                raise
            logger.warning("message of another not answered", extra={"cause": f"{type(exc).__name__}: {exc}"})
            return
        if source is not None:
            self._run_for_others.append(source)

    async def _followed(self, claim: Claim) -> FollowedAnswer | None:
        """Follow a turn once it has begun. This reader is counted already."""
        return await FollowedAnswer.begun(self._setup, claim, self._limit, is_counted=True)

    async def _enter(self) -> None:
        await self._seat.take(min(UNLIMITED_SECONDS, self._limit.time_left()))


def _public(exc: BaseException) -> str:
    if isinstance(exc, OmniAgentError):
        return exc.public
    logger.error("message not answered", exc_info=exc)
    return OmniAgentError.public
