"""A waiting turn: how replies change it, and which frames follow for its readers. Pure functions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from omniagent.ai.approvals import NOTHING, ToolReply
from omniagent.ai.client_tools import ClientTool
from omniagent.ai.tools import Tool, render_output
from omniagent.errors import InvalidRequest, NotWaiting, ReplyConflict, RequestExpired, UnknownRequest
from omniagent.messages import DENIED_ERROR, CallRequest, Part, StepPart, ToolPart, plain_text
from omniagent.session.live import SessionMessage
from omniagent.turns.journal.recorder import AnswerRecorder
from omniagent.turns.journal.replay import emit_part, emit_result, frames_of

MAX_COMMENT_CHARS = 2_000


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
                raise UnknownRequest if message.status == "waiting" else NotWaiting
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
        answered = request.model_copy(update={"answered_by": self.answered_by, "answered_at": self.now})
        if reply.error is not None:
            text = _text(reply.error) or "The client's tool failed."
            changes: dict[str, Any] = {"error": text, "public_error": text}
        else:
            changes = {"output": self._output(part, reply.output)}
        return part.model_copy(update={**changes, "done": True, "request": answered})

    def _decided(self, part: ToolPart, request: CallRequest, reply: ToolReply) -> ToolPart:
        comment = _text(reply.reason) or None
        answered = {"answered_by": self.answered_by, "answered_at": self.now}
        decided = request.model_copy(update={"approved": reply.approved, "comment": comment, **answered})
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


def go_on_with(recorder: AnswerRecorder, answer: SessionMessage) -> None:
    """Begin with an answer that waited, and emit the replies: their results are new to every reader."""
    recorder.restore(base_of(answer))
    for index in sorted(_last_requests(answer.parts)):
        part = answer.parts[index]
        if isinstance(part, ToolPart) and part.done:
            emit_result(recorder, part)
        elif isinstance(part, ToolPart):
            recorder.tool_decided(part.call_id, part.request)


def base_of(answer: SessionMessage) -> list[Part]:
    """Return the parts that an answer had shown before it goes on: without the results of its last step's requests."""
    replied = _last_requests(answer.parts)
    return [_open(part) if index in replied else part for index, part in enumerate(answer.parts)]


def frames_before(answer: SessionMessage) -> bytes:
    """Return the frames of what an answer had shown before it goes on, for a reader that has seen nothing."""

    def record(recorder: AnswerRecorder) -> None:
        for part in base_of(answer):
            emit_part(recorder, part)
        recorder.finish_step()

    return frames_of(AnswerRecorder(max_chars=math.inf), record)


def frames_after(answer: SessionMessage, call_ids: frozenset[str], *, goes_on: bool = False) -> bytes:
    """Return the frames of an answer after the step of these calls, beginning with their results.

    The client that replies has everything before. If the turn `goes_on`, its journal has the results of the last step.
    An answer that ended with these results gets an empty step: a client that sends when all calls of the last step are
    settled would send forever.
    """
    parts = base_of(answer) if goes_on else list(answer.parts)
    end = _step_end(parts, call_ids)
    step = _last_requests(parts[:end])
    recorder = AnswerRecorder(max_chars=math.inf)
    for index, part in enumerate(parts[:end]):
        emit_part(recorder, _open(part) if index in step else part)
    recorder.finish_step()

    def record(recorder: AnswerRecorder) -> None:
        for index in sorted(step):
            if isinstance(part := parts[index], ToolPart) and part.done:
                emit_result(recorder, part)
        for part in parts[end:]:
            emit_part(recorder, part)
        recorder.close_parts(waiting=True)
        recorder.finish_step()
        if not goes_on and answer.status != "waiting" and not any(isinstance(part, StepPart) for part in parts[end:]):
            recorder.start_step()
            recorder.finish_step()

    return frames_of(recorder, record)


def _last_requests(parts: Sequence[Part]) -> set[int]:
    """Return the indexes of the last step's calls that have a request."""
    start = max((index for index, part in enumerate(parts) if isinstance(part, StepPart)), default=0)
    return {
        index
        for index, part in enumerate(parts)
        if index >= start and isinstance(part, ToolPart) and part.request is not None
    }


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
