"""Records an answer as it is generated: each call adds to the parts and emits the client's event."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from omniagent.errors import AnswerTooLong
from omniagent.messages import (
    ORPHAN_ERROR,
    CallRequest,
    DataPart,
    Part,
    ReasoningPart,
    SteeringPart,
    StepPart,
    TextPart,
    ToolPart,
    plain_text,
)
from omniagent.protocol import events

Emit = Callable[[events.StreamEvent], None]
Note = Callable[[dict[str, Any]], None]
"""Writes a note to the chunk log, which clients do not receive."""

MAX_ANSWER_CHARS = 3_000_000
"""Keeps an answer within one MongoDB document (16 MB), whatever script it is written in."""
PART_CHARS = 250
"""Counted for each part as well: its fields take space, and a model may open any number of parts."""
MAX_DELTA_CHARS = 50_000
"""Keeps one frame within one item of the chunk log."""
MAX_INPUT_CHARS = 50_000
"""Maximum length of a tool call's stored arguments."""


class AnswerRecorder:
    """The answer so far. At most one text or reasoning block is open; several tool calls may be open at once.

    Exceeding an answer's maximum size raises `AnswerTooLong`; earlier parts are kept.
    """

    def __init__(self, emit: Emit, note: Note = lambda _: None, *, max_chars: float = MAX_ANSWER_CHARS) -> None:
        self._emit = emit
        self.note = note
        self._max_chars = max_chars
        self._parts: list[Part] = []
        self._block: TextPart | ReasoningPart | None = None
        self._block_id = ""
        self._blocks = 0
        self._pieces: list[str] = []
        self._calls: dict[str, int] = {}
        self._inputs_open: set[str] = set()
        self._in_step = False
        self._size = 0

    @property
    def parts(self) -> list[Part]:
        """The parts so far, in the order they began. A block without any text was never shown."""
        self._join_pieces()
        return [part for part in self._parts if not _is_empty(part)]

    @property
    def approved_calls(self) -> list[ToolPart]:
        """The approved calls that have not run."""
        return [part for part in self._parts if isinstance(part, ToolPart) and part.is_approved]

    def start_step(self) -> None:
        self.finish_step()
        self._in_step = True
        self._parts.append(StepPart())
        self._emit(events.StartStep())

    def finish_step(self) -> None:
        if self._in_step:
            self.end_block()
            self._in_step = False
            self._emit(events.FinishStep())

    def start_text(self) -> None:
        if type(self._block) is not TextPart:
            self._open(TextPart(text=""))
            self._emit(events.TextStart(self._block_id))

    def start_reasoning(self) -> None:
        if type(self._block) is not ReasoningPart:
            self._open(ReasoningPart(text=""))
            self._emit(events.ReasoningStart(self._block_id))

    def text(self, text: str) -> None:
        self.start_text()
        for piece in _pieces(plain_text(text)):
            self._add(piece)
            self._emit(events.TextDelta(self._block_id, piece))

    def reasoning(self, text: str) -> None:
        self.start_reasoning()
        for piece in _pieces(plain_text(text)):
            self._add(piece)
            self._emit(events.ReasoningDelta(self._block_id, piece))

    def end_block(self) -> None:
        """Close the open text or reasoning."""
        self._join_pieces()
        if isinstance(self._block, ReasoningPart):
            self._emit(events.ReasoningEnd(self._block_id))
        elif self._block is not None:
            self._emit(events.TextEnd(self._block_id))
        self._block = None

    def end_shown_block(self) -> None:
        """Close the open text or reasoning unless it is still empty: then the next part continues it."""
        self._join_pieces()
        if self._block is not None and self._block.text:
            self.end_block()

    def seal_reasoning(self, provider_data: dict[str, Any] | None) -> None:
        """Close the open reasoning and keep the data that the provider needs in the next step.

        Without open reasoning, the model's reasoning is hidden: there is nothing to show, only data to return.
        """
        block = self._block
        if provider_data is not None:
            self._grow(PART_CHARS + len(json.dumps(provider_data, default=str)))
            self.note({"thought": provider_data})
        self.end_block()
        if isinstance(block, ReasoningPart):
            block.provider_data = provider_data
        elif provider_data is not None:
            self._parts.append(ReasoningPart(text="", provider_data=provider_data))

    def tool_start(self, call_id: str, name: str) -> None:
        self._grow(PART_CHARS)
        self.end_block()
        self._calls[call_id] = len(self._parts)
        self._inputs_open.add(call_id)
        self._parts.append(ToolPart(call_id=call_id, name=name))
        self._emit(events.ToolInputStart(call_id, name))

    def ensure_call(self, call_id: str, name: str) -> None:
        """Begin a call that was not announced. Some servers reuse one id for the calls of every step."""
        index = self._calls.get(call_id)
        known = None if index is None else self._parts[index]
        if not isinstance(known, ToolPart) or known.done:
            self.tool_start(call_id, name)

    def tool_delta(self, call_id: str, text: str) -> None:
        self._grow(len(text))
        for piece in _pieces(text):
            self._emit(events.ToolInputDelta(call_id, piece))

    def tool_input(self, call_id: str, arguments: Any) -> None:
        if call_id not in self._inputs_open and self.call(call_id).input == arguments:
            return  # already shown: the call is run again
        self._inputs_open.discard(call_id)
        part = self._update(call_id, input=arguments)
        self._emit(events.ToolInputAvailable(call_id, part.name, arguments))

    def tool_input_error(self, call_id: str, raw: str, *, error: str, public: str) -> None:
        """The model wrote arguments that are not JSON or are too long."""
        self._inputs_open.discard(call_id)
        kept = plain_text(raw[:MAX_INPUT_CHARS])
        part = self._update(call_id, input=kept, error=error, public_error=public, done=True)
        self._note_error(call_id, error, public)
        self._emit(events.ToolInputError(call_id, part.name, part.input, public))

    def tool_request(self, call_id: str, request: CallRequest) -> None:
        """The call runs only after its request is answered."""
        self._update(call_id, request=request)
        if request.kind == "approval":
            self._emit(events.ToolApprovalRequest(request.id, call_id, request.reason))

    def tool_decided(self, call_id: str, request: CallRequest | None) -> None:
        """Send readers a decision and its reason. AI SDK 7 has its own event for it."""
        if request is None or request.kind != "approval" or request.approved is None:
            return
        verdict = {"approvalId": request.id, "toolCallId": call_id, "approved": request.approved}
        reason = {"reason": request.comment} if request.comment else {}
        self._emit(events.DataChunk("approval-response", verdict | reason, transient=True))

    def tool_denied(self, call_id: str, *, error: str, request: CallRequest) -> None:
        self._update(call_id, request=request, error=error, public_error=error, done=True)
        self._emit(events.ToolOutputDenied(call_id))

    def tool_output(self, call_id: str, output: Any) -> None:
        self._grow(len(output) if isinstance(output, str) else len(json.dumps(output)))
        self._update(call_id, output=output, done=True)
        self._emit(events.ToolOutputAvailable(call_id, output))

    def tool_error(self, call_id: str, *, error: str, public: str) -> None:
        self._update(call_id, error=error, public_error=public, done=True)
        self._note_error(call_id, error, public)
        self._emit(events.ToolOutputError(call_id, public))

    def data(self, part: DataPart, transient: bool = False) -> None:
        """Send a tool's emitted part, and store it unless it is transient. The same name and id replaces it."""
        if not transient:
            place = self._place_of(part)
            self._grow(len(json.dumps(part.data)) + (PART_CHARS if place is None else 0))
            if place is None:
                self.end_block()
                self._parts.append(part)
            else:
                self._parts[place] = part
        self._emit(events.DataChunk(part.name, part.data, part.id, transient))

    def steering(self, message_id: str, text: str) -> None:
        """Add a user's message that joins the answer. The text is already stored and is not truncated."""
        self._grow(PART_CHARS + len(text))
        self.end_block()
        self._parts.append(SteeringPart(message_id=message_id, text=text))
        self._emit(events.SteeringData(message_id, {"text": text}))

    def close(self, *, waiting: bool = False) -> None:
        """Close everything that is open: the answer ends or waits here."""
        self.close_parts(waiting=waiting)
        self.finish_step()

    def close_parts(self, *, waiting: bool = False) -> None:
        """Close the open text and tool calls within the step. If the turn is `waiting`, its requests stay open."""
        self.end_block()
        for call_id, index in self._calls.items():
            part = self._parts[index]
            if isinstance(part, ToolPart) and not part.done and not (waiting and part.request is not None):
                if call_id in self._inputs_open:
                    self.tool_input_error(call_id, "", error=ORPHAN_ERROR, public=ORPHAN_ERROR)
                else:
                    self._close_call(part.close())

    def _close_call(self, part: ToolPart) -> None:
        error = part.error or ORPHAN_ERROR
        if part.request is not None and part.is_denied:
            self.tool_denied(part.call_id, error=error, request=part.request)
        else:
            self.tool_error(part.call_id, error=error, public=error)

    def seal(self, *, waiting: bool = False) -> None:
        """Close the answer for good: later recordings are ignored."""
        self.close(waiting=waiting)
        self._emit = lambda _: None
        self.note = lambda _: None

    def add_paragraph(self, text: str) -> None:
        """Add a separate text, apart from any text before it."""
        self.close_parts()
        if not self._in_step:
            self.start_step()
        has_text = any(isinstance(part, TextPart) and part.text for part in self._parts)
        self._size = min(self._size, MAX_ANSWER_CHARS - PART_CHARS - len(text) - 2)  # the final text always fits
        self.text(f"\n\n{text}" if has_text else text)
        self.end_block()

    def _place_of(self, part: DataPart) -> int | None:
        if part.id is None:
            return None
        same = (
            index
            for index, known in enumerate(self._parts)
            if isinstance(known, DataPart) and (known.name, known.id) == (part.name, part.id)
        )
        return next(same, None)

    def _open(self, block: TextPart | ReasoningPart) -> None:
        self.end_block()
        self._grow(PART_CHARS)
        self._block = block
        self._block_id = str(self._blocks)
        self._blocks += 1
        self._parts.append(block)

    def _add(self, piece: str) -> None:
        self._grow(len(piece))
        self._pieces.append(piece)

    def _grow(self, characters: int) -> None:
        if self._size + characters > self._max_chars:
            raise AnswerTooLong(f"the answer is longer than {self._max_chars} characters")
        self._size += characters

    def _join_pieces(self) -> None:
        if self._pieces and self._block is not None:
            self._block.text += "".join(self._pieces)
            self._pieces.clear()

    def _note_error(self, call_id: str, error: str, public: str) -> None:
        """Note the model's version of a text if the client gets a different one."""
        if error != public:
            self.note({"failed": [call_id, error[:MAX_INPUT_CHARS]]})

    def call(self, call_id: str) -> ToolPart:
        """Return a tool call as it is now."""
        part = self._parts[self._calls[call_id]]
        if not isinstance(part, ToolPart):
            raise TypeError(f"{call_id} is not a tool call")
        return part

    def _update(self, call_id: str, **changes: Any) -> ToolPart:
        updated = self.call(call_id).model_copy(update=changes)
        self._parts[self._calls[call_id]] = updated
        return updated


def _is_empty(part: Part) -> bool:
    match part:
        case TextPart():
            return not part.text
        case ReasoningPart():
            return not part.text and part.provider_data is None
    return False


def _pieces(text: str) -> Iterator[str]:
    if len(text) <= MAX_DELTA_CHARS:
        yield text
        return
    yield from (text[start : start + MAX_DELTA_CHARS] for start in range(0, len(text), MAX_DELTA_CHARS))
