"""Records an answer as it happens: each call adds to the parts and emits the event that tells the client."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from omniagent.messages import ORPHAN_ERROR, Part, ReasoningPart, StepPart, TextPart, ToolPart
from omniagent.protocol import events, sse
from omniagent.protocol.plain_json import plain

Emit = Callable[[events.StreamEvent], None]


class Recorder:
    """The answer so far. At most one text or reasoning block is open; tool calls may be open beside each other."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._parts: list[Part] = []
        self._block: TextPart | ReasoningPart | None = None
        self._block_id = ""
        self._blocks = 0
        self._pieces: list[str] = []
        self._calls: dict[str, int] = {}
        self._inputs_open: set[str] = set()
        self._in_step = False

    @property
    def parts(self) -> list[Part]:
        """The parts so far, in the order they began."""
        self._join_pieces()
        return list(self._parts)

    def ensure_step(self) -> None:
        if not self._in_step:
            self.start_step()

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

    def text(self, text: str) -> None:
        if type(self._block) is not TextPart:
            self._open(TextPart(text=""))
            self._emit(events.TextStart(self._block_id))
        self._pieces.append(text)
        self._emit(events.TextDelta(self._block_id, text))

    def reasoning(self, text: str) -> None:
        if type(self._block) is not ReasoningPart:
            self._open(ReasoningPart(text=""))
            self._emit(events.ReasoningStart(self._block_id))
        self._pieces.append(text)
        self._emit(events.ReasoningDelta(self._block_id, text))

    def end_block(self, provider_data: dict[str, Any] | None = None) -> None:
        """Close the open text or reasoning, and keep what the provider wants to see of it again."""
        self._join_pieces()
        if isinstance(self._block, ReasoningPart):
            self._block.provider_data = provider_data
            self._emit(events.ReasoningEnd(self._block_id))
            provider_data = None
        elif self._block is not None:
            self._emit(events.TextEnd(self._block_id))
        if provider_data is not None:
            # Reasoning that the model keeps to itself: nothing to show, but to be handed back.
            self._parts.append(ReasoningPart(text="", provider_data=provider_data))
        self._block = None

    def tool_start(self, call_id: str, name: str) -> None:
        self.end_block()
        self._calls[call_id] = len(self._parts)
        self._inputs_open.add(call_id)
        self._parts.append(ToolPart(call_id=call_id, name=name))
        self._emit(events.ToolInputStart(call_id, name))

    def ensure_call(self, call_id: str, name: str) -> None:
        """Begin a call that was not announced. Some servers give every step's call the same id."""
        index = self._calls.get(call_id)
        known = None if index is None else self._parts[index]
        if not isinstance(known, ToolPart) or known.done:
            self.tool_start(call_id, name)

    def tool_delta(self, call_id: str, text: str) -> None:
        self._emit(events.ToolInputDelta(call_id, text))

    def tool_input(self, call_id: str, arguments: Any) -> None:
        self._inputs_open.discard(call_id)
        part = self._update(call_id, input=arguments)
        self._emit(events.ToolInputAvailable(call_id, part.name, arguments))

    def tool_input_error(self, call_id: str, raw: str, *, error: str, public: str) -> None:
        """The model wrote arguments that are not JSON."""
        self._inputs_open.discard(call_id)
        part = self._update(call_id, input=raw, error=error, public_error=public, done=True)
        self._emit(events.ToolInputError(call_id, part.name, raw, public))

    def tool_output(self, call_id: str, output: Any) -> None:
        self._update(call_id, output=output, done=True)
        self._emit(events.ToolOutputAvailable(call_id, output))

    def tool_error(self, call_id: str, *, error: str, public: str) -> None:
        self._update(call_id, error=error, public_error=public, done=True)
        self._emit(events.ToolOutputError(call_id, public))

    def close(self) -> None:
        """Close whatever is open: the turn was stopped in the middle."""
        self.close_parts()
        self.finish_step()

    def close_parts(self) -> None:
        """Close the open text and tool calls and stay in the step."""
        self.end_block()
        for call_id, index in self._calls.items():
            part = self._parts[index]
            if isinstance(part, ToolPart) and not part.done:
                if call_id in self._inputs_open:
                    self.tool_input_error(call_id, "", error=ORPHAN_ERROR, public=ORPHAN_ERROR)
                else:
                    self.tool_error(call_id, error=ORPHAN_ERROR, public=ORPHAN_ERROR)

    def _open(self, block: TextPart | ReasoningPart) -> None:
        self.end_block()
        self._block = block
        self._block_id = str(self._blocks)
        self._blocks += 1
        self._parts.append(block)

    def _join_pieces(self) -> None:
        if self._pieces and self._block is not None:
            self._block.text += "".join(self._pieces)
            self._pieces.clear()

    def _update(self, call_id: str, **changes: Any) -> ToolPart:
        part = self._parts[self._calls[call_id]]
        updated = part.model_copy(update=changes)
        if not isinstance(updated, ToolPart):
            raise TypeError(f"{call_id} is not a tool call")
        self._parts[self._calls[call_id]] = updated
        return updated


def replay(frames: bytes, emit: Emit = lambda _: None) -> Recorder:
    """Record an answer again from the frames that were sent of it. `close()` then gives the missing end.

    It ends where the log cannot be read: whatever is in there, the session must go on.
    """
    emitting = [False]
    recorder = Recorder(lambda event: emit(event) if emitting[0] else None)
    with suppress(KeyError, RecursionError, ValueError):
        for event in sse.decode(frames):
            # The values of an event are the top: only within them does depth count.
            _replay(recorder, plain(event, depth=-1))
    emitting[0] = True
    return recorder


def replay_events(parts: list[Part], emit: Emit) -> None:
    """Emit a stored answer as the events that would have streamed it."""
    recorder = Recorder(emit)
    for part in parts:
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
                _replay_tool(recorder, part)
    recorder.close()


def _replay_tool(recorder: Recorder, part: ToolPart) -> None:
    error, public = part.error or "", part.public_error or part.error or ""
    recorder.tool_start(part.call_id, part.name)
    if isinstance(part.input, str):
        if part.input:
            recorder.tool_delta(part.call_id, part.input)
        recorder.tool_input_error(part.call_id, part.input, error=error, public=public)
        return
    recorder.tool_delta(part.call_id, json.dumps(part.input, ensure_ascii=False))
    recorder.tool_input(part.call_id, part.input)
    if part.error is not None:
        recorder.tool_error(part.call_id, error=error, public=public)
    else:
        recorder.tool_output(part.call_id, part.output)


def _replay(recorder: Recorder, event: dict[str, Any]) -> None:
    match event:
        case {"type": "start-step"}:
            recorder.start_step()
        case {"type": "finish-step"}:
            recorder.finish_step()
        case {"type": "text-delta", "delta": str(text)}:
            recorder.text(text)
        case {"type": "reasoning-delta", "delta": str(text)}:
            recorder.reasoning(text)
        case {"type": "text-end" | "reasoning-end"}:
            recorder.end_block()
        case {"type": "tool-input-start", "toolCallId": str(call_id), "toolName": str(name)}:
            recorder.ensure_call(call_id, name)
        case {"type": "tool-input-available", "toolCallId": str(call_id), "input": arguments}:
            recorder.tool_input(call_id, arguments)
        case {"type": "tool-input-error", "toolCallId": str(call_id), "input": raw, "errorText": str(text)}:
            recorder.tool_input_error(call_id, raw, error=text, public=text)
        case {"type": "tool-output-available", "toolCallId": str(call_id), "output": output}:
            recorder.tool_output(call_id, output)
        case {"type": "tool-output-error", "toolCallId": str(call_id), "errorText": str(text)}:
            recorder.tool_error(call_id, error=text, public=text)
