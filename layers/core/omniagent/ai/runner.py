"""`Runner`: from a user's message to a turn, whoever asks and however often.

runner = Runner(agent, MongoSessionManager(store, "alice", "demo"), provider=provider)
async for event in runner.run_stream("Hello"):
    ...
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from omniagent.ai.agent import Agent
from omniagent.ai.providers.llm_provider import LLMProvider
from omniagent.errors import (
    InvalidRequest,
    NotFound,
    NotRegenerable,
    RegistryUnavailable,
    StorageConflict,
    TooManyTurns,
    TurnInProgress,
)
from omniagent.messages import ChatMessage
from omniagent.protocol import events, sse
from omniagent.protocol.plain_json import plain_text
from omniagent.session.identity import check_id, new_id
from omniagent.session.manager import SessionManager, SessionState, StoredMessage
from omniagent.turns.follow import follow
from omniagent.turns.lease import Claim, MemoryRegistry, RunningTurn, TurnRegistry
from omniagent.turns.recorder import replay_events
from omniagent.turns.repair import repair, repair_for_reading
from omniagent.turns.turn import RunResult, Turn, TurnPlan

logger = logging.getLogger("omniagent.runner")

_process_registry = MemoryRegistry()


@dataclass(frozen=True, slots=True)
class Query:
    """What a user asks. The same `message_id` never makes a second turn."""

    text: str = ""
    message_id: str = ""
    regenerate: bool = False
    """Answer the last turn again, in place."""
    replaces: str | None = None
    """With `regenerate`: the answer to replace; it must still be the last one."""


class Reading:
    """The stream of a turn that runs elsewhere or has already ended."""

    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        self._frames = frames

    def frames(self) -> AsyncIterator[bytes]:
        return self._frames


class Runner:
    """Runs the turns of one session with one agent. Cheap to make: one per request."""

    def __init__(
        self,
        agent: Agent,
        session: SessionManager,
        *,
        provider: LLMProvider,
        registry: TurnRegistry | None = None,
        on_end: Callable[[RunResult], Awaitable[None]] | None = None,
    ) -> None:
        self._agent = agent
        self._session = session
        self._provider = provider
        self._registry = registry or _process_registry
        self._settings = session.settings
        self._on_end = on_end

    @property
    def session(self) -> SessionManager:
        return self._session

    async def run(self, query: str | Query, *, deadline: float | None = None) -> RunResult:
        """Answer without streaming from the model and return the stored result.

        Cancelling it stops the turn; the partial answer is stored before the cancellation goes on.
        """
        started = await self.start(query, deadline=deadline)
        if not isinstance(started, Turn):
            return await self._stored_result(started, query)
        try:
            return await started.result()
        except asyncio.CancelledError:
            started.stop("cancelled")
            with suppress(asyncio.CancelledError):
                await started.result()
            raise

    async def run_stream(
        self, query: str | Query, *, deadline: float | None = None
    ) -> AsyncIterator[events.StreamEvent]:
        """Answer and yield the events. A reader that stops reading does not stop the turn."""
        started = await self.start(query, deadline=deadline)
        if not isinstance(started, Turn):
            raise TurnInProgress("This message is being answered or has been: read its frames with start().")
        async for event in started.events():
            yield event

    async def start(self, query: str | Query, *, deadline: float | None = None) -> Turn | Reading:
        """Start a turn, join the one that answers the same message, or replay its stored answer.

        `deadline` is a `time.monotonic()` by which everything must be stored.
        """
        query = self._checked(query)
        claim = Claim(self._session.key, new_id(), _claim_id(query))
        while (held := await self._registry.claim(claim)) is not None:
            if (reading := await self._join(held, claim)) is not None:
                return reading
        try:
            started = await self._start_claimed(query, claim, deadline=deadline)
        except BaseException:
            await self._release(claim)
            raise
        if isinstance(started, Reading):
            await self._release(claim)
        return started

    async def resume(self) -> Reading | None:
        """Follow the running turn from its first event; None when none runs. A dead turn is repaired first."""
        running = await self._registry.running(self._session.key)
        if running is not None and running.alive and (reading := await self._follow(running.claim)) is not None:
            return reading
        await self._repair_for_reading()
        return None

    def _checked(self, query: str | Query) -> Query:
        query = Query(query) if isinstance(query, str) else query
        if query.regenerate:
            return query
        limit = self._settings.max_message_chars
        if not query.text.strip():
            raise InvalidRequest("The message is empty.")
        if len(query.text) > limit:
            raise InvalidRequest(f"The message is longer than {limit} characters.")
        message_id = check_id(query.message_id, "message id") if query.message_id else new_id()
        return Query(plain_text(query.text), message_id)

    async def _start_claimed(self, query: Query, claim: Claim, *, deadline: float | None) -> Turn | Reading:
        running, state = await self._read(query)
        if state.active_turn_id is not None:
            await repair(self._session, self._registry, state.active_turn_id)
            running, state = await self._read(query)
        running_at_most = await self._admitted(running)
        plan = await self._plan(query, state)
        if isinstance(plan, StoredMessage):
            return Reading(_replay(plan))
        turn = Turn(
            plan=plan,
            agent=self._agent,
            provider=self._provider,
            session=self._session,
            state=state,
            registry=self._registry,
            claim=claim,
            running_at_most=running_at_most,
            deadline=deadline,
            on_end=self._on_end,
        )
        try:
            await turn.start()
        except StorageConflict as exc:
            raise TurnInProgress(retry_after=1.0) from exc
        return turn

    async def _read(self, query: Query) -> tuple[Sequence[str], SessionState]:
        """Read the user's running turns and the session's state at the same time."""
        return await asyncio.gather(self._session.running_turns(), self._session.load(query.message_id or None))

    async def _admitted(self, keys: Sequence[str]) -> int:
        """Return how many turns MongoDB may find running when this one begins. Raises `TooManyTurns`.

        The dead do not count, but are looked for only when there would be too many.
        """
        limit = self._settings.max_running_turns_per_user
        if len(keys) < limit:
            return limit
        turns = await asyncio.gather(*(self._registry.running(key) for key in keys))
        dead = sum(turn is None or not turn.alive for turn in turns)
        if len(keys) - dead >= limit:
            raise TooManyTurns
        return limit + dead

    async def _plan(self, query: Query, state: SessionState) -> TurnPlan | StoredMessage:
        """Decide what the message asks for: a new turn, the same turn again, or the answer that is there."""
        if query.regenerate:
            return await self._plan_regeneration(query, state)
        earlier = state.earlier
        if earlier is None:
            if state.latest_turn_number >= self._settings.max_turns_per_session:
                raise InvalidRequest("This session has reached its last turn. Start a new one.")
            return TurnPlan(state.latest_turn_number + 1, query.message_id, query.text)
        if earlier.role != "user":
            raise InvalidRequest("This message id belongs to an answer. Choose another one.")
        answer = await self._session.answer(earlier.turn_number)
        is_last = earlier.turn_number == state.latest_turn_number
        if answer is not None and (answer.status == "complete" or not is_last):
            return answer
        if not is_last:
            raise NotRegenerable
        text = ChatMessage(role="user", parts=list(earlier.parts)).text
        return TurnPlan(earlier.turn_number, query.message_id, text, again=True)

    async def _plan_regeneration(self, query: Query, state: SessionState) -> TurnPlan | StoredMessage:
        number = state.latest_turn_number
        last = [turn for turn in state.turns if turn.number == number]
        question = next((message for turn in last for message in turn.messages if message.role == "user"), None)
        if question is None:
            raise NotFound
        answer = await self._session.answer(number)
        if query.replaces and answer is not None and answer.id != query.replaces:
            if answer.metadata.get("replaces") == query.replaces:
                return answer
            raise NotRegenerable
        return TurnPlan(
            number,
            None,
            question.text,
            again=True,
            keep_previous_on_failure=True,
            replaces=answer.id if answer else None,
        )

    async def _join(self, held: RunningTurn, wanted: Claim) -> Reading | None:
        if held.claim.message_id != wanted.message_id:
            raise TurnInProgress(retry_after=max(1.0, held.lease_left) if not held.stopping else 1.0)
        return await self._follow(held.claim)

    async def _follow(self, claim: Claim) -> Reading | None:
        """Follow a turn from its beginning, which shows that its message is durable. None when it ended before."""
        frames = follow(
            self._registry, claim, poll_seconds=self._settings.tick_seconds, on_death=self._repair_for_reading
        )
        first = await anext(frames, None)
        return None if first is None else Reading(_continued(first, frames))

    async def _repair_for_reading(self) -> None:
        state = await self._session.load()
        await repair_for_reading(self._session, self._registry, state.active_turn_id)

    async def _release(self, claim: Claim) -> None:
        try:
            await self._registry.release(claim)
        except RegistryUnavailable as exc:
            logger.warning("claim not released, its lease will run out", extra={"cause": str(exc)})

    async def _stored_result(self, reading: Reading, query: str | Query) -> RunResult:
        """Wait for a turn that somebody else runs, or that is over, and return what it stored."""
        async for _ in reading.frames():
            pass
        message_id = query.message_id if isinstance(query, Query) else ""
        state = await self._session.load(message_id)
        number = state.earlier.turn_number if state.earlier else state.latest_turn_number
        answer = await self._session.answer(number)
        if answer is None:
            raise NotFound
        return RunResult.from_stored(self._session.session_id, answer)


def _claim_id(query: Query) -> str:
    return query.message_id or f"regenerate:{query.replaces or ''}"


async def _continued(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for frames in rest:
        yield frames


async def _replay(answer: StoredMessage) -> AsyncIterator[bytes]:
    """Stream a stored answer: the same message, without asking the model."""
    replayed: list[events.StreamEvent] = [events.Start(answer.id, answer.metadata)]
    replay_events(list(answer.parts), replayed.append)
    reason = answer.metadata.get("finishReason", "other")
    replayed.append(events.Finish(reason, answer.metadata))
    replayed.append(events.DataSession({**answer.metadata, "messageId": answer.id, "replayed": True}))
    yield b"".join(sse.encode(event) for event in replayed) + sse.DONE
