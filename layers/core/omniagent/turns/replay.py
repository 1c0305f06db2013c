"""An answer told again: recorded from the frames of its chunk log, or streamed from its stored parts."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from omniagent.ai.result import RunResult
from omniagent.errors import AnswerTooLong, ModelError
from omniagent.messages import (
    DENIED_ERROR,
    CallRequest,
    DataPart,
    Part,
    ReasoningPart,
    SteeringPart,
    StepPart,
    StopReason,
    TextPart,
    ToolPart,
    Usage,
)
from omniagent.protocol import events, sse
from omniagent.protocol.plain_json import plain
from omniagent.session import window
from omniagent.session.manager import SessionMessage
from omniagent.turns.recorder import AnswerRecorder, Emit


class ReplayedAnswer:
    """The stream of an answer that is stored: the same message, without asking the model."""

    def __init__(self, session_id: str, answer: SessionMessage) -> None:
        self.message_id = answer.id
        self._session_id = session_id
        self._answer = answer

    async def frames(self) -> AsyncIterator[bytes]:
        answer = self._answer
        told: list[events.StreamEvent] = [events.Start(answer.id, answer.ui_metadata)]
        emit_parts(answer.parts, told.append)
        told += ending_of(answer)
        yield b"".join(map(sse.encode, told)) + sse.DONE

    async def result(self) -> RunResult:
        return RunResult.of(self._session_id, self._answer)

    async def ended(self) -> None:
        """Nothing is running."""

    def stop(self, reason: StopReason) -> None:
        """Nothing is running."""


def record_frames(frames: bytes, emit: Emit = lambda _: None) -> AnswerRecorder:
    """Record an answer again from the frames that were sent of it. `close()` then emits the missing end.

    It ends where the log cannot be read: whatever is in there, the session must go on.
    """
    is_live = False
    recorder = AnswerRecorder(lambda event: emit(event) if is_live else None)
    with suppress(AnswerTooLong, KeyError, RecursionError, ValueError):
        for event in sse.decode(frames):
            # The values of an event are the top: only within them does depth count.
            _record(recorder, plain(event, depth=-1))
    is_live = True
    return recorder


def emit_parts(parts: Sequence[Part], emit: Emit) -> None:
    """Emit a stored answer as the events that would have streamed it. What it waits for stays open."""
    recorder = AnswerRecorder(emit)
    for part in parts:
        emit_part(recorder, part)
    recorder.close(waiting=True)


def missing_frames(sent: bytes, answer: SessionMessage) -> bytes:
    """Return the frames that a reader of `sent` still lacks of an answer that is stored.

    The parts that were sent are a prefix of the stored ones: only the last of them can be incomplete.
    """
    told: list[events.StreamEvent] = []
    recorder = record_frames(sent, told.append)
    known = recorder.parts
    # Reasoning without text is stored for the provider and was never streamed.
    shown = [part for part in answer.parts if not (isinstance(part, ReasoningPart) and not part.text)]
    for index, (sent_part, part) in enumerate(zip(known, shown, strict=False)):
        _complete_part(recorder, sent_part, part, is_last=index == len(known) - 1)
    recorder.end_shown_block()
    for part in shown[len(known) :]:
        emit_part(recorder, part)
    recorder.close(waiting=answer.status == "waiting")
    return b"".join(map(sse.encode, [*told, *ending_of(answer)])) + sse.DONE


def ending_of(answer: SessionMessage) -> list[events.StreamEvent]:
    """Return the events that end the stream of a stored answer."""
    metadata = dict(answer.metadata)
    ending: list[events.StreamEvent] = []
    if answer.status in ("cancelled", "interrupted"):
        ending.append(events.Abort(metadata.get("stopReason", answer.status)))
    ending.append(events.Finish(metadata.get("finishReason", "other"), metadata))
    ending.append(events.DataSession({**metadata, "messageId": answer.id, "replayed": True}))
    if answer.status == "failed":
        ending.append(events.Error(metadata.get("errorText", ModelError.public)))
    return ending


def _complete_part(recorder: AnswerRecorder, known: Part, part: Part, *, is_last: bool) -> None:
    match known, part:
        case TextPart(), TextPart() if is_last and len(part.text) > len(known.text):
            recorder.text(part.text[len(known.text) :])
        case ReasoningPart(), ReasoningPart() if is_last and len(part.text) > len(known.text):
            recorder.reasoning(part.text[len(known.text) :])
        case ToolPart(), ToolPart() if not known.done:
            _emit_call(recorder, part, known)


def emit_part(recorder: AnswerRecorder, part: Part) -> None:
    """Record a part as if it had just come."""
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
        case SteeringPart():
            recorder.steering(part.message_id, part.text)


def _emit_call(recorder: AnswerRecorder, part: ToolPart, known: ToolPart | None = None) -> None:
    """Emit what a reader does not know of a call yet."""
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
    """Emit the result of a call whose input is known."""
    error, public = part.error or "", part.public_error or part.error or ""
    if part.request is not None and part.is_denied:
        recorder.tool_denied(part.call_id, error=error, request=part.request)
    elif part.error is not None:
        recorder.tool_error(part.call_id, error=error, public=public)
    else:
        recorder.tool_output(part.call_id, part.output)


def _record(recorder: AnswerRecorder, event: dict[str, Any]) -> None:
    match event:
        case {"type": "start-step"}:
            recorder.start_step()
        case {"type": "finish-step"}:
            recorder.finish_step()
        case {"type": "text-delta", "delta": str(text)}:
            recorder.text(text)
        case {"type": "reasoning-delta", "delta": str(text)}:
            recorder.reasoning(text)
        case {"type": "text-start"}:
            recorder.start_text()
        case {"type": "reasoning-start"}:
            recorder.start_reasoning()
        case {"type": "text-end" | "reasoning-end"}:
            recorder.end_block()
        case {"type": str(kind), "toolCallId": str(call_id)} if kind in _TOOL_EVENTS:
            _TOOL_EVENTS[kind](recorder, call_id, event)
        case {"type": "data-steering", "id": str(message_id), "data": {"text": str(text)}}:
            recorder.steering(message_id, text)
        case {"type": str(kind), "data": data} if kind.startswith("data-") and not event.get("transient"):
            recorder.data(DataPart(name=kind.removeprefix("data-"), data=data, id=event.get("id")))


def _record_input_error(recorder: AnswerRecorder, call_id: str, event: dict[str, Any]) -> None:
    text = str(event["errorText"])
    recorder.tool_input_error(call_id, str(event["input"]), error=text, public=text)


def _record_error(recorder: AnswerRecorder, call_id: str, event: dict[str, Any]) -> None:
    text = str(event["errorText"])
    recorder.tool_error(call_id, error=text, public=text)


def _record_request(recorder: AnswerRecorder, call_id: str, event: dict[str, Any]) -> None:
    request = CallRequest(id=str(event["approvalId"]), kind="approval", reason=event.get("reason"))
    recorder.tool_request(call_id, request)


def _record_denial(recorder: AnswerRecorder, call_id: str, _: dict[str, Any]) -> None:
    request = CallRequest(id="", kind="approval", approved=False)  # of a live stream, the stored answer knows more
    recorder.tool_denied(call_id, error=DENIED_ERROR, request=request)


_TOOL_EVENTS: dict[str, Callable[[AnswerRecorder, str, dict[str, Any]], None]] = {
    "tool-input-start": lambda recorder, call_id, event: recorder.ensure_call(call_id, str(event["toolName"])),
    "tool-input-available": lambda recorder, call_id, event: recorder.tool_input(call_id, event["input"]),
    "tool-input-error": _record_input_error,
    "tool-output-available": lambda recorder, call_id, event: recorder.tool_output(call_id, event["output"]),
    "tool-output-error": _record_error,
    "tool-output-denied": _record_denial,
    "tool-approval-request": _record_request,
}


ASKED, COUNTED, BESIDE = "asked", "counted", "beside"
"""The notes of a turn with a budget: a model call begins, has ended, and one for something else has ended."""


def calls_of(frames: bytes, parts: Sequence[Part]) -> list[Usage]:
    """Return what each model call of a turn has cost, by the notes among its frames. One that was cut is estimated."""
    calls: list[Usage] = []
    input_tokens: int | None = None
    for note in sse.decode_notes(frames):
        match note:
            case {"asked": int(input_tokens)}:
                pass
            case {"counted": dict(counts)}:
                calls.append(Usage.from_dict(counts))
                input_tokens = None
            case {"beside": dict(counts)}:
                calls.append(Usage.from_dict(counts))
    if input_tokens is not None:
        steps = [index for index, part in enumerate(parts) if isinstance(part, StepPart)]
        calls.append(window.estimate_call(input_tokens, parts[steps[-1] :] if steps else []))
    return calls
