"""One running turn: a task of its own. The response is only one of its readers."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from omniagent.ai.agent import Agent
from omniagent.ai.callbacks import call_back
from omniagent.ai.context import RunContext
from omniagent.ai.prompts import summary_message
from omniagent.ai.providers.llm_provider import LLMProvider
from omniagent.errors import ModelError, OmniAgentError, StorageError, StorageUnavailable, TurnLost
from omniagent.messages import ChatMessage, FinishReason, Part, Status, TextPart, Usage
from omniagent.protocol import events
from omniagent.session.manager import NewSummary, SessionManager, SessionState, StoredMessage, TurnRecord
from omniagent.session.summarizer import summarize_turns
from omniagent.tracing import SpanKind, bind_context, trace_operation, track_state_change
from omniagent.turns.event_log import EventLog
from omniagent.turns.keeper import Keeper
from omniagent.turns.lease import Claim, Renewal, TurnRegistry
from omniagent.turns.recorder import Recorder
from omniagent.turns.tool_loop import ToolLoop

logger = logging.getLogger("omniagent.turn")

StopReason = Literal["cancelled", "deadline", "lost"]
STORE_SECONDS_WITHOUT_DEADLINE = 30.0
SECONDS_TO_TELL = 1.0
"""Kept at the very end to tell the client that its answer could not be stored."""
SUMMARY_GRACE_SECONDS = 10.0
"""How long a finished answer waits for the summary that is made beside it."""


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """What a turn is to do, decided before it starts."""

    number: int
    message_id: str | None
    """The user's message; None when a regeneration does not name it."""
    text: str
    again: bool = False
    """The turn exists already and is answered once more."""
    keep_previous_on_failure: bool = False
    replaces: str | None = None
    """The id of the answer that a regeneration replaces."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """A turn that has ended."""

    session_id: str
    turn_number: int
    message_id: str
    status: Status
    finish_reason: FinishReason
    parts: Sequence[Part]
    usage: Usage
    metadata: dict[str, Any]
    tool_calls: int = 0
    tool_errors: int = 0
    summary_made: bool = False
    summary_missed: bool = False
    """A summary was due and was not made: one has to be regenerated."""
    stored: bool = True
    error: OmniAgentError | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @classmethod
    def from_stored(cls, session_id: str, answer: StoredMessage) -> "RunResult":
        """The result of a turn that ended earlier."""
        usage = answer.metadata.get("usage", {})
        return cls(
            session_id=session_id,
            turn_number=answer.turn_number,
            message_id=answer.id,
            status=answer.status,
            finish_reason=answer.metadata.get("finishReason", "other"),
            parts=answer.parts,
            usage=Usage(
                usage.get("inputTokens", 0),
                usage.get("outputTokens", 0),
                usage.get("cachedInputTokens", 0),
                usage.get("reasoningTokens", 0),
            ),
            metadata=answer.metadata,
        )


class Turn:
    """Runs from `start()` to its end whatever its readers do. `stop()` ends it early, with what it has."""

    def __init__(
        self,
        *,
        plan: TurnPlan,
        agent: Agent,
        provider: LLMProvider,
        session: SessionManager,
        state: SessionState,
        registry: TurnRegistry,
        claim: Claim,
        running_at_most: int | None = None,
        deadline: float | None,
        on_end: Callable[[RunResult], Awaitable[None]] | None,
    ) -> None:
        self.plan = plan
        self.id = claim.turn_id
        self.session_id = session.session_id
        self.log = EventLog()
        self._agent = agent
        self._provider = provider
        self._session = session
        self._settings = session.settings
        self._state = state
        self._running_at_most = running_at_most
        self._deadline = deadline
        self._on_end = on_end
        self._recorder = Recorder(self.log.push)
        self._context: RunContext[Any] = RunContext(
            user=session.user,
            category=session.category,
            session_id=session.session_id,
            turn_id=claim.turn_id,
            turn_number=plan.number,
            query=plan.text,
        )
        self._loop = ToolLoop(
            agent,
            provider,
            self._recorder,
            self._context,
            self._settings,
            time_left=self.time_left,
        )
        self._keeper = Keeper(
            registry, claim, self.log, tick_seconds=self._settings.tick_seconds, on_renewal=self._on_renewal
        )
        self._started_at = time.monotonic()
        self._stop_at = self._started_at + self._seconds_to_answer()
        self._stop_reason: StopReason | None = None
        self._work: asyncio.Task[FinishReason] | None = None
        self._summary: asyncio.Task[NewSummary] | None = None
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[RunResult] | None = None

    async def start(self) -> None:
        """Begin. Returns when the user's message is durable: only then may a reader be told that all is well."""
        self._task = asyncio.create_task(self._run())
        first: list[asyncio.Future[Any]] = [self._task, self._begun]
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if self._begun.done():
                # What has begun is ended in order: it holds the session and may be writing already.
                self.stop("cancelled")
                await asyncio.wait([self._task])
            else:
                await _cancelled(self._task)
            raise
        if self._task.done():
            await self._task

    def stop(self, reason: StopReason) -> None:
        """End the turn with what it has. Nothing happens when it is already ending."""
        if self._work is not None and not self._work.done() and self._stop_reason is None:
            track_state_change("turn", "running", "stopping", reason=reason)
            self._stop_reason = reason
            self._work.cancel()

    async def result(self) -> RunResult:
        """Wait for the end. Cancelling the waiter does not cancel the turn."""
        if self._task is None:
            raise RuntimeError("the turn has not been started")
        return await asyncio.shield(self._task)

    def frames(self) -> AsyncIterator[bytes]:
        """The stream's bytes from the first event on."""
        return self.log.read_frames()

    def events(self) -> AsyncIterator[events.StreamEvent]:
        return self.log.read_events()

    def time_left(self) -> float:
        """Seconds until the turn has to stop itself."""
        return self._stop_at - time.monotonic()

    async def _run(self) -> RunResult:
        with (
            bind_context(session_id=self.session_id, user_id=self._session.user_id, turn=self.plan.number),
            trace_operation("turn", kind=SpanKind.AGENT, attributes={"agent.name": self._agent.name}) as span,
        ):
            span.set_content(input=self.plan.text)
            await self._begin()
            result = await self._finish()
            span.set_content(output=result.text)
            span.set("omniagent.turn_status", result.status)
            await call_back(self._agent.callbacks.on_finish, self._context, result)
            await call_back(self._on_end, result)
            return result

    async def _begin(self) -> None:
        """Store the user's message while the model is already being asked."""
        self._work = asyncio.create_task(self._answer())
        self._summary = self._start_summary()
        try:
            await self._take_session()
        except BaseException:
            await _cancelled(self._work, self._summary)
            raise
        self.log.push_first(events.Start(self.id, {"sessionId": self.session_id, "turnNumber": self.plan.number}))
        self._keeper.start()
        self._begun.set_result(None)

    async def _take_session(self) -> None:
        if self.plan.again:
            await self._session.restart_turn(
                turn_id=self.id, turn_number=self.plan.number, running_at_most=self._running_at_most
            )
        else:
            await self._session.begin_turn(
                turn_id=self.id,
                turn_number=self.plan.number,
                message_id=self.plan.message_id or self.id,
                parts=[TextPart(text=self.plan.text)],
                running_at_most=self._running_at_most,
            )

    async def _finish(self) -> RunResult:
        timer = self._set_deadline_timer()
        try:
            return await self._conclude(*await self._outcome())
        finally:
            if timer is not None:
                timer.cancel()
            # The session is free before the readers see the end: whoever saw it may ask at once again.
            self.log.end()
            await self._keeper.finish()
            self.log.close()

    async def _answer(self) -> FinishReason:
        self._context = self._loop.context = replace(self._context, deps=await self._agent.open_deps())
        await call_back(self._agent.callbacks.on_start, self._context)
        instructions = await self._agent.instructions_for(self._context)
        summary = self._state.summary.content if self._state.summary else None
        history = self._session.visible_messages(self._state, self.plan.number)
        before = [summary_message(summary)] if summary else []
        return await self._loop.run(instructions, [*before, *history, ChatMessage.user(self.plan.text)])

    async def _outcome(self) -> tuple[Status, FinishReason, OmniAgentError | None]:
        """Wait for the answer and say how it ended: exactly one of complete, cancelled, failed."""
        if self._work is None:
            raise RuntimeError("the turn has not been started")
        try:
            return "complete", await self._work, None
        except asyncio.CancelledError:
            return "cancelled", "other", None
        except ModelError as exc:
            logger.warning("turn failed", extra={"code": exc.code, "cause": str(exc)})
            return "failed", "error", exc
        except Exception as exc:
            # Instructions and tools are a team's code: the turn still ends in order, the log has the cause.
            logger.exception("turn failed")
            error = exc if isinstance(exc, OmniAgentError) else OmniAgentError(type(exc).__name__)
            return "failed", "error", error

    async def _conclude(self, status: Status, reason: FinishReason, error: OmniAgentError | None) -> RunResult:
        if status == "failed":
            self._recorder.close_parts()
            self._recorder.ensure_step()
            self._recorder.text(self._agent.fallback)
        self._recorder.close()
        if self._stop_reason in ("cancelled", "deadline"):
            self.log.push(events.Abort(self._stop_reason))
        summary = await self._summary_result(status)
        metadata = self._metadata(status, reason)
        record = TurnRecord(
            turn_id=self.id,
            turn_number=self.plan.number,
            parts=self._recorder.parts,
            status=status,
            usage=self._loop.progress.usage,
            metadata=metadata,
            previous_summary_id=self._state.summary.id if self._state.summary else None,
            summary=summary,
            keep_previous=status == "failed" and self.plan.keep_previous_on_failure,
        )
        not_stored = await self._store(record)
        self.log.hold()
        if not_stored is None:
            self._announce(record, reason, error)
        else:
            self.log.push(events.Error(not_stored.public))
        return RunResult(
            session_id=self.session_id,
            turn_number=self.plan.number,
            message_id=self.id,
            status=status,
            finish_reason=reason,
            parts=record.parts,
            usage=record.usage,
            metadata=metadata,
            tool_calls=self._loop.progress.tool_calls,
            tool_errors=self._loop.progress.tool_errors,
            summary_made=summary is not None,
            summary_missed=summary is None and (self._summary is not None or self._has_gap()),
            stored=not_stored is None,
            error=not_stored or error,
        )

    def _announce(self, record: TurnRecord, reason: FinishReason, error: OmniAgentError | None) -> None:
        self.log.push(events.Finish(reason, record.metadata))
        self.log.push(
            events.DataSession(
                {
                    "sessionId": self.session_id,
                    "turnNumber": self.plan.number,
                    "messageId": self.id,
                    "userMessageId": self.plan.message_id,
                    "status": record.status,
                    "name": self._state.name,
                    "usage": record.usage.to_dict(),
                    "summarizedTo": record.summary.end_turn_number if record.summary else self._state.summarized_to,
                }
            )
        )
        if error is not None:
            self.log.push(events.Error(error.public))

    async def _store(self, record: TurnRecord) -> StorageError | None:
        """Write the result, again and again while there is time. Returns why it could not be written."""
        if self._stop_reason == "lost":
            return TurnLost("the lease was lost")
        give_up = self._give_up_at()
        pause = 0.1
        while True:
            try:
                async with asyncio.timeout(give_up - time.monotonic()):
                    await self._session.finish_turn(record)
            except TimeoutError:
                logger.exception("answer not stored in time; the chunk log keeps it for the repair")
                return StorageUnavailable("no time left")
            except StorageUnavailable as exc:
                if time.monotonic() + pause >= give_up:
                    logger.exception("answer not stored; the chunk log keeps it for the repair")
                    return exc
                logger.warning("answer not stored yet", extra={"cause": str(exc)})
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
            except StorageError as exc:
                logger.exception("answer not stored")
                return exc
            else:
                return None

    def _start_summary(self) -> "asyncio.Task[NewSummary] | None":
        turns = self._session.turns_to_summarize(self._state, self.plan.number)
        if not turns:
            return None
        return asyncio.create_task(summarize_turns(self._provider, self._state.summary, turns, self._settings))

    async def _summary_result(self, status: Status) -> NewSummary | None:
        """Take the summary if it is there or comes soon. A failed summary never fails the turn."""
        if self._summary is None:
            return None
        grace = min(SUMMARY_GRACE_SECONDS, max(0.0, self.time_left())) if status == "complete" else 0.0
        await asyncio.wait([self._summary], timeout=grace)
        if not self._summary.done():
            await _cancelled(self._summary)
            logger.info("summary cut off")
            return None
        if (cause := self._summary.exception()) is not None:
            logger.warning("summary failed", extra={"cause": f"{type(cause).__name__}: {cause}"})
            return None
        return self._summary.result()

    def _has_gap(self) -> bool:
        return self._session.summary_has_gap(self._state)

    def _metadata(self, status: Status, reason: FinishReason) -> dict[str, Any]:
        progress = self._loop.progress
        metadata: dict[str, Any] = {
            "sessionId": self.session_id,
            "turnNumber": self.plan.number,
            "status": status,
            "finishReason": reason,
            "model": self._provider.model_for(self._agent.overrides),
            "steps": progress.steps,
            "usage": progress.usage.to_dict(),
            "durationMs": _milliseconds(time.monotonic() - self._started_at),
        }
        if progress.first_token_at is not None:
            metadata["firstTokenMs"] = _milliseconds(progress.first_token_at - self._started_at)
        if self.plan.replaces is not None:
            metadata["replaces"] = self.plan.replaces
        return metadata

    def _seconds_to_answer(self) -> float:
        """Some of the time is kept for storing; never more than a quarter, however short the whole is."""
        if self._deadline is None:
            return float("inf")
        whole = self._deadline - self._started_at
        return whole - min(self._settings.deadline_margin_seconds, whole / 4)

    def _give_up_at(self) -> float:
        """When it is too late to store: a little time is left to say so, but storing has the larger share of it."""
        if self._deadline is None:
            return time.monotonic() + STORE_SECONDS_WITHOUT_DEADLINE
        return self._deadline - min(SECONDS_TO_TELL, (self._deadline - self._stop_at) / 4)

    def _set_deadline_timer(self) -> asyncio.TimerHandle | None:
        if self._deadline is None:
            return None
        return asyncio.get_running_loop().call_later(max(0.0, self.time_left()), self.stop, "deadline")

    def _on_renewal(self, renewal: Renewal) -> None:
        self.stop("cancelled" if renewal is Renewal.STOPPING else "lost")


async def _cancelled(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks and wait until they are gone; how they ended does not matter any more."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
