"""Summaries cover their turns exactly, whatever fits into one call of the model."""

from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omniagent.session.summarizer import summarize_turns

from omniagent.ai.providers.llm_provider import LLMProvider, ModelEvent, ModelFinish, ModelRequest, ModelText
from omniagent.errors import EmptyAnswer
from omniagent.messages import ChatMessage, ToolPart, Usage
from omniagent.session.manager import SummaryState
from omniagent.session.window import PastTurn, estimate_text
from omniagent.settings import Settings


class Echo(LLMProvider):
    """Answers every call with what it was given, or with a fixed text, and keeps the requests."""

    def __init__(self, answer: str | None = None) -> None:
        super().__init__("echo")
        self.answer = answer
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(request)
        yield ModelText(f"summary {len(self.requests)}" if self.answer is None else self.answer)
        yield ModelFinish("stop", Usage(10, 7))

    @property
    def inputs(self) -> list[str]:
        return [request.messages[0].text for request in self.requests]


def turn(number: int, question: str, answer: str = "Yes.") -> PastTurn:
    messages = (ChatMessage.user(question), ChatMessage.assistant(answer))
    return PastTurn(number, messages, sum(estimate_text(message.text) for message in messages))


async def test_turns_that_fit_are_summarized_in_one_call() -> None:
    provider = Echo()
    summary = await summarize_turns(provider, None, [turn(1, "One?"), turn(2, "Two?")], Settings(summary_model="small"))
    assert (summary.content, summary.token_count) == ("summary 1", 7)
    assert (summary.start_turn_number, summary.end_turn_number) == (1, 2)
    assert [request.overrides.model for request in provider.requests] == ["small"]
    assert provider.inputs[0].endswith("user: One?\nassistant: Yes.\nuser: Two?\nassistant: Yes.")


async def test_a_summary_begins_where_the_previous_one_ended_even_if_that_turn_was_deleted() -> None:
    previous = SummaryState("id", "Ada likes tea.", 3)
    provider = Echo()
    summary = await summarize_turns(provider, previous, [turn(6, "Six?")], Settings())
    assert (summary.start_turn_number, summary.end_turn_number) == (4, 6)
    assert "Ada likes tea." in provider.inputs[0]


async def test_each_piece_is_folded_into_the_summary_of_those_before() -> None:
    provider = Echo()
    turns = [turn(number, f"Question {number}? " + "word " * 30) for number in (1, 2, 3)]
    summary = await summarize_turns(provider, None, turns, Settings(summary_input_tokens=120))
    assert summary.content == "summary 3"
    assert ["summary 1" in provider.inputs[1], "summary 2" in provider.inputs[2]] == [True, True]


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=900), min_size=1, max_size=6),
    budget=st.integers(50, 400),
)
async def test_no_call_is_larger_than_allowed_and_no_text_is_lost(texts: list[str], budget: int) -> None:
    provider = Echo("S")
    turns = [turn(number, text) for number, text in enumerate(texts, 1)]
    await summarize_turns(provider, None, turns, Settings(summary_input_tokens=budget))
    transcripts = [text.partition("# New messages\n")[2] for text in provider.inputs]
    frame = estimate_text("# Previous summary\n(none)\n\n# New messages\n")
    assert all(estimate_text(text) <= budget + frame for text in provider.inputs)
    read = "".join(transcripts).replace("user: ", "").replace("assistant: ", "").replace("\n", "")
    assert all(text.replace("user: ", "").replace("assistant: ", "").replace("\n", "")[:20] in read for text in texts)


async def test_turns_without_text_cost_no_call_and_keep_the_summary() -> None:
    provider = Echo()
    silent = PastTurn(4, (ChatMessage(role="assistant", parts=[]),), 0)
    summary = await summarize_turns(provider, SummaryState("id", "So far.", 3), [silent], Settings())
    assert (summary.content, summary.end_turn_number, provider.requests) == ("So far.", 4, [])


async def test_an_unfinished_tool_call_is_told_as_interrupted() -> None:
    provider = Echo()
    call = ChatMessage(role="assistant", parts=[ToolPart(call_id="1", name="weather", input={"city": "Lisbon"})])
    await summarize_turns(provider, None, [PastTurn(1, (ChatMessage.user("Rain?"), call), 9)], Settings())
    assert "[called weather: The tool call was interrupted" in provider.inputs[0]


async def test_an_empty_summary_is_refused() -> None:
    with pytest.raises(EmptyAnswer):
        await summarize_turns(Echo(""), None, [turn(1, "One?")], Settings())


@pytest.mark.parametrize("turns", [[], [turn(3, "Three?")]])
async def test_turns_that_are_summarized_already_are_refused(turns: list[PastTurn]) -> None:
    with pytest.raises(ValueError, match="from turn 4"):
        await summarize_turns(Echo(), SummaryState("id", "So far.", 3), turns, Settings())
