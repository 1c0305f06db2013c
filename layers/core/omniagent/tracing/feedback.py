"""Feedback on an answer, recorded in the trace of its turn."""

from typing import Any, Final, Literal

from . import attributes as names
from . import spans

NAME: Final = "user_feedback"
FEEDBACK_SPAN: Final = "feedback"
_SCORES: Final = {"up": 1, "down": 0}


def record_feedback(
    message_id: str, rating: Literal["up", "down"] | None, text: str | None, *, traceparent: str | None
) -> None:
    """Record a user's feedback on an answer. Without a rating and a text, record that it was withdrawn.

    The span joins the turn's trace if its `traceparent` is known, and annotates that trace. The message's id identifies
    the annotation: the newest one counts.
    """
    recorder = spans.active_recorder()
    if recorder is None:
        return
    score, label = _SCORES.get(rating or ""), rating or ("comment" if text else "withdrawn")
    annotation: dict[str, Any] = {
        names.ANNOTATION_NAME: NAME,
        names.ANNOTATION_SCORE: score,
        names.ANNOTATION_LABEL: label,
        names.ANNOTATION_EXPLANATION: text or None,
        names.ANNOTATION_ANNOTATOR_KIND: "HUMAN",
        names.ANNOTATION_IDENTIFIER: message_id,
    }
    event = {
        names.GEN_AI_EVALUATION_NAME: NAME,
        names.GEN_AI_EVALUATION_SCORE_VALUE: score,
        names.GEN_AI_EVALUATION_SCORE_LABEL: label,
        names.GEN_AI_EVALUATION_EXPLANATION: text or None,
        names.GEN_AI_RESPONSE_ID: message_id,
    }
    # Without the turn's trace, they would annotate the trace of the feedback request.
    attributes = {f"{names.TRACE_ANNOTATIONS}.0.{name}": value for name, value in annotation.items()}
    recorder.annotate(FEEDBACK_SPAN, traceparent, attributes if traceparent else {}, event)
