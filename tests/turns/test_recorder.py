"""The recorder keeps everything that the model has to be handed back."""

from omniagent.messages import ReasoningPart, StepPart, TextPart
from omniagent.protocol.events import StreamEvent
from omniagent.turns.recorder import AnswerRecorder


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
