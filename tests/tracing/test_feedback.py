"""Feedback joins the trace of the turn that it is about, however much later it comes."""

import pytest

from omniagent.messages import Feedback
from omniagent.testing import ScriptedModel
from omniagent.tracing import OmniAgentInstrumentor, trace_operation

from .conftest import Recorded, guide

ANNOTATION = "trace.annotations.0.annotation"
COMMENT = "the comment of the user"


async def rated(feedback: Feedback | None, traced: Recorded | None = None) -> str:
    """Answer, then rate the answer in another request. Returns the answer's id.

    With `traced`, tracing is turned on again after the answer.
    """
    runner = guide(ScriptedModel("Hello."))
    if traced is not None:
        OmniAgentInstrumentor().uninstrument()
    with trace_operation("chat request"):
        stream = await runner.start("Hi.")
        result = await stream.result()
        await stream.ended()
    if traced is not None:
        OmniAgentInstrumentor().instrument(traced.provider)
    with trace_operation("rating request"):
        await runner.rate(result.message_id, feedback)
    return result.message_id


async def test_feedback_annotates_the_turns_trace(recorded_with_content: Recorded) -> None:
    message_id = await rated(Feedback(rating="down", text=COMMENT))
    span, spans = recorded_with_content["feedback"], recorded_with_content
    assert spans.parent("feedback") == "turn"
    annotation = {key: value for key, value in spans.attributes("feedback").items() if key.startswith(ANNOTATION)}
    assert annotation == {
        f"{ANNOTATION}.name": "user_feedback",
        f"{ANNOTATION}.score": 0,
        f"{ANNOTATION}.label": "down",
        f"{ANNOTATION}.explanation": COMMENT,
        f"{ANNOTATION}.annotator_kind": "HUMAN",
        f"{ANNOTATION}.identifier": message_id,
    }
    own = spans.attributes("feedback")
    assert (own["session.id"], own["omniagent.turn_number"]) == ("s-1", 1)
    [event] = span.events
    assert event.name == "gen_ai.evaluation.result"
    assert dict(event.attributes or {}) == {
        "gen_ai.evaluation.name": "user_feedback",
        "gen_ai.evaluation.score.value": 0,
        "gen_ai.evaluation.score.label": "down",
        "gen_ai.evaluation.explanation": COMMENT,
        "gen_ai.response.id": message_id,
    }
    [link] = span.links
    assert link.context == spans["rating request"].context


@pytest.mark.parametrize(
    ("feedback", "label"),
    [(Feedback(rating="up"), "up"), (Feedback(text=COMMENT), "comment"), (None, "withdrawn")],
)
async def test_feedback_without_content_tells_its_label_only(
    recorded: Recorded, feedback: Feedback | None, label: str
) -> None:
    await rated(feedback)
    assert recorded.attributes("feedback")[f"{ANNOTATION}.label"] == label
    assert COMMENT not in recorded.everything()


async def test_feedback_on_a_turn_that_was_not_traced_is_in_its_own_request(recorded: Recorded) -> None:
    message_id = await rated(Feedback(rating="up"), traced=recorded)
    assert recorded.parent("feedback") == "rating request"
    assert not any(key.startswith(ANNOTATION) for key in recorded.attributes("feedback"))
    [event] = recorded["feedback"].events
    assert dict(event.attributes or {})["gen_ai.response.id"] == message_id
