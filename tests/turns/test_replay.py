"""An answer recorded, cut off anywhere, rebuilt from its frames, and streamed again from its parts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniagent.messages import (
    ORPHAN_ERROR,
    CallRequest,
    DataPart,
    Part,
    ReasoningPart,
    Status,
    StepPart,
    TextPart,
    ToolPart,
)
from omniagent.protocol import events, sse
from omniagent.session.manager import SessionMessage
from omniagent.turns.recorder import MAX_ANSWER_CHARS, AnswerRecorder
from omniagent.turns.replay import FollowedLog, emit_parts, ending_of, missing_frames, record_frames
from omniagent.turns.waiting import frames_after
from tests.fixtures.stream import check_order
from tests.protocol.test_sse import Json, texts, values


class Played:
    """An answer as a model and its tools would give it, whatever hypothesis makes of it."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.recorder = AnswerRecorder(lambda event: self.frames.append(sse.encode(event)))
        self.writing: list[str] = []
        self.running: list[str] = []
        self.calls = 0
        self.recorder.start_step()

    def play(self, move: str, text: str, value: Any) -> None:
        recorder = self.recorder
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
            case "data":
                recorder.data(DataPart(name="progress", data=value, id=text[:1]), transient=not text.isascii())
            case "step" if not (self.writing or self.running):
                recorder.start_step()


MOVES = ("text", "reasoning", "end", "call", "arguments", "run", "broken", "output", "error", "data", "step")
moves = st.lists(st.tuples(st.sampled_from(MOVES), texts.filter(bool), values), max_size=25)


def ordered(frames: list[bytes]) -> None:
    """Hold the frames of an answer against the order of a stream."""
    ending: list[events.StreamEvent] = [events.Finish("stop", {}), events.DataSession({"status": "complete"})]
    stream = [sse.encode(events.Start("m1", {})), *frames, *map(sse.encode, ending)]
    check_order(list(sse.decode(b"".join(stream))))


@given(moves, st.data())
def test_an_answer_is_rebuilt_replayed_and_completed_for_partial_readers(
    played: list[tuple[str, str, Any]], data: st.DataObject
) -> None:
    answer = Played()
    for move in played:
        answer.play(*move)
    answer.recorder.close()
    ordered(answer.frames)
    assert record_frames(b"".join(answer.frames)).parts == answer.recorder.parts

    again: list[bytes] = []
    emit_parts(answer.recorder.parts, lambda event: again.append(sse.encode(event)))
    ordered(again)
    assert record_frames(b"".join(again)).parts == answer.recorder.parts

    stored = SessionMessage("m1", "assistant", 1, answer.recorder.parts, metadata={"finishReason": "stop"})
    sent = b"".join(answer.frames[: data.draw(st.integers(0, len(answer.frames)))])
    start = sse.encode(events.Start("m1", {}))
    whole = start + sent + missing_frames(sent, stored)
    check_order(list(sse.decode(whole)))
    assert shown(record_frames(whole).parts) == shown(stored.parts)


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


def test_a_reader_of_the_beginning_of_a_waiting_answer_gets_its_request_and_no_result() -> None:
    request = CallRequest(id="r1", kind="approval")
    call = ToolPart(call_id="c1", name="refund", input={"order": 42}, request=request)
    stored = SessionMessage("m1", "assistant", 1, [StepPart(), call], status="waiting")
    sent = sse.encode(events.StartStep())
    kinds = [event["type"] for event in sse.decode(missing_frames(sent, stored))]
    assert kinds == [
        "tool-input-start",
        "tool-input-delta",
        "tool-input-available",
        "tool-approval-request",
        "finish-step",
        "finish",
        "data-session",
    ]


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        ("complete", ["finish", "data-session"]),
        ("waiting", ["finish", "data-session"]),
        ("cancelled", ["abort", "finish", "data-session"]),
        ("interrupted", ["abort", "finish", "data-session"]),
        ("failed", ["finish", "data-session", "error"]),
    ],
)
def test_a_stored_answer_is_replayed_with_the_end_that_it_had(status: Status, ending: list[str]) -> None:
    answer = SessionMessage("m1", "assistant", 1, [], status=status)
    assert [event.type for event in ending_of(answer)] == ending


def test_an_answer_that_is_larger_than_a_new_one_may_be_is_streamed_again() -> None:
    """One that was cut at its maximum size, and then got its fallback text."""
    asked = ToolPart(
        call_id="c", name="pay", input={}, output="paid", done=True, request=CallRequest(id="r", kind="approval")
    )
    answer = SessionMessage(
        "a", "assistant", 1, [StepPart(), asked, StepPart(), TextPart(text="x" * (MAX_ANSWER_CHARS + 100))]
    )
    sent: list[bytes] = []
    emit_parts(answer.parts, lambda event: sent.append(sse.encode(event)))
    beginning = b"".join(sent[:5])
    for frames in (b"".join(sent), missing_frames(beginning, answer), frames_after(answer, frozenset({"c"}))):
        texts = (event["delta"] for event in sse.decode(frames) if event["type"] == "text-delta")
        assert len("".join(texts)) == MAX_ANSWER_CHARS + 100


def test_a_log_that_cannot_be_read_to_its_end_gives_what_can_be_read() -> None:
    good = sse.encode(events.StartStep()) + sse.encode(events.TextDelta("0", "Hello"))
    for broken in (
        b'data: {"type": "text-del\n\n',
        b'data: {"type":"tool-output-error","toolCallId":"?","errorText":""}\n\n',
    ):
        rebuilt = record_frames(good + broken + sse.encode(events.TextDelta("0", "lost")))
        assert rebuilt.parts == [StepPart(), TextPart(text="Hello")]


def test_an_unknown_kind_of_event_is_logged_once_and_reaches_followers(caplog: pytest.LogCaptureFixture) -> None:
    start, step = sse.encode(events.Start("turn-1", {})), sse.encode(events.StartStep())
    unknown, text = b'data: {"type":"hologram","url":"private"}\n\n', sse.encode(events.TextDelta("0", "Hello"))
    transient = b'data: {"type":"data-progress","data":1,"transient":true}\n\n'
    log = start + step + unknown + transient + text + unknown
    for _ in range(2):
        assert record_frames(log).parts == [StepPart(), TextPart(text="Hello")]
    [record] = caplog.records
    assert (record.levelname, vars(record)["kind"], vars(record)["message_id"]) == ("WARNING", "hologram", "turn-1")
    assert "private" not in record.getMessage()
    follower = FollowedLog()
    assert follower.take([log]) + follower.trust() == log


def test_open_calls_are_closed_with_a_fixed_text() -> None:
    sent: list[Json] = []
    recorder = AnswerRecorder(lambda event: sent.append(sse.to_wire(event)))
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


def shown(parts: list[Part] | Any) -> list[Part]:
    """A reader does not see errors meant for the model."""
    return [
        part.model_copy(update={"error": part.public_error}) if isinstance(part, ToolPart) else part for part in parts
    ]
