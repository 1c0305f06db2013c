"""Rolling summaries: turns folded into the previous summary, piece by piece when they do not fit into one call."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from omniagent.ai import prompts
from omniagent.ai.providers.llm_provider import LLMProvider, ModelRequest, Overrides
from omniagent.ai.providers.model_calls import complete
from omniagent.errors import EmptyAnswer
from omniagent.messages import ChatMessage
from omniagent.session import window
from omniagent.session.manager import NewSummary, SummaryState
from omniagent.settings import Settings


async def summarize_turns(
    provider: LLMProvider, previous: SummaryState | None, turns: Sequence[window.PastTurn], settings: Settings
) -> NewSummary:
    """Fold the turns after the previous summary into it.

    The new summary starts right where the previous one ends, also when the first of these turns were deleted.
    Raises a `ModelError` when a piece could not be summarized: half a summary is none.
    """
    start = previous.end_turn_number + 1 if previous else 1
    if not turns or turns[0].number < start:
        raise ValueError(f"a summary from turn {start} on cannot be made of {[turn.number for turn in turns]}")
    overrides = Overrides(model=settings.summary_model or None)
    content, tokens = (previous.content, 0) if previous else ("", 0)
    # Half of the input is kept for the summary so far, which grows with every piece.
    for piece in _pieces(turns, settings.summary_input_tokens // 2):
        kept = _cut(content, settings.summary_input_tokens // 2)
        asked = [ChatMessage.user(prompts.summary_input(kept or None, piece))]
        request = ModelRequest(prompts.SUMMARIZE, asked, overrides=overrides)
        answer = await complete(provider, request, purpose="summary")
        if not answer.text:
            raise EmptyAnswer("the model returned an empty summary")
        content, tokens = answer.text, answer.usage.output_tokens
    return NewSummary(
        content=content,
        token_count=tokens or window.estimate_text(content),
        start_turn_number=start,
        end_turn_number=turns[-1].number,
    )


def _pieces(turns: Sequence[window.PastTurn], max_tokens: int) -> Iterator[list[ChatMessage]]:
    """Yield the messages of each call. A piece of which nothing is left to tell is left out."""
    lines = [line for turn in turns for line in _lines(turn, max_tokens)]
    for piece in window.pieces(lines, max_tokens):
        yield [message for line in piece for message in line.messages]


def _lines(turn: window.PastTurn, max_tokens: int) -> Iterator[window.PastTurn]:
    """Yield a turn as it will be read: one line a message, a line that is too long in several."""
    for message in window.messages_of([turn]):
        text = prompts.transcript_line(message).removeprefix(f"{message.role}: ")
        for part in _split(text, max_tokens):
            said = ChatMessage.user(part) if message.role == "user" else ChatMessage.assistant(part)
            yield replace(turn, messages=(said,), tokens=window.estimate_text(part))


def _split(text: str, max_tokens: int) -> Iterator[str]:
    size = _characters(text, max_tokens)
    yield from (text[start : start + size] for start in range(0, len(text), size))


def _cut(text: str, max_tokens: int) -> str:
    return text[: _characters(text, max_tokens)]


def _characters(text: str, tokens: int) -> int:
    """How many characters of the text fit into so many tokens, by the same measure as `estimate_text`."""
    return max(1, (tokens - 1) * (4 if text.isascii() else 1))
