"""What the model is shown of a session. Pure functions: no clock, no database."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from omniagent.messages import (
    ChatMessage,
    DataPart,
    Part,
    ReasoningPart,
    StepPart,
    TextPart,
    ToolPart,
    close_open_calls,
)


@dataclass(frozen=True, slots=True)
class PastTurn:
    """One stored turn: the user's message, the answer, or what is left of them."""

    number: int
    messages: tuple[ChatMessage, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Limits:
    max_turns: int
    max_tokens: int


def window(turns: Sequence[PastTurn], *, summarized_to: int, limits: Limits) -> list[PastTurn]:
    """Return the newest turns after the summary that fit, in order.

    The newest turn is always in, even when it alone is over the budget: an answer without the question before it
    helps nobody. Nothing is skipped in between, so the model never sees a conversation with a hole.
    """
    chosen: list[PastTurn] = []
    budget = limits.max_tokens
    for turn in reversed(turns):
        budget -= turn.tokens
        if turn.number <= summarized_to or len(chosen) == limits.max_turns or (chosen and budget < 0):
            break
        chosen.append(turn)
    return chosen[::-1]


def messages_of(turns: Sequence[PastTurn]) -> list[ChatMessage]:
    """Flatten turns into messages that every model API accepts: each tool call has a result, none is empty."""
    repaired = (
        ChatMessage(role=message.role, parts=close_open_calls(message.parts))
        for turn in turns
        for message in turn.messages
    )
    return [message for message in repaired if any(isinstance(part, TextPart | ToolPart) for part in message.parts)]


def summary_is_due(turns: Sequence[PastTurn], *, summarized_to: int, limits: Limits) -> bool:
    """Whether the turns since the last summary have reached one of the limits."""
    since = [turn for turn in turns if turn.number > summarized_to]
    return len(since) >= limits.max_turns or sum(turn.tokens for turn in since) >= limits.max_tokens


def pieces(turns: Sequence[PastTurn], max_tokens: int) -> list[list[PastTurn]]:
    """Cut turns into runs of at most `max_tokens` each; a longer turn stands alone."""
    cut: list[list[PastTurn]] = []
    room = 0
    for turn in turns:
        if not cut or turn.tokens > room:
            cut.append([])
            room = max_tokens
        cut[-1].append(turn)
        room -= turn.tokens
    return cut


def estimate_parts(parts: Sequence[Part]) -> int:
    """Estimate the tokens of a message that no provider has counted yet."""
    return sum(_estimate_part(part) for part in parts)


def estimate_answer(parts: Sequence[Part], output_tokens: int) -> int:
    """The tokens of an answer: what the provider counted as output, and an estimate of what the tools returned."""
    if not output_tokens:
        return estimate_parts(parts)
    return output_tokens + sum(_estimate_result(part) for part in parts if isinstance(part, ToolPart))


def estimate_text(text: str) -> int:
    """About four characters of ASCII make a token; other scripts take about one token each."""
    ascii_characters = sum(map(str.isascii, text)) if not text.isascii() else len(text)
    return ascii_characters // 4 + (len(text) - ascii_characters) + 1


def _estimate_part(part: Part) -> int:
    match part:
        case TextPart():
            return estimate_text(part.text)
        case ToolPart():
            return estimate_text(part.name) + estimate_text(_as_text(part.input)) + _estimate_result(part)
        case ReasoningPart() | StepPart() | DataPart():
            return 0  # not shown to the model again


def _estimate_result(part: ToolPart) -> int:
    return estimate_text(part.error if part.error is not None else _as_text(part.output))


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
