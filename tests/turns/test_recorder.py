"""The recorder keeps everything that the model has to be handed back."""

from omniagent.messages import ReasoningPart, StepPart, TextPart
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
