"""One run of a turn: the journal that it keeps, and what its loop, its steps and its end share.

Once per tick, `Keeper` appends what is new to the registry and reads the turn's signals.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from omniagent.ai.context import RunContext
from omniagent.ai.result import RunResult
from omniagent.errors import RegistryMisconfigured, RegistryUnavailable, TurnLost
from omniagent.messages import StepPart, StopReason, ToolPart, Usage
from omniagent.protocol import sse
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage, SessionState, turns_of
from omniagent.session.summaries import Summarized
from omniagent.tracing import Span, turn_state
from omniagent.turns.journal.readers import Draft, JournalReader
from omniagent.turns.journal.records import Entry, Record, line_of
from omniagent.turns.registry import MAX_CHUNK_BYTES, SHORT_RUN, Chunk, Signals
from omniagent.turns.setup import SessionSetup, TimeLimit, TurnSetup

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 15.0


@dataclass(slots=True, eq=False)
class LiveJournal:
    """Each event is encoded once, when it is added. Readers start at the first line and read at their own pace."""

    lines: list[bytes] = field(default_factory=list)
    _is_closed: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set and cleared at once, for those who wait."""

    def add(self, entry: Entry) -> None:
        """Add an event, or a record that clients do not see.

        A record that cannot be written is dropped: only a successor reads it.
        """
        if isinstance(entry, Record):
            with suppress(TypeError, ValueError):
                line = line_of(entry)
                self.lines += [line] if len(line) <= MAX_CHUNK_BYTES else []
        else:
            self.lines.append(sse.line(entry))  # as `line_of` does, which asks again what each token is
            self._announce()

    def close(self, *, has_end: bool = False) -> None:
        """Let the readers end here. Without the end of the answer, they resume."""
        if not self._is_closed:
            self._is_closed = True
            self.lines += [sse.DONE_LINE] if has_end else []
            self._news.set()

    async def read_frames(self) -> AsyncIterator[bytes]:
        """Yield the stream's bytes from its start. Lines that are ready together are yielded as one piece."""
        reader, position, loop = JournalReader(), 0, asyncio.get_running_loop()
        silent_until = loop.time() + KEEP_ALIVE_SECONDS
        alarm = loop.call_at(silent_until, self._announce)
        try:
            while True:
                frames = b""
                if ready := self.lines[position:]:
                    position = len(self.lines)
                    frames = reader.take(ready)
                elif self._is_closed:
                    return
                elif loop.time() >= silent_until:
                    frames = sse.KEEP_ALIVE
                else:
                    if alarm.when() <= loop.time():  # one timer for many waits: each would cost more than the wait
                        alarm = loop.call_at(silent_until, self._announce)
                    await self._news.wait()
                if frames:
                    yield frames
                    silent_until = loop.time() + KEEP_ALIVE_SECONDS
        finally:
            alarm.cancel()

    def _announce(self) -> None:
        self._news.set()
        self._news.clear()


@dataclass(slots=True, eq=False, kw_only=True)
class Keeper(LiveJournal):
    """The journal of one run, and the task that writes it.

    A tick's exceptions are logged, and the next tick retries. If the registry fails, the turn loses stop and resume and
    starts no tools, but it still ends in order.
    """

    setup: SessionSetup
    turn: LiveTurn
    stop: Callable[[StopReason], None]
    """Called if the turn is stopped, or was taken over by another process."""
    next_chunk: int = 0
    signals: Signals = Signals()
    """What the last tick read."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """When set, everything is appended now, without waiting for the tick."""
    _written: int = field(init=False)
    """How many lines: at first, those of the processes before this one."""
    _written_at: datetime = field(init=False)
    _unconfirmed: Chunk | None = None
    _is_lost: bool = False
    _is_ended: bool = False
    _is_failing: bool = False
    _flushing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _task: "asyncio.Task[None]" = field(init=False)

    def __post_init__(self) -> None:
        self._written, self._written_at = len(self.lines), self.turn.since
        self._task = asyncio.create_task(self._tick_until_ended(), name="keeper")

    async def checkpoint(self) -> None:
        """Append everything: tools are about to run. Raises `TurnLost` and, after a lease, `RegistryUnavailable`."""
        give_up_at = time.monotonic() + self.setup.session.settings.lease_seconds
        while True:
            try:
                await self._flush()
                break
            except RegistryUnavailable as exc:
                self._note(exc)
                if time.monotonic() >= give_up_at:
                    raise
                await asyncio.sleep(min(1.0, self.setup.session.settings.tick_seconds))
        if self._is_lost:
            raise TurnLost("another process has taken over the turn")

    async def finish(self, seconds: float) -> None:
        """Append what is left and stop. Takes at most so many seconds and never raises."""
        self._is_ended = True
        self.wake.set()
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(self._task, return_exceptions=True)
                await self._flush()
        except Exception as exc:  # the turn is over either way
            logger.warning("end of the journal not written", extra={"cause": f"{type(exc).__name__}: {exc}"})

    def abandon(self) -> None:
        """Stop at once. After a lease the turn counts as dead, and another process continues it."""
        self._task.cancel()

    async def is_stopped(self) -> bool:
        """Whether the turn was stopped since the last tick. Asked before it waits: nobody reads the signal then."""
        with suppress(RegistryUnavailable):
            await self._poll()
        return self.signals.stop

    async def _tick_until_ended(self) -> None:
        tick = self.setup.session.settings.tick_seconds
        while not self._is_ended:
            try:
                async with asyncio.timeout(tick):
                    await self.wake.wait()
            except TimeoutError:
                work = [self._flush(), self._poll()]
            else:
                self.wake.clear()
                work = [] if self._is_ended else [self._flush()]
            failures = [each for each in await asyncio.gather(*work, return_exceptions=True) if each is not None]
            if failures:
                self._note(failures[0])
            self._is_failing = bool(failures)

    async def _poll(self) -> None:
        """Read the turn's signals."""
        if self._is_lost:
            return
        self.signals = await self.setup.registry.signals(self.setup.session.key, self.turn.journal)
        if self.signals.stop:
            self.stop("cancelled")

    async def _flush(self) -> None:
        """Append all new lines, or a heartbeat if there were none for a third of a lease.

        If a write's outcome is unknown, it is repeated with identical bytes: a follower may already have read it.
        """
        session = self.setup.session
        lease, tick = session.settings.lease_seconds, session.settings.tick_seconds
        pause = timedelta(seconds=lease / 3 - min(tick, lease / 6))
        async with self._flushing:
            end = len(self.lines)
            while not self._is_lost and (self._written < end or session.now() - self._written_at > pause):
                lines, size = list[bytes](), 0
                for line in self.lines[self._written : end]:
                    size += len(line) + 1
                    if lines and size > MAX_CHUNK_BYTES:
                        break
                    lines.append(line)  # never split: the recorder keeps each small enough
                new = Chunk(self.next_chunk, self.turn.run[:SHORT_RUN], session.now(), b"\n".join(lines))
                self._unconfirmed = chunk = self._unconfirmed or new
                if not await self.setup.registry.append(session.key, self.turn.journal, chunk):
                    self._is_lost = True
                    self.stop("lost")
                    return
                self._unconfirmed = None
                self.next_chunk += 1
                self._written += chunk.lines.count(b"\n") + bool(chunk.lines)
                self._written_at = chunk.at

    def _note(self, failure: BaseException) -> None:
        """Log the first of several failures in a row."""
        if not self._is_failing:
            level = logging.ERROR if isinstance(failure, RegistryMisconfigured) else logging.WARNING
            cause = f"{type(failure).__name__}: {failure}"
            logger.log(level, "turn registry failing: no stop, no resume, no tools", extra={"cause": cause})
        self._is_failing = True


@dataclass(eq=False)
class TurnRun(ABC):
    """One run of a turn, independent of its readers. Its message is durable. Creating it starts it."""

    setup: TurnSetup
    head: SessionHead
    """The session after this run's last change of it."""
    state: SessionState
    """The history that the model is shown."""
    limit: TimeLimit
    span: Span
    question: SessionMessage | None
    """The message that is answered. None: it was deleted while the turn waited."""
    previous: SessionMessage | None = None
    """The existing answer, if a message is answered again."""
    regenerates: bool = False
    """Whether the user wants another answer than `previous`."""
    base: SessionMessage | None = None
    """The answer of a turn that waited, as it goes on."""
    draft: Draft = field(default_factory=Draft)
    """What the journal of a turn that is taken over has."""
    usage: Usage = Usage()
    steps: int = 0
    tool_calls: int = 0
    """Those since the turn last waited, like `tool_errors`."""
    tool_errors: int = 0
    first_token_at: float | None = None
    output: Any = None
    has_moved: bool = False
    """This process has completed a model call or tools."""
    models: list[str] = field(default_factory=list)
    """The models that wrote the answer's steps, in order."""
    stop_reason: StopReason | None = None
    summary: asyncio.Task[Summarized] | None = None
    """The summary beside the answer. It stores itself when it is ready."""
    late_instructions: str = ""
    """What the agent's functions say for this turn."""

    def __post_init__(self) -> None:
        if self.head.turn is None:
            raise ValueError("only a running turn is run")
        base, draft = self.base, self.draft
        self.turn: LiveTurn = self.head.turn
        """The turn, as this run has taken it."""
        self.message_id, self.journal_id = self.turn.id, self.turn.journal
        if base is not None:
            self.usage = base.usage
            self.steps = sum(isinstance(part, StepPart) for part in base.parts)
            self.models = [*(base.metadata.get("models") or filter(None, [base.metadata.get("model")]))]
        if self.turn.attempt:  # other processes have worked on it
            self.usage = sum(draft.calls, self.usage)
            models = [step.model for step in draft.steps if step.model]  # no model of this turn wrote those it keeps
            self.steps += len(models)
            self.models += models
            self.tool_calls = sum(len(step.calls) for step in draft.steps[:-1])
            calls = [part for part in draft.recorder.parts if isinstance(part, ToolPart)]
            self.tool_errors = sum(part.error is not None for part in calls)
            tokens_at = [step.first_token_at for step in draft.steps if step.first_token_at is not None]
            self.first_token_at = time.monotonic() - (time.time() - tokens_at[0]) if tokens_at else None
        self.recorder, next_chunk = draft.recorder, draft.next_chunk
        self.journal = Keeper(draft.lines, setup=self.setup, turn=self.turn, stop=self.stop, next_chunk=next_chunk)
        self.recorder.send = self.journal.add
        self.frames = self.journal.read_frames
        self.text = self.question.text if self.question is not None else ""
        self.past = turns_of([each for each in self.state.messages if each.turn_number < self.turn.number])
        """The turns before it, as far as the model may be shown them."""
        self.context: RunContext | None = None
        self.early_end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the answer need not go on: it was stopped, or is ending."""
        self.concluded: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        self.setup.session.open_turns.add(self)
        self._task = asyncio.create_task(self._live(), name=f"turn {self.message_id}")

    @abstractmethod
    async def _live(self) -> None:
        """Generate the answer and end the turn."""

    def stop(self, reason: StopReason) -> None:
        """End the answer early and keep its text. Does nothing if it is already ending."""
        if not self.early_end.done():
            turn_state("running", "stopping", stop_reason=reason)
            self.stop_reason = reason
            self.early_end.set_result(None)

    def shut_down(self) -> None:
        self.stop("shutdown")
        if self.summary is not None:
            self.summary.cancel()

    async def ended(self) -> None:
        """Wait until all work of the turn has ended."""
        await asyncio.wait([self._task])

    async def result(self) -> RunResult:
        """Wait until the answer is stored and `on_finish` has run. Cancelling the waiter does not cancel the turn."""
        return await asyncio.shield(self.concluded)
