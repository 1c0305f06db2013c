"""Events as bytes and back: whatever is streamed can be read again, and rebuilds the answer it came from."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniagent.messages import ORPHAN_ERROR, Part, ReasoningPart, StepPart, TextPart, ToolPart
from omniagent.protocol import events, sse
from omniagent.turns.recorder import AnswerRecorder
from omniagent.turns.replay import emit_parts, record_frames
from tests.fixtures.stream import check_order

Json = dict[str, Any]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# A document's key cannot hold NUL: what is recorded has none.
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
metadata = st.dictionaries(keys, values, max_size=3)
every_event: st.SearchStrategy[events.StreamEvent] = st.one_of(
    st.builds(events.Start, texts, metadata),
    st.builds(events.StartStep),
    st.builds(events.FinishStep),
    st.builds(events.TextStart, texts),
    st.builds(events.TextDelta, texts, texts),
    st.builds(events.TextEnd, texts),
    st.builds(events.ReasoningStart, texts),
    st.builds(events.ReasoningDelta, texts, texts),
    st.builds(events.ReasoningEnd, texts),
    st.builds(events.ToolInputStart, texts, texts),
    st.builds(events.ToolInputDelta, texts, texts),
    st.builds(events.ToolInputAvailable, texts, texts, values),
    st.builds(events.ToolInputError, texts, texts, values, texts),
    st.builds(events.ToolOutputAvailable, texts, values),
    st.builds(events.ToolOutputError, texts, texts),
    st.builds(events.Abort, st.sampled_from(["cancelled", "deadline", "interrupted"])),
    st.builds(events.Finish, st.sampled_from(["stop", "length", "error", "other"]), metadata),
    st.builds(events.DataSession, metadata),
    st.builds(events.Error, texts),
)


@given(every_event)
def test_every_event_is_one_frame_that_is_read_back(event: events.StreamEvent) -> None:
    frame = sse.encode(event)
    assert frame.startswith(b"data: {")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 2, "a line of its own: nothing in it ends the frame early"
    assert b"\r" not in frame
    assert list(sse.decode(frame)) == [events.to_wire(event)]


@given(st.lists(every_event, max_size=6))
def test_a_stream_is_read_back_with_its_comments_and_its_end(sent: list[events.StreamEvent]) -> None:
    stream = sse.KEEP_ALIVE.join([b"", *map(sse.encode, sent), b""]) + sse.DONE
    assert list(sse.decode(stream)) == [events.to_wire(event) for event in sent]


@pytest.mark.parametrize("kind", [events.TextDelta, events.ReasoningDelta])
def test_half_a_surrogate_pair_does_not_break_the_stream(kind: Callable[[str, str], events.StreamEvent]) -> None:
    [event] = sse.decode(sse.encode(kind("0", "half \ud83d")))
    assert event["delta"] == "half ?"


def test_the_wire_has_the_names_of_the_ai_sdk() -> None:
    event = events.ToolInputAvailable("call_1", "add", {"a": 1})
    assert events.to_wire(event) == {
        "type": "tool-input-available",
        "toolCallId": "call_1",
        "toolName": "add",
        "input": {"a": 1},
    }


class Played:
    """An answer as a model and its tools would give it, whatever hypothesis makes of it."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.recorder = AnswerRecorder(lambda event: self.frames.append(sse.encode(event)))
        self.writing: list[str] = []
        self.running: list[str] = []
        self.calls = 0

    def play(self, move: str, text: str, value: Any) -> None:
        recorder = self.recorder
        if not recorder.parts:
            recorder.start_step()
        match move:
            case "text":
                recorder.text(text)
            case "reasoning":
                recorder.reasoning(text)
            case "end":
                recorder.end_block()
            case "call":
                self.calls += 1
                self.writing.append(f"call-{self.calls}")
                recorder.tool_start(self.writing[-1], f"tool {text}")
            case "arguments" if self.writing:
                recorder.tool_delta(self.writing[-1], text)
            case "run" if self.writing:
                recorder.tool_input(self.writing[-1], {"value": value})
                self.running.append(self.writing.pop())
            case "broken" if self.writing:
                recorder.tool_input_error(self.writing.pop(), f"{{{text}", error=text, public=text)
            case "output" if self.running:
                recorder.tool_output(self.running.pop(0), value)
            case "error" if self.running:
                recorder.tool_error(self.running.pop(0), error=text, public=text)
            case "step" if not (self.writing or self.running):
                recorder.start_step()


MOVES = ("text", "reasoning", "end", "call", "arguments", "run", "broken", "output", "error", "step")
moves = st.lists(st.tuples(st.sampled_from(MOVES), texts.filter(bool), values), max_size=25)


def ordered(frames: list[bytes]) -> None:
    """Hold the frames of an answer against the order of a stream."""
    ending: list[events.StreamEvent] = [events.Finish("stop", {}), events.DataSession({"status": "complete"})]
    stream = [sse.encode(events.Start("m1", {})), *frames, *map(sse.encode, ending)]
    check_order(list(sse.decode(b"".join(stream))))


@given(moves)
def test_an_answer_is_rebuilt_from_its_frames(played: list[tuple[str, str, Any]]) -> None:
    answer = Played()
    for move in played:
        answer.play(*move)
    answer.recorder.close()
    ordered(answer.frames)
    assert record_frames(b"".join(answer.frames)).parts == answer.recorder.parts


@given(moves)
def test_an_answer_that_was_cut_off_is_closed_in_order(played: list[tuple[str, str, Any]]) -> None:
    """Cut anywhere a tick may fall: between two things that happened."""
    answer = Played()
    for move in played:
        answer.play(*move)
    closing: list[bytes] = []
    rebuilt = record_frames(b"".join(answer.frames), lambda event: closing.append(sse.encode(event)))
    rebuilt.close()
    ordered([*answer.frames, *closing])
    assert all(part.done for part in rebuilt.parts if isinstance(part, ToolPart))


@given(moves)
def test_a_stored_answer_is_streamed_again_as_it_was(played: list[tuple[str, str, Any]]) -> None:
    answer = Played()
    for move in played:
        answer.play(*move)
    answer.recorder.close()
    again: list[bytes] = []
    emit_parts(answer.recorder.parts, lambda event: again.append(sse.encode(event)))
    ordered(again)
    assert record_frames(b"".join(again)).parts == answer.recorder.parts


def test_a_server_that_gives_each_step_the_same_call_id_loses_no_call() -> None:
    frames: list[bytes] = []
    recorder = AnswerRecorder(lambda event: frames.append(sse.encode(event)))
    for output in (1, 2):
        recorder.start_step()
        recorder.tool_start("call_0", "add")
        recorder.tool_input("call_0", {})
        recorder.tool_output("call_0", output)
    recorder.close()
    outputs = [part.output for part in record_frames(b"".join(frames)).parts if isinstance(part, ToolPart)]
    assert outputs == [1, 2]


def test_what_the_provider_wants_back_stays_with_its_reasoning() -> None:
    recorder = AnswerRecorder(lambda _: None)
    recorder.start_step()
    recorder.reasoning("Hm.")
    recorder.seal_reasoning({"id": "r1"})
    recorder.seal_reasoning({"id": "r2"})
    assert recorder.parts == [
        StepPart(),
        ReasoningPart(text="Hm.", provider_data={"id": "r1"}),
        ReasoningPart(text="", provider_data={"id": "r2"}),
    ]


def test_reasoning_that_was_never_shown_is_not_replayed() -> None:
    parts: list[Part] = [StepPart(), ReasoningPart(text="", provider_data={"id": "r1"}), TextPart(text="Hi.")]
    kinds: list[str] = []
    emit_parts(parts, lambda event: kinds.append(event.type))
    assert kinds == ["start-step", "text-start", "text-delta", "text-end", "finish-step"]


def test_a_log_that_cannot_be_read_to_its_end_gives_what_can_be_read() -> None:
    good = sse.encode(events.StartStep()) + sse.encode(events.TextDelta("0", "Hello"))
    for broken in (
        b'data: {"type": "text-del\n\n',
        b'data: {"type":"tool-output-error","toolCallId":"?","errorText":""}\n\n',
    ):
        rebuilt = record_frames(good + broken + sse.encode(events.TextDelta("0", "lost")))
        assert rebuilt.parts == [StepPart(), TextPart(text="Hello")]


def test_open_calls_are_closed_with_a_fixed_text() -> None:
    sent: list[Json] = []
    recorder = AnswerRecorder(lambda event: sent.append(events.to_wire(event)))
    recorder.start_step()
    recorder.tool_start("a", "add")
    recorder.tool_start("b", "add")
    recorder.tool_input("b", {})
    recorder.close()
    assert [(event["type"], event.get("errorText")) for event in sent[-3:]] == [
        ("tool-input-error", ORPHAN_ERROR),
        ("tool-output-error", ORPHAN_ERROR),
        ("finish-step", None),
    ]
    assert json.dumps(sent)
