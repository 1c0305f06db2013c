"""Replays an answer: records it from the frames of its chunk log, or streams it from its stored parts."""

import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from functools import lru_cache
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
from omniagent.protocol.events import ResetStep
from omniagent.protocol.plain_json import plain
from omniagent.session.manager import SessionMessage
from omniagent.turns.recorder import MAX_ANSWER_CHARS, AnswerRecorder, Emit, Note

logger = logging.getLogger(__name__)


class ReplayedAnswer:
    """The stream of a stored answer: the same message, without a model call."""

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


def record_frames(
    frames: bytes,
    emit: Emit = lambda _: None,
    note: Note = lambda _: None,
    *,
    begin: Callable[[AnswerRecorder], Collection[str]] = lambda _: (),
    max_chars: float = MAX_ANSWER_CHARS,
) -> AnswerRecorder:
    """Record an answer again from its logged frames. `close()` then emits the missing end.

    Recording stops at the first unreadable frame: a corrupt log must not block the session. `begin` records what
    precedes the frames, and returns the ids of calls whose frames are skipped.
    """
    is_live = False
    recorder = AnswerRecorder(
        lambda event: emit(event) if is_live else None,
        lambda noted: note(noted) if is_live else None,
        max_chars=max_chars,
    )
    errors: dict[str, str] = {}
    message_id = ""
    with suppress(AnswerTooLong, KeyError, RecursionError, ValueError):
        known = begin(recorder)
        for frame in kept_frames(sse.split(frames)):
            for event in sse.decode(frame):
                if event.get("toolCallId") in known:
                    continue
                # Depth is counted within an event's values, not from the event itself.
                message_id = str(event.get("messageId", message_id))
                if not _record(recorder, plain(event, depth=-1), errors):
                    _warn_unknown(message_id, str(event["type"]))
            for noted in sse.decode_notes(frame):
                _record_note(recorder, noted, errors)
    is_live = True
    return recorder


def kept_frames(frames: Sequence[bytes]) -> list[bytes]:
    """Return a log without withdrawn frames: steps that were unfinished when a process died, and the end of a stream
    whose answer could not be stored.
    """
    kept: list[bytes] = []
    open_at: int | None = None
    for frame in frames:
        if frame == sse.START_STEP and open_at is None:
            open_at = len(kept)
        elif frame.startswith(_STEP_NOTE) or frame == CONTINUED:
            open_at = None
        elif frame.startswith(_TAKEOVER_NOTE):
            kept = [each for each in kept[:open_at] if not _ends_a_stream(each)]
            open_at = None
        kept.append(frame)
    return kept


def _ends_a_stream(frame: bytes) -> bool:
    return frame == sse.DONE or frame.startswith(_ENDINGS)


def emit_parts(parts: Sequence[Part], emit: Emit) -> None:
    """Emit a stored answer as the events that would have streamed it. Open requests stay open.

    One that was cut at its maximum size is slightly larger, because of its fallback text.
    """
    recorder = AnswerRecorder(emit, max_chars=math.inf)
    for part in parts:
        emit_part(recorder, part)
        if isinstance(part, ToolPart) and not part.done:
            recorder.tool_decided(part.call_id, part.request)  # other calls of its step are still open
    recorder.close(waiting=True)


def missing_frames(sent: bytes, answer: SessionMessage) -> bytes:
    """Return the frames of a stored answer that a reader of `sent` is missing.

    The sent parts are a prefix of the stored ones; only the last of them can be incomplete.
    """
    told: list[events.StreamEvent] = []
    recorder = record_frames(sent, told.append, max_chars=math.inf)
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


def kept_steps(answer: SessionMessage | None, *, regenerates: bool = False) -> Sequence[Part]:
    """Return the steps that are not repeated when a turn that was closed early is answered again: those up to the last
    one with a call that may have taken effect, without the text after its calls.

    Empty for the regeneration of a stopped answer: its user wants a different one.
    """
    if answer is None or answer.status in ("complete", "waiting") or (regenerates and answer.status == "cancelled"):
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
    """Record steps that are not repeated, with the notes that a takeover needs."""
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
        for part in step:
            if isinstance(part, ToolPart):
                recorder.note({CALL: [part.call_id, part.name, json.dumps(part.input, ensure_ascii=False)]})
        recorder.note({STEP: "tool-calls"})
        recorder.finish_step()


def emit_result(recorder: AnswerRecorder, part: ToolPart) -> None:
    """Emit the decision about a call, then its result. Its input was already emitted."""
    recorder.tool_decided(part.call_id, part.request)
    error, public = part.error or "", part.public_error or part.error or ""
    if part.request is not None and part.is_denied:
        recorder.tool_denied(part.call_id, error=error, request=part.request)
    elif part.error is not None:
        recorder.tool_error(part.call_id, error=error, public=public)
    else:
        recorder.tool_output(part.call_id, part.output)


def _record(recorder: AnswerRecorder, event: dict[str, Any], errors: dict[str, str]) -> bool:
    """Record an event. False if its kind is unknown: a follower is still sent its frame."""
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
            if "errorText" in event:
                event["error"] = errors.pop(call_id, str(event["errorText"]))
            _TOOL_EVENTS[kind](recorder, call_id, event)
        case {"type": "data-steering", "id": str(message_id), "data": {"text": str(text)}}:
            recorder.steering(message_id, text)
        case {"type": str(kind), "data": data} if kind.startswith("data-") and not event.get("transient"):
            recorder.data(DataPart(name=kind.removeprefix("data-"), data=data, id=event.get("id")))
        case _:
            return bool(event.get("transient")) or str(event.get("type")) in _NOT_RECORDED
    return True


@lru_cache(maxsize=256)
def _warn_unknown(message_id: str, kind: str) -> None:
    """Log once, although a log is recorded repeatedly, that an event's content will not be stored."""
    logger.warning("unknown event in the log of a turn", extra={"message_id": message_id, "kind": kind})


def _record_input_error(recorder: AnswerRecorder, call_id: str, event: dict[str, Any]) -> None:
    error, public = event["error"], str(event["errorText"])
    recorder.tool_input_error(call_id, str(event["input"]), error=error, public=public)


def _record_error(recorder: AnswerRecorder, call_id: str, event: dict[str, Any]) -> None:
    recorder.tool_error(call_id, error=event["error"], public=str(event["errorText"]))


def _record_note(recorder: AnswerRecorder, note: dict[str, Any], errors: dict[str, str]) -> None:
    match note:
        case {"thought": dict(provider_data)}:
            recorder.seal_reasoning(provider_data)
        case {"failed": [str(call_id), str(error)]}:
            errors[call_id] = error


def _record_request(recorder: AnswerRecorder, call_id: str, event: dict[str, Any]) -> None:
    request = CallRequest(id=str(event["approvalId"]), kind="approval", reason=event.get("reason"))
    recorder.tool_request(call_id, request)


def _record_denial(recorder: AnswerRecorder, call_id: str, _: dict[str, Any]) -> None:
    request = CallRequest(id="", kind="approval", approved=False)  # the event has no more; the stored answer does
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

_NOT_RECORDED = frozenset({"start", "tool-input-delta", "reset-step", "abort", "finish", "error"})
"""Events that add nothing to an answer's parts."""

COUNTED = "counted"
"""Note: the cost of a model call that has ended, for the usage of an answer that another process ends."""
BEGUN, CALL, STEP, TAKEN_OVER, HANDED_OVER = "begun", "call", "step", "taken_over", "handed_over"
"""Takeover notes: when the turn began, a tool call as the model wrote it, a completed model call, a takeover, and a
hand-over by a process that ran out of time but made progress. They are written before a tool runs.
"""
APPROVED = "approved"
"""Note: the approved calls of a turn that waited are about to run."""
CONTINUED = b": continued\n\n"
"""Marks, in the log of a continued turn, the end of what it had shown before it waited."""
_ENDINGS = tuple(f'data: {{"type":"{kind}"'.encode() for kind in ("abort", "error", "finish", "data-session"))
_STEP_NOTE, _TAKEOVER_NOTE, _HAND_OVER_NOTE = (f': {{"{name}":'.encode() for name in (STEP, TAKEN_OVER, HANDED_OVER))


class FollowedLog:
    """Decides what a reader of the chunk log is sent.

    An unfinished step is held back until its process is known to be alive. If the process died, another one generates
    the step again, and a reader that has not seen it sees one undisturbed answer. A reader that has seen it gets
    `reset-step`, or its stream ends and it resumes.
    """

    def __init__(self, *, resets: bool = False) -> None:
        self.sent: list[bytes] = []
        """What the client has been sent and still displays."""
        self.has_ended = False
        self.waits_for_process = False
        """The turn was handed over, or taken over, and the next process has shown nothing yet."""
        self.owner = ""
        """The owner of the claim under which the log was last written. A takeover claims before it logs."""
        self._log: list[bytes] = []
        """The same with the notes, as logged."""
        self._held = b""
        self._resets = resets
        self._is_reset = False

    def take(self, chunks: Sequence[bytes]) -> bytes:
        """Take the next chunks and return the bytes to send."""
        if not chunks:
            return b""
        is_first = not self._log and not self._held
        new, shown = b"".join(chunks), b""
        self._note_processes(new)
        before, mark, rest = new.rpartition(_TAKEOVER_NOTE)
        if mark:
            shown, new = self._withdraw(before), mark + rest
        if is_first and not new.endswith(sse.DONE):
            return shown + self._hold_open_step(new) or sse.KEEP_ALIVE
        return shown + self.trust() + self._send(new)

    def _note_processes(self, new: bytes) -> None:
        self.owner = last_attempt(new)[0] or self.owner
        changed_at = max(new.rfind(_TAKEOVER_NOTE), new.rfind(_HAND_OVER_NOTE))
        if changed_at >= 0 or self.waits_for_process:
            self.waits_for_process = b"data: " not in new[max(0, changed_at) :].replace(sse.START_STEP, b"")

    def trust(self) -> bytes:
        """Return the held-back bytes: the process is alive."""
        held, self._held = self._held, b""
        return self._send(held)

    def _hold_open_step(self, log: bytes) -> bytes:
        begun = log.find(sse.START_STEP, max(0, log.rfind(_STEP_NOTE), log.rfind(CONTINUED)))
        safe = log if begun < 0 else log[:begun]
        self._held = log[len(safe) :]
        return self._send(safe)

    def _withdraw(self, unsent: bytes) -> bytes:
        """Discard a dead process's unfinished step and return the rest."""
        mark = sse.encode_note({TAKEN_OVER: 0})
        sent = sse.split(b"".join(self._log))
        kept = kept_frames([*sent, *sse.split(self._held + unsent), mark])[:-1]
        self._held = b""
        if kept[: len(sent)] == sent:
            return self._send(b"".join(kept[len(sent) :]))
        shown = kept_frames([*sent, mark])[:-1]
        if not self._resets or sent[len(shown) :].count(sse.START_STEP) != 1:
            self.has_ended = True
            return b""
        self._log = shown
        self.sent = [sse.without_notes(b"".join(shown)), sse.START_STEP]  # a reset keeps the step's start
        self._is_reset = True
        return sse.encode(ResetStep())

    def _send(self, frames: bytes) -> bytes:
        if self.has_ended or not frames:
            return b""
        self._log.append(frames)
        visible = sse.without_notes(frames)
        if self._is_reset and sse.START_STEP in visible:
            visible, self._is_reset = visible.replace(sse.START_STEP, b"", 1), False
        if visible:
            self.sent.append(visible)
        self.has_ended = visible.endswith(sse.DONE)
        return visible


def last_attempt(frames: bytes) -> tuple[str | None, bytes]:
    """Return the frames of the process that wrote last, and its claim's owner; None for the first one."""
    _, mark, rest = frames.rpartition(_TAKEOVER_NOTE)
    own = mark + rest
    return (next(sse.decode_notes(own)).get("owner"), own) if mark else (None, frames)


def handed_over_at(frames: bytes) -> float | None:
    """Return the wall-clock time of a turn's hand-over. None if a process works on it, or died."""
    marks = [note for note in sse.decode_notes(frames) if TAKEN_OVER in note or HANDED_OVER in note]
    at = marks[-1].get("at") if marks and HANDED_OVER in marks[-1] else None
    return at if isinstance(at, float) else None


def calls_of(frames: bytes) -> list[Usage]:
    """Return the cost of a turn's own model calls that ended, from the notes in its frames."""
    notes = sse.decode_notes(frames)
    return [Usage.from_dict(note[COUNTED]) for note in notes if isinstance(note.get(COUNTED), dict)]
