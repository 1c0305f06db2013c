"""Records an answer as it is generated. Every event and record changes the parts in one place, `apply`, live or from a
journal.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from omniagent.errors import AnswerTooLong
from omniagent.messages import (
    ORPHAN_ERROR,
    CallRequest,
    DataPart,
    Part,
    ReasoningPart,
    SourcePart,
    SteeringPart,
    StepPart,
    TextPart,
    ToolPart,
    plain_text,
)
from omniagent.protocol import events
from omniagent.turns.journal.records import Denied, Entry, Failed, Record, Requested, StepWithdrawn, Thought

Emit = Callable[[events.StreamEvent], None]
Note = Callable[[Record], None]
"""Writes a record to the journal, which clients do not receive."""

MAX_ANSWER_CHARS = 3_000_000
"""Keeps an answer within one MongoDB document (16 MB), whatever script it is written in."""
PART_CHARS = 250
"""Counted for each part as well: its fields take space, and a model may open any number of parts."""
MAX_DELTA_CHARS = 50_000
"""Keeps one event within one chunk of the journal."""
MAX_SOURCE_CHARS = 4_000
"""Maximum length of a source's address, title and name."""
MAX_INPUT_CHARS = 50_000
"""Maximum length of a tool call's stored arguments."""


def _ignore(_: Any) -> None:
    pass


class AnswerRecorder:
    """The answer so far. At most one text or reasoning block is open; several tool calls may be open at once.

    Exceeding an answer's maximum size raises `AnswerTooLong`; earlier parts are kept.
    """

    def __init__(self, emit: Emit = _ignore, note: Note = _ignore, *, max_chars: float = MAX_ANSWER_CHARS) -> None:
        self._emit = emit
        self._write = note
        self._max_chars = max_chars
        self._parts: list[Part] = []
        self._block: TextPart | ReasoningPart | None = None
        self._block_id = ""
        self._blocks = 0
        self._pieces: list[str] = []
        self._calls: dict[str, int] = {}
        self._inputs_open: set[str] = set()
        self._errors: dict[str, str] = {}
        self._in_step = False
        self._size = 0
        self._at_step: tuple[list[Part], dict[str, int], int, int] | None = None
        """The parts, the calls, and the numbers of blocks and characters when the current step began."""

    def attach(self, emit: Emit, note: Note) -> None:
        """Send what is recorded from now on."""
        self._emit, self._write = emit, note

    def restore(self, parts: Sequence[Part]) -> None:
        """Begin with the parts of an answer that goes on. Nothing is emitted."""
        self._parts = list(parts)
        self._calls = {part.call_id: index for index, part in enumerate(parts) if isinstance(part, ToolPart)}
        self._blocks = sum(isinstance(part, TextPart | ReasoningPart) for part in parts)
        self._size = sum(len(part.model_dump_json()) for part in parts)

    @property
    def parts(self) -> list[Part]:
        """The parts so far, in the order they began. A block without any text was never shown."""
        self._join_pieces()
        return [part for part in self._parts if not _is_empty(part)]

    @property
    def approved_calls(self) -> list[ToolPart]:
        """The approved calls that have not run."""
        return [part for part in self._parts if isinstance(part, ToolPart) and part.is_approved]

    def apply(self, entry: Entry) -> None:
        """Change the answer as an event or a record says. Other kinds change nothing."""
        handler = self._APPLY.get(type(entry))
        if handler is not None:
            handler(self, entry)

    def note(self, record: Record) -> None:
        self.apply(record)
        self._write(record)

    def _show(self, event: events.StreamEvent) -> None:
        self.apply(event)
        self._emit(event)

    def start_step(self) -> None:
        self.finish_step()
        self._show(events.StartStep())

    def finish_step(self) -> None:
        if self._in_step:
            self.end_block()
            self._show(events.FinishStep())

    def withdraw(self, record: StepWithdrawn) -> None:
        """Withdraw what the open step has recorded, if there is anything."""
        if self._at_step is not None and len(self._at_step[0]) < len(self._parts):
            self.note(record)

    def start_text(self) -> None:
        if type(self._block) is not TextPart:
            self.end_block()
            self._show(events.TextStart(str(self._blocks)))

    def start_reasoning(self) -> None:
        if type(self._block) is not ReasoningPart:
            self.end_block()
            self._show(events.ReasoningStart(str(self._blocks)))

    def text(self, text: str) -> None:
        self.start_text()
        for piece in _pieces(plain_text(text)):
            self._show(events.TextDelta(self._block_id, piece))

    def reasoning(self, text: str) -> None:
        self.start_reasoning()
        for piece in _pieces(plain_text(text)):
            self._show(events.ReasoningDelta(self._block_id, piece))

    def end_block(self) -> None:
        """Close the open text or reasoning."""
        if isinstance(self._block, ReasoningPart):
            self._show(events.ReasoningEnd(self._block_id))
        elif self._block is not None:
            self._show(events.TextEnd(self._block_id))

    def end_shown_block(self) -> None:
        """Close the open text or reasoning unless it is still empty: then the next part continues it."""
        self._join_pieces()
        if self._block is not None and self._block.text:
            self.end_block()

    def seal_reasoning(self, provider_data: dict[str, Any] | None) -> None:
        """Close the open reasoning and keep the data that the provider needs in the next step.

        Without open reasoning, the model's reasoning is hidden: there is nothing to show, only data to return.
        """
        if provider_data is not None:
            if not isinstance(self._block, ReasoningPart):
                self.end_block()
            self.note(Thought(provider_data))
        self.end_block()

    def tool_start(self, call_id: str, name: str) -> None:
        self.end_block()
        self._show(events.ToolInputStart(call_id, name))

    def ensure_call(self, call_id: str, name: str) -> None:
        """Begin a call that was not announced. Some servers reuse one id for the calls of every step."""
        index = self._calls.get(call_id)
        known = None if index is None else self._parts[index]
        if not isinstance(known, ToolPart) or known.done:
            self.tool_start(call_id, name)

    def tool_delta(self, call_id: str, text: str) -> None:
        for piece in _pieces(text):
            self._show(events.ToolInputDelta(call_id, piece))

    def tool_input(self, call_id: str, arguments: Any) -> None:
        if call_id not in self._inputs_open and self.call(call_id).input == arguments:
            return  # already shown: the call is run again
        self._show(events.ToolInputAvailable(call_id, self.call(call_id).name, arguments))

    def tool_input_error(self, call_id: str, raw: str, *, error: str, public: str) -> None:
        """The model wrote arguments that are not JSON or are too long."""
        self._note_error(call_id, error, public)
        kept = plain_text(raw[:MAX_INPUT_CHARS])
        self._show(events.ToolInputError(call_id, self.call(call_id).name, kept, public))

    def tool_request(self, call_id: str, request: CallRequest) -> None:
        """The call runs only after its request is answered."""
        self.note(Requested(call_id, request.model_dump(mode="json")))
        if request.kind == "approval":
            self._emit(events.ToolApprovalRequest(request.id, call_id, request.reason, request.approved))

    def tool_decided(self, call_id: str, request: CallRequest | None) -> None:
        """Send readers a decision and its reason. AI SDK 7 has its own event for it."""
        if request is None or request.kind != "approval" or request.approved is None:
            return
        verdict = {"approvalId": request.id, "toolCallId": call_id, "approved": request.approved}
        reason = {"reason": request.comment} if request.comment else {}
        self._emit(events.DataChunk("approval-response", verdict | reason, transient=True))

    def tool_denied(self, call_id: str, *, error: str, request: CallRequest) -> None:
        self.note(Denied(call_id, error, request.model_dump(mode="json")))
        self._emit(events.ToolOutputDenied(call_id))

    def tool_output(self, call_id: str, output: Any) -> None:
        self._show(events.ToolOutputAvailable(call_id, output))

    def tool_error(self, call_id: str, *, error: str, public: str) -> None:
        self._note_error(call_id, error, public)
        self._show(events.ToolOutputError(call_id, public))

    def data(self, part: DataPart, transient: bool = False) -> None:
        """Send a tool's emitted part, and store it unless it is transient. The same name and id replaces it."""
        if not transient and self._place_of(part.name, part.id) is None:
            self.end_block()
        self._show(events.DataChunk(part.name, part.data, part.id, transient))

    def source(self, part: SourcePart) -> None:
        """Add a source, once: an answer may cite it many times. A very long address is left out."""
        is_known = any(isinstance(known, SourcePart) and _is_same(known, part) for known in self._parts)
        if not is_known and len(part.url or "") <= MAX_SOURCE_CHARS:
            self.end_block()
            self._show(events.source_event(part))

    def steering(self, message_id: str, text: str) -> None:
        """Add a user's message that joins the answer. The text is already stored and is not truncated."""
        self.end_block()
        self._show(events.SteeringData(message_id, {"text": text}))

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
        self.attach(_ignore, _ignore)

    def add_paragraph(self, text: str) -> None:
        """Add a separate text, apart from any text before it."""
        self.close_parts()
        if not self._in_step:
            self.start_step()
        has_text = any(isinstance(part, TextPart) and part.text for part in self._parts)
        self._size = min(self._size, MAX_ANSWER_CHARS - PART_CHARS - len(text) - 2)  # the final text always fits
        self.text(f"\n\n{text}" if has_text else text)
        self.end_block()

    def call(self, call_id: str) -> ToolPart:
        """Return a tool call as it is now."""
        part = self._parts[self._calls[call_id]]
        if not isinstance(part, ToolPart):
            raise TypeError(f"{call_id} is not a tool call")
        return part

    def _note_error(self, call_id: str, error: str, public: str) -> None:
        """Note the model's version of a text if the client gets a different one."""
        if error != public:
            self.note(Failed(call_id, error[:MAX_INPUT_CHARS]))

    def _place_of(self, name: str, data_id: str | None) -> int | None:
        if data_id is None:
            return None
        same = (
            index
            for index, known in enumerate(self._parts)
            if isinstance(known, DataPart) and (known.name, known.id) == (name, data_id)
        )
        return next(same, None)

    def _grow(self, characters: int) -> None:
        if self._size + characters > self._max_chars:
            raise AnswerTooLong(f"the answer is longer than {self._max_chars} characters")
        self._size += characters

    def _join_pieces(self) -> None:
        if self._pieces and self._block is not None:
            self._block.text += "".join(self._pieces)
            self._pieces.clear()

    def _update(self, call_id: str, **changes: Any) -> None:
        self._parts[self._calls[call_id]] = self.call(call_id).model_copy(update=changes)

    def _start_step(self, _: events.StartStep) -> None:
        self._in_step = True
        self._parts.append(StepPart())
        self._at_step = (list(self._parts), dict(self._calls), self._blocks, self._size)

    def _finish_step(self, _: events.FinishStep) -> None:
        self._in_step = False
        self._at_step = None

    def _withdraw_step(self, _: StepWithdrawn) -> None:
        if self._at_step is None:
            return
        parts, calls, self._blocks, self._size = self._at_step
        self._parts, self._calls = list(parts), dict(calls)
        self._block = None
        self._pieces.clear()
        self._inputs_open.clear()
        self._errors.clear()

    def _open_block(self, event: events.TextStart | events.ReasoningStart) -> None:
        self._grow(PART_CHARS)
        self._block = TextPart(text="") if isinstance(event, events.TextStart) else ReasoningPart(text="")
        self._block_id = event.id
        self._blocks += 1
        self._parts.append(self._block)

    def _add_piece(self, event: events.TextDelta | events.ReasoningDelta) -> None:
        self._grow(len(event.delta))
        self._pieces.append(event.delta)

    def _close_block(self, _: events.TextEnd | events.ReasoningEnd) -> None:
        self._join_pieces()
        self._block = None

    def _keep_thought(self, record: Thought) -> None:
        self._grow(PART_CHARS + len(json.dumps(record.provider_data, default=str)))
        if isinstance(self._block, ReasoningPart):
            self._block.provider_data = record.provider_data
        else:
            self._parts.append(ReasoningPart(text="", provider_data=record.provider_data))

    def _start_call(self, event: events.ToolInputStart) -> None:
        self._grow(PART_CHARS)
        self._calls[event.tool_call_id] = len(self._parts)
        self._inputs_open.add(event.tool_call_id)
        self._parts.append(ToolPart(call_id=event.tool_call_id, name=event.tool_name))

    def _add_input(self, event: events.ToolInputDelta) -> None:
        self._grow(len(event.input_text_delta))

    def _set_input(self, event: events.ToolInputAvailable) -> None:
        self._inputs_open.discard(event.tool_call_id)
        self._update(event.tool_call_id, input=event.input)

    def _set_input_error(self, event: events.ToolInputError) -> None:
        self._inputs_open.discard(event.tool_call_id)
        self._update(event.tool_call_id, input=event.input)
        self._set_error(event)

    def _set_error(self, event: events.ToolInputError | events.ToolOutputError) -> None:
        error = self._errors.pop(event.tool_call_id, event.error_text)
        self._update(event.tool_call_id, error=error, public_error=event.error_text, done=True)

    def _keep_error(self, record: Failed) -> None:
        self._errors[record.call_id] = record.error

    def _set_request(self, record: Requested) -> None:
        self._update(record.call_id, request=CallRequest.model_validate(record.request))

    def _set_denial(self, record: Denied) -> None:
        request = CallRequest.model_validate(record.request)
        self._update(record.call_id, request=request, error=record.error, public_error=record.error, done=True)

    def _set_output(self, event: events.ToolOutputAvailable) -> None:
        output = event.output
        self._grow(len(output) if isinstance(output, str) else len(json.dumps(output)))
        self._update(event.tool_call_id, output=output, done=True)

    def _set_data(self, event: events.DataChunk) -> None:
        if event.transient:
            return
        place = self._place_of(event.name, event.id)
        self._grow(len(json.dumps(event.data)) + (PART_CHARS if place is None else 0))
        part = DataPart(name=event.name, data=event.data, id=event.id)
        if place is None:
            self._parts.append(part)
        else:
            self._parts[place] = part

    def _add_source(self, event: events.SourceUrl | events.SourceDocument) -> None:
        part = SourcePart(**asdict(event))
        self._grow(PART_CHARS + len(part.url or "") + len(part.title or "") + len(part.filename or ""))
        self._parts.append(part)

    def _add_steering(self, event: events.SteeringData) -> None:
        text = str(event.data["text"])
        self._grow(PART_CHARS + len(text))
        self._parts.append(SteeringPart(message_id=event.id, text=text))

    _APPLY: ClassVar[dict[type[Entry], Callable[[Any, Any], None]]] = {
        events.StartStep: _start_step,
        events.FinishStep: _finish_step,
        StepWithdrawn: _withdraw_step,
        events.TextStart: _open_block,
        events.ReasoningStart: _open_block,
        events.TextDelta: _add_piece,
        events.ReasoningDelta: _add_piece,
        events.TextEnd: _close_block,
        events.ReasoningEnd: _close_block,
        Thought: _keep_thought,
        events.ToolInputStart: _start_call,
        events.ToolInputDelta: _add_input,
        events.ToolInputAvailable: _set_input,
        events.ToolInputError: _set_input_error,
        Failed: _keep_error,
        Requested: _set_request,
        Denied: _set_denial,
        events.ToolOutputAvailable: _set_output,
        events.ToolOutputError: _set_error,
        events.DataChunk: _set_data,
        events.SourceUrl: _add_source,
        events.SourceDocument: _add_source,
        events.SteeringData: _add_steering,
    }


def _is_empty(part: Part) -> bool:
    match part:
        case TextPart():
            return not part.text
        case ReasoningPart():
            return not part.text and part.provider_data is None
    return False


def _is_same(one: SourcePart, other: SourcePart) -> bool:
    if one.url is not None or other.url is not None:
        return one.url == other.url
    return (one.title, one.filename) == (other.title, other.filename)


def _pieces(text: str) -> Iterator[str]:
    if len(text) <= MAX_DELTA_CHARS:
        yield text
        return
    yield from (text[start : start + MAX_DELTA_CHARS] for start in range(0, len(text), MAX_DELTA_CHARS))
