"""Records an answer as it is generated. Every event and record changes the parts in one place, `apply`, live or from a
journal.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from omniagent.errors import AnswerTooLong, ConfigurationError
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
    steering_of,
)
from omniagent.protocol import events
from omniagent.turns.journal.records import Denied, Entry, Failed, Requested, StepWithdrawn, Thought

Sink = Callable[[Entry], None]
"""Takes the events that clients receive, and the records that only the journal does."""

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

    def __init__(self, send: Sink = _ignore, *, max_chars: float = MAX_ANSWER_CHARS) -> None:
        self._send = send
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

    def attach(self, send: Sink) -> None:
        """Send what is recorded from now on."""
        self._send = send

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
    def step_parts(self) -> list[Part]:
        """The parts of the open step."""
        self._join_pieces()
        begun = len(self._at_step[0]) if self._at_step is not None else len(self._parts)
        return [part for part in self._parts[begun:] if not _is_empty(part)]

    def apply(self, entry: Entry) -> None:  # noqa: C901, PLR0912, PLR0915 - one case per kind
        """Change the answer as an event or a record says. Other kinds change nothing."""
        match entry:
            case events.TextDelta() | events.ReasoningDelta():
                self._grow(len(entry.delta))
                self._pieces.append(entry.delta)
            case events.TextStart() | events.ReasoningStart():
                block = TextPart(text="") if isinstance(entry, events.TextStart) else ReasoningPart(text="")
                self._append(block)
                self._block, self._block_id = block, entry.id
                self._blocks += 1
            case events.TextEnd() | events.ReasoningEnd():
                self._join_pieces()
                self._block = None
            case Thought():
                self._grow(len(json.dumps(entry.provider_data, default=str)))
                if isinstance(self._block, ReasoningPart):
                    self._block.provider_data = entry.provider_data
                else:
                    self._append(ReasoningPart(text="", provider_data=entry.provider_data))
            case events.ToolInputStart():
                self._append(ToolPart(call_id=entry.tool_call_id, name=entry.tool_name))
                self._calls[entry.tool_call_id] = len(self._parts) - 1
                self._inputs_open.add(entry.tool_call_id)
            case events.ToolInputDelta():
                self._grow(len(entry.input_text_delta))
            case events.ToolInputAvailable():
                self._inputs_open.discard(entry.tool_call_id)
                self._update(entry.tool_call_id, input=entry.input)
            case Failed():
                self._errors[entry.call_id] = entry.error
            case events.ToolInputError() | events.ToolOutputError():
                error = self._errors.pop(entry.tool_call_id, entry.error_text)
                changes = {"input": entry.input} if isinstance(entry, events.ToolInputError) else {}
                self._inputs_open.discard(entry.tool_call_id)
                self._update(entry.tool_call_id, error=error, public_error=entry.error_text, done=True, **changes)
            case Requested():
                self._update(entry.call_id, request=CallRequest.model_validate(entry.request))
            case Denied():
                request = CallRequest.model_validate(entry.request)
                self._update(entry.call_id, request=request, error=entry.error, public_error=entry.error, done=True)
            case events.ToolOutputAvailable():
                self._grow(_size(entry.output))
                self._update(entry.tool_call_id, output=entry.output, done=True)
            case events.DataChunk(transient=False):
                self._grow(_size(entry.data))
                part = DataPart(name=entry.name, data=entry.data, id=entry.id)
                place = self._place_of(entry.name, entry.id)
                if place is None:
                    self._append(part)
                else:
                    self._parts[place] = part
            case events.SourceUrl() | events.SourceDocument():
                source = SourcePart(**asdict(entry))
                self._grow(len(source.url or "") + len(source.title or "") + len(source.filename or ""))
                self._append(source)
            case events.SteeringData():
                text = str(entry.data["text"])
                self._grow(len(text))
                self._append(SteeringPart(message_id=entry.id, text=text))
            case events.StartStep():
                self._in_step = True
                self._parts.append(StepPart())
                self._at_step = (list(self._parts), dict(self._calls), self._blocks, self._size)
            case events.FinishStep():
                self._in_step, self._at_step = False, None
            case StepWithdrawn() if self._at_step is not None:
                parts, calls, self._blocks, self._size = self._at_step
                self._parts, self._calls = list(parts), dict(calls)
                self._block = None
                for unfinished in (self._pieces, self._inputs_open, self._errors):
                    unfinished.clear()

    def record(self, entry: Entry) -> None:
        self.apply(entry)
        self._send(entry)

    def start_step(self) -> None:
        self.finish_step()
        self.record(events.StartStep())

    def finish_step(self) -> None:
        if self._in_step:
            self.end_block()
            self.record(events.FinishStep())

    def withdraw(self, record: StepWithdrawn) -> None:
        """Withdraw what the open step has recorded, if there is anything."""
        if self._at_step is not None and len(self._at_step[0]) < len(self._parts):
            self.record(record)

    def text(self, text: str) -> None:
        if type(self._block) is not TextPart:
            self.end_block()
            self.record(events.TextStart(str(self._blocks)))
        for piece in _pieces(plain_text(text)):
            self.record(events.TextDelta(self._block_id, piece))

    def reasoning(self, text: str) -> None:
        if type(self._block) is not ReasoningPart:
            self.end_block()
            self.record(events.ReasoningStart(str(self._blocks)))
        for piece in _pieces(plain_text(text)):
            self.record(events.ReasoningDelta(self._block_id, piece))

    def end_block(self) -> None:
        """Close the open text or reasoning."""
        if isinstance(self._block, ReasoningPart):
            self.record(events.ReasoningEnd(self._block_id))
        elif self._block is not None:
            self.record(events.TextEnd(self._block_id))

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
            self.record(Thought(provider_data))
        self.end_block()

    def tool_start(self, call_id: str, name: str) -> None:
        self.end_block()
        self.record(events.ToolInputStart(call_id, name))

    def ensure_call(self, call_id: str, name: str) -> None:
        """Begin a call that was not announced. Some servers reuse one id for the calls of every step."""
        index = self._calls.get(call_id)
        known = None if index is None else self._parts[index]
        if not isinstance(known, ToolPart) or known.done:
            self.tool_start(call_id, name)

    def tool_delta(self, call_id: str, text: str) -> None:
        """Add a piece of a call's arguments. A client's chat ends in an error at a piece of a call that is not open."""
        if call_id not in self._inputs_open:
            raise ConfigurationError(f"no tool call {call_id!r} is open: yield ModelToolStart before ModelToolDelta")
        for piece in _pieces(text):
            self.record(events.ToolInputDelta(call_id, piece))

    def tool_input(self, call_id: str, arguments: Any) -> None:
        if call_id not in self._inputs_open and self.call(call_id).input == arguments:
            return  # already shown: the call is run again
        self.record(events.ToolInputAvailable(call_id, self.call(call_id).name, arguments))

    def tool_input_error(self, call_id: str, raw: str, *, error: str, public: str) -> None:
        """The model wrote arguments that are not JSON or are too long."""
        self._note_error(call_id, error, public)
        kept = plain_text(raw[:MAX_INPUT_CHARS])
        self.record(events.ToolInputError(call_id, self.call(call_id).name, kept, public))

    def tool_request(self, call_id: str, request: CallRequest) -> None:
        """The call runs only after its request is answered."""
        self.record(Requested(call_id, request.model_dump(mode="json")))
        if request.kind == "approval":
            self._send(events.ToolApprovalRequest(request.id, call_id, request.reason, request.approved))

    def tool_decided(self, call_id: str, request: CallRequest | None) -> None:
        """Send readers a decision and its reason. AI SDK 7 has its own event for it."""
        if request is None or request.kind != "approval" or request.approved is None:
            return
        verdict = {"approvalId": request.id, "toolCallId": call_id, "approved": request.approved}
        reason = {"reason": request.comment} if request.comment else {}
        self._send(events.DataChunk("approval-response", verdict | reason, transient=True))

    def tool_denied(self, call_id: str, *, error: str, request: CallRequest) -> None:
        self.record(Denied(call_id, error, request.model_dump(mode="json")))
        self._send(events.ToolOutputDenied(call_id))

    def tool_output(self, call_id: str, output: Any) -> None:
        self.record(events.ToolOutputAvailable(call_id, output))

    def tool_result(self, part: ToolPart) -> None:
        """Record the result of a call as it is stored: its output, its error or its denial."""
        error, public = part.error or "", part.public_error or part.error or ""
        if part.request is not None and part.is_denied:
            self.tool_denied(part.call_id, error=error, request=part.request)
        elif part.error is not None:
            self.tool_error(part.call_id, error=error, public=public)
        else:
            self.tool_output(part.call_id, part.output)

    def tool_error(self, call_id: str, *, error: str, public: str) -> None:
        self._note_error(call_id, error, public)
        self.record(events.ToolOutputError(call_id, public))

    def data(self, part: DataPart, transient: bool = False) -> None:
        """Send a tool's emitted part, and store it unless it is transient. The same name and id replaces it."""
        if not transient and self._place_of(part.name, part.id) is None:
            self.end_block()
        self.record(events.DataChunk(part.name, part.data, part.id, transient))

    def source(self, part: SourcePart) -> None:
        """Add a source, once: an answer may cite it many times. A very long address is left out."""
        is_known = any(isinstance(known, SourcePart) and _is_same(known, part) for known in self._parts)
        if not is_known and len(part.url or "") <= MAX_SOURCE_CHARS:
            self.end_block()
            self.record(events.source_event(part))

    def steering(self, message_id: str, text: str) -> bool:
        """Add a user's message that joins the answer, in full. Returns False if the answer has it already."""
        if any(part.message_id == message_id for part in steering_of(self._parts)):
            return False
        self.end_block()
        self.record(events.SteeringData(message_id, {"text": text}))
        return True

    def close(self, *, waiting: bool = False) -> None:
        """Close everything that is open: the answer ends or waits here. What is recorded later is not sent."""
        self.close_parts(waiting=waiting)
        self.finish_step()
        self.attach(_ignore)

    def close_parts(self, *, waiting: bool = False) -> None:
        """Close the open text and tool calls within the step. If the turn is `waiting`, its requests stay open."""
        self.end_block()
        for call_id, index in self._calls.items():
            part = self._parts[index]
            if isinstance(part, ToolPart) and not part.done and not (waiting and part.request is not None):
                if call_id in self._inputs_open:
                    self.tool_input_error(call_id, "", error=ORPHAN_ERROR, public=ORPHAN_ERROR)
                else:
                    self.tool_result(part.close())

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
            self.record(Failed(call_id, error[:MAX_INPUT_CHARS]))

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

    def _append(self, part: Part) -> None:
        self._grow(PART_CHARS)
        self._parts.append(part)

    def _join_pieces(self) -> None:
        if self._pieces and self._block is not None:
            self._block.text += "".join(self._pieces)
            self._pieces.clear()

    def _update(self, call_id: str, **changes: Any) -> None:
        self._parts[self._calls[call_id]] = self.call(call_id).model_copy(update=changes)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str) else len(json.dumps(value))


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
