"""Records an answer as it is generated. Every event and record changes the parts in one place, `apply`, live or from a
journal.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

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
_EMPTY: Final = (TextPart(text=""), ReasoningPart(text=""))
_BLOCKS: Final = {
    TextPart: (events.TextStart, events.TextDelta, events.TextEnd),
    ReasoningPart: (events.ReasoningStart, events.ReasoningDelta, events.ReasoningEnd),
}


def _ignore(_: Any) -> None:
    pass


@dataclass(slots=True, eq=False)
class AnswerRecorder:
    """The answer so far. At most one text or reasoning block is open; several tool calls may be open at once.

    Exceeding an answer's maximum size raises `AnswerTooLong`; earlier parts are kept.
    """

    send: Sink = _ignore
    """Gets what is recorded."""
    max_chars: float = MAX_ANSWER_CHARS
    _parts: list[Part] = field(default_factory=list)
    _block: TextPart | ReasoningPart | None = None
    _block_id: str = ""
    _blocks: int = 0
    _pieces: list[str] = field(default_factory=list)
    """The end of the open block's text."""
    _calls: dict[str, int] = field(default_factory=dict)
    _inputs_open: set[str] = field(default_factory=set)
    _errors: dict[str, str] = field(default_factory=dict)
    _size: int = 0
    _at_step: tuple[list[Part], dict[str, int], int, int] | None = None
    """The parts, the calls, and the numbers of blocks and characters when the open step began."""

    def restore(self, parts: Sequence[Part]) -> None:
        """Begin with the parts of an answer that goes on. Nothing is emitted."""
        self._parts = list(parts)
        self._calls = {part.call_id: index for index, part in enumerate(parts) if isinstance(part, ToolPart)}
        self._blocks = sum(isinstance(part, TextPart | ReasoningPart) for part in parts)
        self._size = sum(len(part.model_dump_json()) for part in parts)

    @property
    def parts(self) -> list[Part]:
        """The parts so far, in the order they began. A block without any text was never shown."""
        if self._block is not None:
            self._block.text += "".join(self._pieces)
            self._pieces.clear()
        return [part for part in self._parts if part not in _EMPTY]

    @property
    def step_parts(self) -> list[Part]:
        """The parts of the newest step."""
        parts = self.parts
        return parts[max(index for index, part in enumerate(parts) if isinstance(part, StepPart)) + 1 :]

    @property
    def is_waiting(self) -> bool:
        """Whether a call waits for an approval or a client tool."""
        return any(isinstance(part, ToolPart) and part.is_pending for part in self._parts)

    def apply(self, entry: Entry) -> None:  # noqa: C901, PLR0912, PLR0915 - one case per kind
        """Change the answer as an event or a record says. Other kinds change nothing."""
        match entry:
            case events.TextDelta() | events.ReasoningDelta():
                self._grow(entry.delta)
                self._pieces.append(entry.delta)
            case events.TextStart() | events.ReasoningStart():
                block = TextPart(text="") if isinstance(entry, events.TextStart) else ReasoningPart(text="")
                self._grow("", block)
                self._block, self._block_id = block, entry.id
                self._blocks += 1
            case events.TextEnd() | events.ReasoningEnd() if self._block is not None:
                self._block.text += "".join(self._pieces)
                self._pieces.clear()
                self._block = None
            case Thought() if isinstance(self._block, ReasoningPart):
                self._grow(entry.provider_data)
                self._block.provider_data = entry.provider_data
            case Thought():
                self._grow(entry.provider_data, ReasoningPart(text="", provider_data=entry.provider_data))
            case events.ToolInputStart():
                self._grow("", ToolPart(call_id=entry.tool_call_id, name=entry.tool_name))
                self._calls[entry.tool_call_id] = len(self._parts) - 1
                self._inputs_open.add(entry.tool_call_id)
            case events.ToolInputDelta():
                self._grow(entry.input_text_delta)
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
                self._grow(entry.output)
                self._update(entry.tool_call_id, output=entry.output, done=True)
            case events.DataChunk(transient=False):
                part = DataPart(name=entry.name, data=entry.data, id=entry.id)
                if (index := self._index_of(part)) is None:
                    self._grow(entry.data, part)
                else:
                    self._grow(entry.data)
                    self._parts[index] = part
            case events.SourceUrl() | events.SourceDocument():
                source = SourcePart(**asdict(entry))
                self._grow(f"{source.url or ''}{source.title or ''}{source.filename or ''}", source)
            case events.SteeringData():
                text = str(entry.data["text"])
                self._grow(text, SteeringPart(message_id=entry.id, text=text))
            case events.StartStep():
                self._parts.append(StepPart())
                self._at_step = (list(self._parts), dict(self._calls), self._blocks, self._size)
            case events.FinishStep():
                self._at_step = None
            case StepWithdrawn() if self._at_step is not None:
                parts, calls, self._blocks, self._size = self._at_step
                self._parts, self._calls = list(parts), dict(calls)
                self._block = None
                for unfinished in (self._pieces, self._inputs_open, self._errors):
                    unfinished.clear()

    def record(self, entry: Entry) -> None:
        self.apply(entry)
        self.send(entry)

    def start_step(self) -> None:
        self.finish_step()
        self.record(events.StartStep())

    def finish_step(self) -> None:
        if self._at_step is not None:
            self.end_block()
            self.record(events.FinishStep())

    def text(self, text: str, kind: type[TextPart | ReasoningPart] = TextPart) -> None:
        """Add to the open text or reasoning, or open one."""
        if type(self._block) is not kind:
            self.end_block()
            self.record(_BLOCKS[kind][0](str(self._blocks)))
        text, delta = plain_text(text), _BLOCKS[kind][1]
        for at in range(0, len(text), MAX_DELTA_CHARS):
            self.record(delta(self._block_id, text[at : at + MAX_DELTA_CHARS]))

    def end_block(self, *, if_shown: bool = False) -> None:
        """Close the open text or reasoning. `if_shown`: unless it is still empty, then the next part continues it."""
        if self._block is not None and (self._block.text or self._pieces or not if_shown):
            self.record(_BLOCKS[type(self._block)][2](self._block_id))

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
        """Begin a call, unless it is open. Some servers reuse one id for the calls of every step."""
        if call_id not in self._calls or self.call(call_id).done:
            self.end_block()
            self.record(events.ToolInputStart(call_id, name))

    def tool_delta(self, call_id: str, text: str) -> None:
        """Add a piece of a call's arguments. A client's chat ends in an error at a piece of a call that is not open."""
        if call_id not in self._inputs_open:
            raise ConfigurationError(f"no tool call {call_id!r} is open: yield ModelToolStart before ModelToolDelta")
        for at in range(0, len(text), MAX_DELTA_CHARS):
            self.record(events.ToolInputDelta(call_id, text[at : at + MAX_DELTA_CHARS]))

    def tool_input(self, call_id: str, arguments: Any) -> None:
        if call_id not in self._inputs_open and self.call(call_id).input == arguments:
            return  # already shown: the call is run again
        self.record(events.ToolInputAvailable(call_id, self.call(call_id).name, arguments))

    def tool_request(self, call_id: str, request: CallRequest) -> None:
        """The call runs only after its request is answered."""
        self.record(Requested(call_id, request.model_dump(mode="json")))
        if request.kind == "approval":
            self.send(events.ToolApprovalRequest(request.id, call_id, request.reason, request.approved))

    def tool_replied(self, part: ToolPart) -> None:
        """Send readers the decision about a call, then record its result if there is one."""
        request = part.request
        if request is not None and request.kind == "approval" and request.approved is not None:
            verdict = {"approvalId": request.id, "toolCallId": part.call_id, "approved": request.approved}
            reason = {"reason": request.comment} if request.comment else {}
            # AI SDK 7 has its own event for it.
            self.send(events.DataChunk("approval-response", verdict | reason, transient=True))
        if part.done:
            self.tool_result(part)

    def tool_result(self, part: ToolPart) -> None:
        """Record the result of a call as it is stored: its output, its error or its denial."""
        if part.error is None:
            self.record(events.ToolOutputAvailable(part.call_id, part.output))
        elif part.request is not None and part.is_denied:
            self.record(Denied(part.call_id, part.error, part.request.model_dump(mode="json")))
            self.send(events.ToolOutputDenied(part.call_id))
        else:
            self.tool_error(part.call_id, error=part.error, public=part.public_error or part.error)

    def tool_error(self, call_id: str, *, error: str, public: str, raw: str | None = None) -> None:
        """Record the error of a call. `raw` are arguments that are not JSON or are too long."""
        if error != public:  # clients get another text than the model
            self.record(Failed(call_id, error[:MAX_INPUT_CHARS]))
        if raw is None:
            self.record(events.ToolOutputError(call_id, public))
        else:
            kept = plain_text(raw[:MAX_INPUT_CHARS])
            self.record(events.ToolInputError(call_id, self.call(call_id).name, kept, public))

    def data(self, part: DataPart, transient: bool = False) -> None:
        """Send a tool's emitted part, and store it unless it is transient. The same name and id replaces it."""
        if not transient and self._index_of(part) is None:
            self.end_block()
        self.record(events.DataChunk(part.name, part.data, part.id, transient))

    def source(self, part: SourcePart) -> None:
        """Add a source, once: an answer may cite it many times. A very long address is left out."""
        known = [_name_of(each) for each in self._parts if isinstance(each, SourcePart)]
        if _name_of(part) not in known and len(part.url or "") <= MAX_SOURCE_CHARS:
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
        self.send = _ignore

    def close_parts(self, *, waiting: bool = False) -> None:
        """Close the open text and tool calls within the step. If the turn is `waiting`, its requests stay open."""
        self.end_block()
        for call_id in self._calls:
            part = self.call(call_id)
            if part.done or (waiting and part.request is not None):
                continue
            if call_id in self._inputs_open:
                self.tool_error(call_id, error=ORPHAN_ERROR, public=ORPHAN_ERROR, raw="")
            else:
                self.tool_result(part.close())

    def add_paragraph(self, text: str) -> None:
        """Add a separate text, apart from any text before it."""
        self.close_parts()
        if self._at_step is None:
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

    def _index_of(self, part: DataPart) -> int | None:
        """Return the place of the part that this one replaces."""
        known = enumerate(self._parts) if part.id is not None else ()
        same = (i for i, each in known if isinstance(each, DataPart) and (each.name, each.id) == (part.name, part.id))
        return next(same, None)

    def _grow(self, value: Any, part: Part | None = None) -> None:
        """Count a text, or a value as JSON, and begin a part."""
        characters = len(value if type(value) is str else json.dumps(value, default=str))
        characters += PART_CHARS if part is not None else 0
        if self._size + characters > self.max_chars:
            raise AnswerTooLong(f"the answer is longer than {self.max_chars} characters")
        self._size += characters
        if part is not None:
            self._parts.append(part)

    def _update(self, call_id: str, **changes: Any) -> None:
        self._parts[self._calls[call_id]] = self.call(call_id).model_copy(update=changes)


def _name_of(source: SourcePart) -> object:
    return source.url if source.url is not None else (source.title, source.filename)
