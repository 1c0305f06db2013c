"""`DeadTurn`: the state of a turn whose process died, read from its chunk log, for a takeover."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from omniagent.ai.providers.llm_provider import ModelToolCall
from omniagent.messages import FinishReason, Usage
from omniagent.protocol import sse
from omniagent.session.manager import SessionMessage, SessionState
from omniagent.turns.lease import REGENERATE
from omniagent.turns.query import Query
from omniagent.turns.recorder import AnswerRecorder, Emit, Note
from omniagent.turns.replay import (
    APPROVED,
    BEGUN,
    CONTINUED,
    HANDED_OVER,
    TAKEN_OVER,
    calls_of,
    kept_frames,
    kept_steps,
    record_frames,
)
from omniagent.turns.setup import TurnPlan


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A completed model call with the tools that it requested. It is not repeated."""

    reason: FinishReason
    calls: Sequence[ModelToolCall] = ()


@dataclass(frozen=True, slots=True)
class DeadTurn:
    """A turn as its log shows it, without the unfinished step, which is generated again."""

    frames: Sequence[bytes]
    """The frames that are kept."""
    steps: Sequence[FinishedStep]
    calls: Sequence[Usage]
    """The cost of each model call that ended."""
    next_chunk: int
    takeovers: int
    """The number of takeovers that the log records."""
    hand_overs: int
    """How many earlier processes ran out of time and handed the turn over, instead of dying."""
    is_handed_over: bool
    """The last process handed the turn over, instead of dying."""
    has_open_calls: bool
    """It handed over before it started the tools of its last step."""
    begun_at: float | None
    """The wall clock at which the first process began; None if it logged nothing."""
    claim_id: str | None
    """The message id of its claim."""
    first_token_at: float | None
    """The wall clock at its first token."""
    was_asked: bool
    """A step has begun, so `on_start` was already called."""
    is_readable: bool
    """Whether the log is complete and the turn can be continued."""
    has_approved: bool
    """The approved calls may have run."""
    before: SessionMessage | None = None
    """The waiting answer that it continues, as it was stored when the run began."""

    @classmethod
    def read(cls, chunks: Sequence[tuple[int, bytes]]) -> "DeadTurn":
        raw = b"".join(frames for _, frames in chunks)
        kept = kept_frames([*sse.split(raw), sse.encode_note({TAKEN_OVER: 0})])[:-1]
        notes = list(sse.decode_notes(raw))
        begun: dict[str, Any] = next((note for note in notes if BEGUN in note), {})
        marks = [note for note in notes if TAKEN_OVER in note or HANDED_OVER in note]
        last_mark = marks[-1] if marks else {}
        first_token = next((note["first"] for note in notes if isinstance(note.get("first"), float)), None)
        return cls(
            frames=kept,
            steps=_steps_of(b"".join(kept)),
            calls=calls_of(raw),
            next_chunk=len(chunks),
            takeovers=sum(TAKEN_OVER in note for note in marks),
            hand_overs=sum(HANDED_OVER in note for note in marks),
            is_handed_over=HANDED_OVER in last_mark,
            has_open_calls=last_mark.get("calls") == "open",
            begun_at=begun.get(BEGUN),
            claim_id=begun.get("message"),
            first_token_at=first_token,
            was_asked=sse.START_STEP in raw,
            has_approved=any(APPROVED in note for note in notes),
            is_readable=[number for number, _ in chunks] == list(range(len(chunks))),
        )

    def recorder(self, emit: Emit, note: Note) -> AnswerRecorder:
        """Return a recorder with the answer so far. Later additions are emitted."""
        frames = b"".join(self.frames)
        if self.before is None or not self.has_started:
            return record_frames(frames, emit, note)
        from omniagent.turns.waiting import recorded_again  # needed only for a turn that waited

        return recorded_again(self.before, frames, emit, note)

    @property
    def has_started(self) -> bool:
        """Whether the log has the start of the stream; for a continued answer, all that was shown before it waited."""
        return _has_events(self.frames) and (self.before is None or CONTINUED in self.frames)

    @property
    def seconds(self) -> float:
        """How long ago it began."""
        return 0.0 if self.begun_at is None else max(0.0, time.time() - self.begun_at)

    @property
    def now(self) -> datetime:
        """When it began, for the run context."""
        return datetime.now(UTC) if self.begun_at is None else datetime.fromtimestamp(self.begun_at, UTC)

    def answers(self, query: Query, state: SessionState) -> bool:
        """Whether this is the turn of the given message, which is being retried."""
        if self.claim_id is not None:
            return self.claim_id == query.claim_id
        asked = state.question.id if state.question is not None else None
        return not query.regenerate and asked == query.message_id and state.answer is None

    def plan(self, state: SessionState, claim_id: str) -> TurnPlan | None:
        """Return the turn's plan, from the session, which has not changed since the turn began."""
        question, answer, before = state.question, state.answer, self.before
        if before is not None:
            message_id, text = (question.id, question.text) if question is not None else ("", "")
            return TurnPlan(before.turn_number, message_id, text, again=True, waited=before)
        if question is None:
            return None
        # Once started, the log already contains the kept steps.
        kept = () if self.has_started else kept_steps(answer, regenerates=claim_id.startswith(REGENERATE))
        return TurnPlan(
            question.turn_number, question.id, question.text, again=answer is not None, previous=answer, kept=kept
        )


def _has_events(frames: Sequence[bytes]) -> bool:
    return any(frame.startswith(b"data: ") for frame in frames)


def _steps_of(frames: bytes) -> list[FinishedStep]:
    steps: list[FinishedStep] = []
    calls: list[ModelToolCall] = []
    for note in sse.decode_notes(frames):
        match note:
            case {"call": [str(call_id), str(name), str(arguments)]}:
                calls.append(ModelToolCall(call_id, name, arguments))
            case {"step": str(reason)}:
                steps.append(FinishedStep(reason, calls))  # type: ignore[arg-type]  # as it was written
                calls = []
    return steps
