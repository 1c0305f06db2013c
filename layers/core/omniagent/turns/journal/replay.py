"""Streams a stored answer, or the rest of one: the events that would have streamed its parts."""

import json
import math
from collections.abc import AsyncIterator, Callable, Sequence

from omniagent.ai.result import RunResult
from omniagent.errors import ModelError
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
)
from omniagent.protocol import events, sse
from omniagent.session.live import SessionMessage
from omniagent.turns.journal.fold import replayed
from omniagent.turns.journal.recorder import AnswerRecorder
from omniagent.turns.journal.records import Entry, StepEnded


class ReplayedAnswer:
    """The stream of a stored answer: the same message, without a model call.

    `rest` are the frames between its start and its end, for a reader that has seen a part of it.
    """

    def __init__(self, session_id: str, answer: SessionMessage, rest: bytes | None = None) -> None:
        self.message_id = answer.id
        self.journal_id = ""
        self._session_id = session_id
        self._answer = answer
        self._rest = rest

    async def frames(self) -> AsyncIterator[bytes]:
        yield replay_of(self._answer, self._rest)

    async def result(self) -> RunResult:
        return RunResult.of(self._session_id, self._answer)

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
    recorder.attach(sent.append)
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
        emit_part(recorder, part)
        if isinstance(part, ToolPart) and not part.done:
            recorder.tool_decided(part.call_id, part.request)  # other calls of its step are still open
    recorder.close(waiting=True)


def missing_frames(sent: Sequence[bytes], answer: SessionMessage, base: Sequence[Part] = ()) -> bytes:
    """Return the frames of a stored answer that a reader of the lines `sent` is missing.

    The sent parts are a prefix of the stored ones; only the last of them can be incomplete.
    """
    recorder = replayed(sent, base)
    known = [part for part in recorder.parts if _is_streamed(part)]
    shown = [part for part in answer.parts if _is_streamed(part)]

    def complete(recorder: AnswerRecorder) -> None:
        for index, (sent_part, part) in enumerate(zip(known, shown, strict=False)):
            _complete_part(recorder, sent_part, part, is_last=index == len(known) - 1)
        recorder.end_shown_block()
        for part in shown[len(known) :]:
            emit_part(recorder, part)
        recorder.close(waiting=answer.status == "waiting")

    return frames_of(recorder, complete) + end_of(answer)


def interrupted_frames(sent: Sequence[bytes], base: Sequence[Part] = ()) -> bytes:
    """Return the frames that end a stream of `sent` whose answer cannot be found."""
    ending = sse.encode(events.Abort("interrupted"), events.Finish("other", {"status": "interrupted"}))
    return frames_of(replayed(sent, base), AnswerRecorder.close) + ending + sse.DONE


def _is_streamed(part: Part) -> bool:
    """Whether clients see a part. Reasoning without text is stored for the provider."""
    return not (isinstance(part, ReasoningPart) and not part.text)


def _complete_part(recorder: AnswerRecorder, known: Part, part: Part, *, is_last: bool) -> None:
    match known, part:
        case TextPart(), TextPart() if is_last and len(part.text) > len(known.text):
            recorder.text(part.text[len(known.text) :])
        case ReasoningPart(), ReasoningPart() if is_last and len(part.text) > len(known.text):
            recorder.reasoning(part.text[len(known.text) :])
        case ToolPart(), ToolPart() if not known.done:
            _emit_call(recorder, part, known)


def emit_part(recorder: AnswerRecorder, part: Part) -> None:
    """Record a part as if it were new."""
    match part:
        case StepPart():
            recorder.start_step()
        case TextPart():
            recorder.text(part.text)
            recorder.end_block()
        case ReasoningPart():
            if part.text:
                recorder.reasoning(part.text)
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
        recorder.tool_input_error(part.call_id, part.input, error=error, public=public)
        return
    if known is None or known.input is None:
        recorder.tool_delta(part.call_id, json.dumps(part.input, ensure_ascii=False))
        recorder.tool_input(part.call_id, part.input)
    if part.request is not None and (known is None or known.request is None):
        recorder.tool_request(part.call_id, part.request)
    if part.done:
        emit_result(recorder, part)


def emit_result(recorder: AnswerRecorder, part: ToolPart) -> None:
    """Emit the decision about a call, then its result. Its input was already emitted."""
    recorder.tool_decided(part.call_id, part.request)
    recorder.tool_result(part)


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
                    recorder.reasoning(part.text)
                recorder.seal_reasoning(part.provider_data)
            else:
                emit_part(recorder, part)
        calls = [part for part in step if isinstance(part, ToolPart)]
        arguments = [(part.call_id, part.name, json.dumps(part.input, ensure_ascii=False)) for part in calls]
        recorder.record(StepEnded("tool-calls", arguments))
        recorder.finish_step()
