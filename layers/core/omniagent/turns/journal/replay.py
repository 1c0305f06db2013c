"""Streams a stored answer, or the rest of one, and reduces one that cannot be stored. Pure functions."""

import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omniagent.ai.result import RunResult
from omniagent.errors import AnswerTooLong, ModelError
from omniagent.messages import (
    DataPart,
    Part,
    ReasoningPart,
    SourcePart,
    SteeringPart,
    StepPart,
    StopReason,
    TextPart,
    ToolPart,
    close_open_calls,
)
from omniagent.protocol import events, sse
from omniagent.session.live import SessionMessage
from omniagent.turns.journal.readers import replayed
from omniagent.turns.journal.recorder import AnswerRecorder
from omniagent.turns.journal.records import Entry, StepEnded

REDUCED_CHARS = 100_000
"""Maximum text kept of an answer that the store rejects."""
REDUCED_CALL_CHARS = 1_000
"""The same for the arguments and the result of each of its tool calls."""


@dataclass(frozen=True, slots=True)
class ReplayedAnswer:
    """The stream of a stored answer: the same message, without a model call.

    `rest` are the frames between its start and its end, for a reader that has seen a part of it.
    """

    session_id: str
    answer: SessionMessage
    rest: bytes | None = None
    journal_id: str = ""

    @property
    def message_id(self) -> str:
        return self.answer.id

    async def frames(self) -> AsyncIterator[bytes]:
        yield replay_of(self.answer, self.rest)

    async def result(self) -> RunResult:
        return RunResult.of(self.session_id, self.answer)

    async def ended(self) -> None:
        """Nothing is running."""

    def stop(self, reason: StopReason) -> None:
        """Nothing is running."""


def replay_of(answer: SessionMessage, rest: bytes | None = None) -> bytes:
    """Return the frames of a stored answer."""
    if rest is None:
        rest = frames_of(AnswerRecorder(max_chars=math.inf), lambda recorder: emit_parts(recorder, answer.parts))
    return sse.encode(start_of(answer)) + rest + end_of(answer)


def frames_of(recorder: AnswerRecorder, record: Callable[[AnswerRecorder], None]) -> bytes:
    """Return the frames of what is recorded."""
    sent: list[Entry] = []
    recorder.send = sent.append
    record(recorder)
    return sse.encode(*(entry for entry in sent if isinstance(entry, events.StreamEvent)))


def start_of(answer: SessionMessage) -> events.Start:
    return events.Start(answer.id, answer.ui_metadata)


def end_of(answer: SessionMessage) -> bytes:
    """Return the frames that end the stream of a stored answer."""
    metadata = dict(answer.metadata)
    ending: list[events.StreamEvent] = []
    if answer.status in ("cancelled", "interrupted"):
        ending.append(events.Abort(metadata.get("stopReason", answer.status)))
    ending.append(events.Finish(metadata.get("finishReason", "other"), metadata))
    ending.append(events.DataSession({**metadata, "messageId": answer.id, "replayed": True}))
    if answer.status == "failed":
        ending.append(events.Error(metadata.get("errorText", ModelError.public)))
    return sse.encode(*ending) + sse.DONE


def emit_parts(recorder: AnswerRecorder, parts: Sequence[Part]) -> None:
    """Record a stored answer as it was streamed. Open requests stay open.

    One that was cut at its maximum size is slightly larger, because of its fallback text.
    """
    for part in parts:
        emit(recorder, part)
        if isinstance(part, ToolPart) and not part.done:
            recorder.tool_replied(part)  # other calls of its step are still open
    recorder.close(waiting=True)


def missing_frames(sent: Sequence[bytes], answer: SessionMessage | None, base: Sequence[Part] = ()) -> bytes:
    """Return the frames of a stored answer that a reader of the lines `sent` is missing. None: it cannot be found.

    The sent parts are a prefix of the stored ones; only the last of them can be incomplete.
    """
    recorder = replayed(sent, base)
    if answer is None:
        ending = sse.encode(events.Abort("interrupted"), events.Finish("other", {"status": "interrupted"}))
        return frames_of(recorder, AnswerRecorder.close) + ending + sse.DONE
    is_waiting = answer.status == "waiting"
    return frames_of(recorder, lambda recorder: _complete(recorder, answer.parts, waiting=is_waiting)) + end_of(answer)


def _complete(recorder: AnswerRecorder, parts: Sequence[Part], *, waiting: bool = True) -> None:
    """Record what is missing of stored parts. Of those recorded, calls may be open, and the last one unfinished."""
    known = [part for part in recorder.parts if _is_streamed(part)]
    shown = [part for part in parts if _is_streamed(part)]
    for sent, part in zip(known, shown, strict=False):
        if isinstance(sent, ToolPart) and isinstance(part, ToolPart) and not sent.done:
            _emit_call(recorder, part, sent)
    if known and len(shown) >= len(known):
        last, full = known[-1], shown[len(known) - 1]
        if isinstance(last, TextPart | ReasoningPart) and type(full) is type(last) and len(full.text) > len(last.text):
            recorder.text(full.text[len(last.text) :], type(last))
    recorder.end_block(if_shown=True)
    emit(recorder, *shown[len(known) :])
    recorder.close_parts(waiting=waiting)
    recorder.finish_step()


def _is_streamed(part: Part) -> bool:
    """Whether clients see a part. Reasoning without text is stored for the provider."""
    return not (isinstance(part, ReasoningPart) and not part.text)


def emit(recorder: AnswerRecorder, *parts: Part) -> None:
    """Record parts as if they were new."""
    for part in parts:
        match part:
            case StepPart():
                recorder.start_step()
            case TextPart() | ReasoningPart() if part.text:
                recorder.text(part.text, type(part))
                recorder.end_block()
            case ToolPart():
                recorder.tool_start(part.call_id, part.name)
                _emit_call(recorder, part)
            case DataPart():
                recorder.data(part)
            case SourcePart():
                recorder.source(part)
            case SteeringPart():
                recorder.steering(part.message_id, part.text)


def _emit_call(recorder: AnswerRecorder, part: ToolPart, known: ToolPart | None = None) -> None:
    """Emit what a reader has not seen of a call."""
    if isinstance(part.input, str):
        if part.input:
            recorder.tool_delta(part.call_id, part.input)
        error, public = part.error or "", part.public_error or part.error or ""
        recorder.tool_error(part.call_id, error=error, public=public, raw=part.input)
        return
    if known is None or known.input is None:
        recorder.tool_delta(part.call_id, json.dumps(part.input, ensure_ascii=False))
        recorder.tool_input(part.call_id, part.input)
    if part.request is not None and (known is None or known.request is None):
        recorder.tool_request(part.call_id, part.request)
    if part.done:
        recorder.tool_replied(part)


def go_on_with(recorder: AnswerRecorder, answer: SessionMessage) -> None:
    """Begin with an answer that waited, and emit the replies: their results are new to every reader."""
    recorder.restore(base_of(answer.parts))
    for part in _last_requests(answer.parts):
        recorder.tool_replied(part)


def base_of(parts: Sequence[Part]) -> list[Part]:
    """Return the parts that an answer had shown before it goes on: without the results of its last step's requests."""
    replied = _last_requests(parts)
    results = {"done": False, "output": None, "error": None, "public_error": None}
    return [part.model_copy(update=results) if part in replied else part for part in parts]


def frames_before(answer: SessionMessage) -> bytes:
    """Return the frames of what an answer had shown before it goes on, for a reader that has seen nothing."""
    return frames_of(AnswerRecorder(max_chars=math.inf), lambda recorder: _complete(recorder, base_of(answer.parts)))


def frames_after(answer: SessionMessage, call_ids: frozenset[str], *, goes_on: bool = False) -> bytes:
    """Return the frames of an answer after the step of these calls, beginning with their results.

    The client that replies has everything before. If the turn `goes_on`, its journal has the results of the last step.
    An answer that ended with these results gets an empty step: a client that sends when all calls of the last step are
    settled would send forever.
    """
    parts = base_of(answer.parts) if goes_on else list(answer.parts)
    replied = [i for i, part in enumerate(parts) if isinstance(part, ToolPart) and part.call_id in call_ids]
    later_steps = (i for i, part in enumerate(parts) if replied and i > replied[-1] and isinstance(part, StepPart))
    end = next(later_steps, len(parts))
    recorder = AnswerRecorder(max_chars=math.inf)
    _complete(recorder, base_of(parts[:end]))

    def record(recorder: AnswerRecorder) -> None:
        _complete(recorder, parts)
        if not goes_on and answer.status != "waiting" and not any(isinstance(part, StepPart) for part in parts[end:]):
            recorder.start_step()
            recorder.finish_step()

    return frames_of(recorder, record)


def _last_requests(parts: Sequence[Part]) -> list[ToolPart]:
    """Return the calls of the last step that have a request."""
    start = max((index for index, part in enumerate(parts) if isinstance(part, StepPart)), default=0)
    return [part for part in parts[start:] if isinstance(part, ToolPart) and part.request is not None]


def kept_steps(answer: SessionMessage, *, regenerates: bool = False) -> Sequence[Part]:
    """Return the steps that are not repeated when a turn that was closed early is answered again: those up to the last
    one with a call that may have taken effect, without the text after its calls.

    Empty for the regeneration of a stopped answer: its user wants a different one.
    """
    if answer.status in ("complete", "waiting") or (regenerates and answer.status == "cancelled"):
        return ()
    parts = answer.parts
    ran = [index for index, part in enumerate(parts) if isinstance(part, ToolPart) and part.may_have_run]
    if not ran:
        return ()
    later = (index for index, part in enumerate(parts) if index > ran[-1] and isinstance(part, StepPart))
    step = parts[: next(later, len(parts))]
    last_call = max(index for index, part in enumerate(step) if isinstance(part, ToolPart))
    return [*step[: last_call + 1], *(part for part in step[last_call + 1 :] if isinstance(part, DataPart))]


def keep_steps(recorder: AnswerRecorder, parts: Sequence[Part]) -> None:
    """Record steps that are not repeated, with the records that a successor needs."""
    steps: list[list[Part]] = []
    for part in parts:
        if isinstance(part, StepPart) or not steps:
            steps.append([])
        steps[-1].append(part)
    for step in steps:
        for part in step:
            if isinstance(part, ReasoningPart):
                if part.text:
                    recorder.text(part.text, ReasoningPart)
                recorder.seal_reasoning(part.provider_data)
            else:
                emit(recorder, part)
        calls = [part for part in step if isinstance(part, ToolPart)]
        arguments = [(part.call_id, part.name, json.dumps(part.input, ensure_ascii=False)) for part in calls]
        recorder.record(StepEnded("tool-calls", arguments))
        recorder.finish_step()


def reduced(answer: SessionMessage) -> SessionMessage:
    """Return an answer that the store rejects as a failed one that every store accepts: its text, cut, and its calls.

    The calls are kept, so that none is run again when the message is retried.
    """
    kept: list[Part] = []
    left = REDUCED_CHARS
    for part in answer.parts:
        if isinstance(part, TextPart) and left:
            kept.append(TextPart(text=part.text[:left]))
            left -= min(left, len(part.text))
        elif isinstance(part, ToolPart):
            arguments = _cut(part.input)
            if arguments is not part.input and not isinstance(part.input, str):
                arguments = {"cut": arguments}  # plain text would mean an incomplete call
            values = {name: _cut(getattr(part, name)) for name in ("output", "error", "public_error")}
            kept.append(part.model_copy(update={**values, "input": arguments}))
        elif isinstance(part, StepPart | SteeringPart):
            kept.append(part)
    error = AnswerTooLong()
    failed = {"status": "failed", "finishReason": "error", "errorCode": error.code, "errorText": error.public}
    return replace(answer, parts=close_open_calls(kept), status="failed", metadata={**answer.metadata, **failed})


def _cut(value: Any) -> Any:
    """Return a short value unchanged, otherwise the beginning of its JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= REDUCED_CALL_CHARS else text[:REDUCED_CALL_CHARS]
