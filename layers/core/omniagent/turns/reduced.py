"""An answer that no document can hold, reduced to what every store accepts."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from omniagent.errors import AnswerTooLong
from omniagent.messages import Part, SteeringPart, StepPart, TextPart, ToolPart, close_open_calls
from omniagent.session.live import SessionMessage

REDUCED_CHARS = 100_000
"""Maximum text kept of the answer."""
REDUCED_CALL_CHARS = 1_000
"""The same for the arguments and the result of each of its tool calls."""


def reduced(answer: SessionMessage) -> SessionMessage:
    """Return a failed answer with the truncated text and the tool calls.

    The calls are kept, so that none is run again when the message is retried.
    """
    error = AnswerTooLong()
    failed = {"status": "failed", "finishReason": "error", "errorCode": error.code, "errorText": error.public}
    metadata = {**answer.metadata, **failed}
    return replace(answer, parts=_reduced_parts(answer.parts), status="failed", metadata=metadata)


def _reduced_parts(parts: Sequence[Part]) -> list[Part]:
    kept: list[Part] = []
    left = REDUCED_CHARS
    for part in parts:
        if isinstance(part, TextPart) and left:
            kept.append(TextPart(text=part.text[:left]))
            left -= min(left, len(part.text))
        elif isinstance(part, ToolPart):
            kept.append(_reduced_call(part))
        elif isinstance(part, StepPart | SteeringPart):
            kept.append(part)
    return close_open_calls(kept)


def _reduced_call(part: ToolPart) -> ToolPart:
    arguments, output = _cut(part.input), _cut(part.output)
    if arguments is not part.input and not isinstance(part.input, str):
        arguments = {"cut": arguments}  # plain text would mean an incomplete call
    texts = {name: text[:REDUCED_CALL_CHARS] for name in ("error", "public_error") if (text := getattr(part, name))}
    return part.model_copy(update={"input": arguments, "output": output, **texts})


def _cut(value: Any) -> Any:
    """Return a short value unchanged, otherwise the beginning of its JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= REDUCED_CALL_CHARS else text[:REDUCED_CALL_CHARS]
