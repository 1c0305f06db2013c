"""A waiting turn: how replies change it, how it is closed, and which frames follow for its readers. Pure functions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from omniagent.ai.approvals import NOTHING, ToolReply
from omniagent.ai.client_tools import ClientTool
from omniagent.ai.tools import Tool, render_output
from omniagent.errors import InvalidRequest, NotWaiting, ReplyConflict, RequestExpired, UnknownRequest
from omniagent.messages import (
    DENIED_ERROR,
    UNANSWERED_ERROR,
    CallRequest,
    DataPart,
    Part,
    ReasoningPart,
    StepPart,
    ToolPart,
    close_open_calls,
    plain_text,
)
from omniagent.protocol import events, sse
from omniagent.session.manager import SessionMessage
from omniagent.turns.recorder import AnswerRecorder, Emit, Note
from omniagent.turns.replay import CONTINUED, emit_part, emit_result, ending_of, record_frames

MAX_COMMENT_CHARS = 2_000
EXPIRED_ERROR = "Nobody answered in time. The call was not run."
STOPPED_ERROR = "The turn was stopped before anybody answered. The call was not run."


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of applying replies to a waiting message."""

    message: SessionMessage
    call_ids: frozenset[str]
    """The calls that were replied to or echoed: the client knows the answer up to the step of the last one."""
    new_requests: frozenset[str]
    """The requests that were replied to for the first time."""

    @property
    def is_new(self) -> bool:
        return bool(self.new_requests)

    @property
    def is_complete(self) -> bool:
        """Whether the turn can continue."""
        return self.message.status == "waiting" and not self.message.pending


@dataclass(frozen=True, slots=True)
class Judge:
    """Checks replies against the stored requests. Only a verdict, an output or an error is taken from a reply."""

    tool: Callable[[str], Tool | None]
    answered_by: str
    now: datetime

    def judge(self, message: SessionMessage, replies: Sequence[ToolReply]) -> Judgement:
        """Apply the replies to the message. Raises a `RequestError` if any of them is not acceptable.

        A repeated reply is accepted and changes nothing, and so is a part that the client only echoes.
        """
        parts = list(message.parts)
        call_ids, new_requests = set[str](), set[str]()
        for reply in replies:
            index = _find(parts, reply)
            if index is None:
                if reply.is_echo:
                    continue
                raise UnknownRequest
            part = parts[index]
            if not isinstance(part, ToolPart):
                continue
            call_ids.add(part.call_id)
            if part.request is None:
                continue
            if part.is_pending and message.status == "waiting":
                parts[index] = self._answered(part, part.request, reply)
                new_requests.add(part.request.id)
            elif part.request.answered_by is None and not reply.repeats_error:
                raise RequestExpired if message.metadata.get("stopReason") == "expired" else NotWaiting
            elif not self._is_repeated(part, part.request, reply):
                raise ReplyConflict
        if not call_ids and not all(reply.is_echo for reply in replies):
            raise NotWaiting
        return Judgement(replace(message, parts=parts), frozenset(call_ids), frozenset(new_requests))

    def _answered(self, part: ToolPart, request: CallRequest, reply: ToolReply) -> ToolPart:
        _check_kind(part, request, reply)
        if request.expires_at is not None and request.expires_at <= self.now:
            raise RequestExpired
        if request.kind == "approval":
            return self._decided(part, request, reply)
        answered = request.model_copy(update={"answered_by": self.answered_by})
        if reply.error is not None:
            text = _text(reply.error) or "The client's tool failed."
            changes: dict[str, Any] = {"error": text, "public_error": text}
        else:
            changes = {"output": self._output(part, reply.output)}
        return part.model_copy(update={**changes, "done": True, "request": answered})

    def _decided(self, part: ToolPart, request: CallRequest, reply: ToolReply) -> ToolPart:
        comment = _text(reply.reason) or None
        verdict = {"approved": reply.approved, "comment": comment, "answered_by": self.answered_by}
        decided = request.model_copy(update=verdict)
        if reply.approved:
            return part.model_copy(update={"request": decided})
        error = f"{DENIED_ERROR} Reason: {comment}" if comment else DENIED_ERROR
        return part.model_copy(update={"request": decided, "done": True, "error": error, "public_error": error})

    def _output(self, part: ToolPart, output: Any) -> Any:
        tool = self.tool(part.name)
        if not isinstance(tool, ClientTool):
            raise InvalidRequest(f"{part.name} is no longer a client tool. Reply with an error.")
        return render_output(tool.parse_reply(part.input, output))

    def _is_repeated(self, part: ToolPart, request: CallRequest, reply: ToolReply) -> bool:
        """Whether the same reply was given before, or the client only echoes the call."""
        if reply.is_echo and reply.approved is None:
            return True
        _check_kind(part, request, reply)
        if request.kind == "approval":
            return request.approved == reply.approved
        if reply.error is not None:
            return part.error == (_text(reply.error) or part.error)
        return part.error is None and self._output(part, reply.output) == part.output


def _find(parts: Sequence[Part], reply: ToolReply) -> int | None:
    """Return the index of the reply's call: the last with its id, because some servers reuse an id in every step."""
    for index in range(len(parts) - 1, -1, -1):
        part = parts[index]
        if not isinstance(part, ToolPart) or (part.request is None and not reply.is_echo):
            continue
        is_call = not reply.call_id or part.call_id == reply.call_id
        request_id = part.request.id if part.request is not None else ""
        is_request = not reply.request_id or request_id == reply.request_id
        if is_call and is_request and (reply.call_id or reply.request_id):
            return index
    return None


def _check_kind(part: ToolPart, request: CallRequest, reply: ToolReply) -> None:
    given = [reply.approved is not None, reply.output is not NOTHING, reply.error is not None]
    if sum(given) != 1:
        raise InvalidRequest("A reply has exactly one of `approved`, `output` and `error`.")
    if request.kind == "approval" and reply.approved is None:
        raise InvalidRequest(f"{part.name} runs on the server: approve or deny it.")
    if request.kind == "output" and reply.approved is not None:
        raise InvalidRequest(f"{part.name} runs in the client: reply with its output, or an error.")


def _text(text: str | None) -> str:
    return plain_text(text or "").strip()[:MAX_COMMENT_CHARS]


def is_expired(message: SessionMessage, now: datetime) -> bool:
    """Whether a request of a waiting answer was not answered in time."""
    until = message.waiting_until
    return until is not None and until <= now


def closed(message: SessionMessage, stop_reason: events.AbortReason, error: str = UNANSWERED_ERROR) -> SessionMessage:
    """Return a waiting message, closed: pending calls are denied, and approved calls are not run."""
    parts = [part.close(error) if isinstance(part, ToolPart) else part for part in message.parts]
    metadata = {**message.metadata, "status": "cancelled", "finishReason": "other", "stopReason": stop_reason}
    return replace(message, parts=close_open_calls(parts), status="cancelled", metadata=metadata)


def merged(stored: Sequence[Part], logged: Sequence[Part], ended: Sequence[Part]) -> list[Part]:
    """Merge the parts of an answer whose run died: those stored when the run began, and those in its log.

    `ended` is `logged` with all open parts closed. An approved call may have run: without a result in the log, it is
    closed as interrupted.
    """
    # Reasoning without text is stored for the provider and was never streamed.
    shown = [i for i, part in enumerate(stored) if not (isinstance(part, ReasoningPart) and not part.text)]
    parts = list(stored)
    for index, known in zip(shown, logged, strict=False):
        part = parts[index]
        if isinstance(part, ToolPart) and isinstance(known, ToolPart) and known.done and not part.done:
            parts[index] = known.model_copy(update={"request": part.request})
        elif isinstance(part, DataPart) and isinstance(known, DataPart):
            parts[index] = known
    return close_open_calls([*parts, *ended[len(shown) :]])


def take_up(recorder: AnswerRecorder, message: SessionMessage) -> list[ToolPart]:
    """Record an answer that is continued. Returns the answered calls of its last step: their results are not shown."""
    answered = _last_requests(message.parts)
    for index, part in enumerate(message.parts):
        if isinstance(part, ReasoningPart):
            if part.text:
                recorder.reasoning(part.text)
            recorder.seal_reasoning(part.provider_data)
        else:
            emit_part(recorder, _open(part) if index in answered else part)
    recorder.finish_step()
    return [part for index in sorted(answered) if isinstance(part := message.parts[index], ToolPart)]


def recorded_again(message: SessionMessage, frames: bytes, emit: Emit, note: Note) -> AnswerRecorder:
    """Record a continued answer from its run's log. `message` is the answer as stored when that run began."""

    def begin(recorder: AnswerRecorder) -> set[str]:
        done = [part for part in take_up(recorder, message) if part.done]
        for part in done:
            emit_result(recorder, part)  # the log does not record who denied a call
        return {part.call_id for part in done}

    return record_frames(frames.partition(CONTINUED)[2], emit, note, begin=begin)


def frames_after(message: SessionMessage, call_ids: frozenset[str], *, logged: bytes | None = None) -> bytes:
    """Return the frames of an answer after the step of these calls, beginning with their results.

    The client that replies has everything before. `logged` is the log of the continued run up to `CONTINUED`: only the
    steps in it are returned, and the run itself emits the results of the last one. An answer that ended with these
    results gets an empty step: a client that sends when all calls of the last step are settled would send forever.
    """
    told: list[events.StreamEvent] = []
    is_live = False
    recorder = AnswerRecorder(lambda event: told.append(event) if is_live else None, max_chars=math.inf)
    parts = list(message.parts)
    if logged is not None:
        parts = _first_steps(parts, sum(isinstance(part, StepPart) for part in record_frames(logged).parts))
        unknown = _last_requests(parts)
        parts = [_open(part) if index in unknown else part for index, part in enumerate(parts)]
    end = _step_end(parts, call_ids)
    step = _last_requests(parts[:end])
    for index, part in enumerate(parts[:end]):
        emit_part(recorder, _open(part) if index in step else part)
    recorder.finish_step()
    is_live = True
    for index in sorted(step):
        if isinstance(part := parts[index], ToolPart) and part.done:
            emit_result(recorder, part)
    for part in parts[end:]:
        emit_part(recorder, part)
    recorder.close(waiting=True)
    if logged is None and message.status != "waiting" and not any(isinstance(part, StepPart) for part in parts[end:]):
        told += [events.StartStep(), events.FinishStep()]
    return b"".join(map(sse.encode, told))


def start_of(message: SessionMessage) -> bytes:
    return sse.encode(events.Start(message.id, message.ui_metadata))


def end_of(message: SessionMessage) -> bytes:
    return b"".join(map(sse.encode, ending_of(message))) + sse.DONE


def _last_requests(parts: Sequence[Part]) -> set[int]:
    """Return the indexes of the last step's calls that have a request."""
    start = max((index for index, part in enumerate(parts) if isinstance(part, StepPart)), default=0)
    return {
        index
        for index, part in enumerate(parts)
        if index >= start and isinstance(part, ToolPart) and part.request is not None
    }


def _first_steps(parts: Sequence[Part], steps: int) -> list[Part]:
    starts = [index for index, part in enumerate(parts) if isinstance(part, StepPart)]
    return list(parts[: starts[steps]] if steps < len(starts) else parts)


def _open(part: Part) -> Part:
    """Return a call without its result."""
    if not isinstance(part, ToolPart):
        return part
    return part.model_copy(update={"done": False, "output": None, "error": None, "public_error": None})


def _step_end(parts: Sequence[Part], call_ids: frozenset[str]) -> int:
    """Return the end index of the step that has the last of these calls."""
    last = max(
        (index for index, part in enumerate(parts) if isinstance(part, ToolPart) and part.call_id in call_ids),
        default=len(parts),
    )
    later_steps = (index for index, part in enumerate(parts) if index > last and isinstance(part, StepPart))
    return next(later_steps, len(parts))
