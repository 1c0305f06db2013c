"""The recorder keeps everything that the model has to be handed back, and no more than a document holds."""

from collections.abc import Callable

import bson
import pytest

from omniagent.errors import AnswerTooLong
from omniagent.messages import DataPart, ReasoningPart, StepPart, TextPart
from omniagent.protocol import sse
from omniagent.protocol.events import StreamEvent
from omniagent.turns.recorder import AnswerRecorder
from omniagent.turns.replay import record_frames


def test_reasoning_sealed_while_text_is_open_is_kept_behind_the_text() -> None:
    sent: list[StreamEvent] = []
    recorder = AnswerRecorder(sent.append)
    recorder.start_step()
    recorder.text("Let me see.")
    recorder.seal_reasoning({"encrypted_content": "sealed"})
    recorder.text("Done.")
    recorder.finish_step()
    assert recorder.parts == [
        StepPart(),
        TextPart(text="Let me see."),
        ReasoningPart(text="", provider_data={"encrypted_content": "sealed"}),
        TextPart(text="Done."),
    ]
    assert [event.type for event in sent if event.type.startswith("reasoning")] == []


def test_half_a_surrogate_pair_is_kept_as_it_is_sent() -> None:
    frames = list[bytes]()
    recorder = AnswerRecorder(lambda event: frames.append(sse.encode(event)))
    recorder.start_step()
    recorder.reasoning("Hm \ud83d")
    recorder.text("Hello \ud83d")
    recorder.tool_start("c1", "add")
    recorder.tool_input_error("c1", '{"a": \ude00', error="no JSON", public="no JSON")
    recorder.close()
    assert record_frames(b"".join(frames)).parts == recorder.parts


def call(recorder: AnswerRecorder, number: int) -> None:
    recorder.tool_start(f"call_{number:059}", "refund")
    recorder.tool_input(f"call_{number:059}", {})


def alternate(recorder: AnswerRecorder, _: int) -> None:
    recorder.reasoning("\U0001f600")
    recorder.text("\U0001f600")


def emit(recorder: AnswerRecorder, _: int) -> None:
    recorder.data(DataPart(name="map", data=""))


def hide(recorder: AnswerRecorder, _: int) -> None:
    recorder.seal_reasoning({})


@pytest.mark.parametrize("add", [call, alternate, emit, hide])
def test_an_answer_of_any_number_of_small_parts_fits_into_a_document(
    add: Callable[[AnswerRecorder, int], None],
) -> None:
    recorder = AnswerRecorder(lambda _: None)
    recorder.start_step()

    def go_on() -> None:
        for number in range(20_000):
            add(recorder, number)

    with pytest.raises(AnswerTooLong):
        go_on()
    recorder.add_paragraph("Sorry.")
    recorder.close()
    assert recorder.parts[-1].type == "text"
    assert len(bson.encode({"parts": [part.model_dump() for part in recorder.parts]})) < 16 * 1024 * 1024
