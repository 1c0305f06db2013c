"""What the model is shown of a session: properties that hold for every conversation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from omniagent.messages import ChatMessage, Part, ReasoningPart, StepPart, TextPart, ToolPart
from omniagent.session import window
from omniagent.session.manager import SessionManager, SessionState, StoredMessage, SummaryState, TurnRecord
from omniagent.session.window import Limits, PastTurn
from omniagent.settings import Settings

texts = st.text(max_size=40)
parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(StepPart),
    st.builds(TextPart, text=texts),
    st.builds(ReasoningPart, text=texts),
    st.builds(
        ToolPart,
        call_id=st.uuids().map(str),
        name=st.sampled_from(["add", "look up", ""]),
        input=st.none() | texts | st.dictionaries(texts, st.integers(), max_size=2),
        output=st.none() | texts | st.lists(st.integers(), max_size=3),
        error=st.none() | texts,
        done=st.booleans(),
    ),
)
answers = st.builds(ChatMessage, role=st.just("assistant"), parts=st.lists(parts, max_size=5))
exchanges = st.tuples(texts.map(ChatMessage.user), answers)


def numbered(sizes: list[tuple[int, int]]) -> list[PastTurn]:
    """Turns in order. Numbers are missing where turns were deleted."""
    numbers = accumulate(step for step, _ in sizes)
    return [PastTurn(number, (), tokens) for number, (_, tokens) in zip(numbers, sizes, strict=True)]


def turns(min_size: int = 0) -> st.SearchStrategy[list[PastTurn]]:
    """Turns of which only the number and the size matter."""
    sizes = st.tuples(st.integers(1, 3), st.integers(0, 300))
    return st.lists(sizes, min_size=min_size, max_size=12).map(numbered)


told = st.lists(exchanges, max_size=3).map(
    lambda said: [PastTurn(number, messages, 1) for number, messages in enumerate(said, 1)]
)


limits = st.builds(Limits, max_turns=st.integers(1, 10), max_tokens=st.integers(1, 1000))


@given(turns(), st.integers(0, 20), limits)
def test_the_window_is_an_unbroken_run_of_the_newest_turns_after_the_summary(
    history: list[PastTurn], summarized_to: int, limits: Limits
) -> None:
    chosen = window.window(history, summarized_to=summarized_to, limits=limits)
    unsummarized = [turn for turn in history if turn.number > summarized_to]
    assert chosen == unsummarized[len(unsummarized) - len(chosen) :]


@given(turns(min_size=1), limits)
def test_the_newest_turn_is_always_in(history: list[PastTurn], limits: Limits) -> None:
    assert window.window(history, summarized_to=0, limits=limits)[-1] == history[-1]


@given(turns(), st.integers(0, 20), limits)
def test_the_budget_is_kept_and_used(history: list[PastTurn], summarized_to: int, limits: Limits) -> None:
    chosen = window.window(history, summarized_to=summarized_to, limits=limits)
    tokens = sum(turn.tokens for turn in chosen)
    assert len(chosen) <= limits.max_turns
    assert tokens <= limits.max_tokens or len(chosen) == 1
    left_out = [turn for turn in history if turn.number > summarized_to and turn not in chosen]
    if left_out and len(chosen) < limits.max_turns:
        assert tokens + left_out[-1].tokens > limits.max_tokens


@given(told)
def test_every_tool_call_that_is_shown_has_a_result_and_no_message_is_empty(history: list[PastTurn]) -> None:
    for message in window.messages_of(history):
        assert any(isinstance(part, TextPart | ToolPart) for part in message.parts)
        assert all(part.done for part in message.parts if isinstance(part, ToolPart))


@given(told)
def test_messages_keep_their_order_and_their_text(history: list[PastTurn]) -> None:
    said = [message.text for turn in history for message in turn.messages if message.text]
    assert [message.text for message in window.messages_of(history) if message.text] == said


@given(turns(), st.integers(0, 20), limits)
def test_a_summary_is_due_when_either_limit_is_reached(
    history: list[PastTurn], summarized_to: int, limits: Limits
) -> None:
    since = [turn for turn in history if turn.number > summarized_to]
    is_due = window.summary_is_due(history, summarized_to=summarized_to, limits=limits)
    assert is_due == (len(since) >= limits.max_turns or sum(turn.tokens for turn in since) >= limits.max_tokens)


@given(turns(), st.integers(1, 500))
def test_pieces_are_the_whole_in_order_and_fit(history: list[PastTurn], max_tokens: int) -> None:
    cut = window.pieces(history, max_tokens)
    assert [turn for piece in cut for turn in piece] == history
    assert all(len(piece) == 1 or sum(turn.tokens for turn in piece) <= max_tokens for piece in cut)
    assert all(cut)


@given(texts, texts)
def test_more_text_is_never_fewer_tokens(text: str, more: str) -> None:
    assert 1 <= window.estimate_text(text) <= window.estimate_text(text + more) <= len(text + more) + 1


@given(st.lists(parts, max_size=5), st.integers(1, 1000))
def test_an_answer_that_was_counted_is_estimated_only_where_its_tools_spoke(
    answer: list[Part], output_tokens: int
) -> None:
    tools = [part for part in answer if isinstance(part, ToolPart)]
    counted = window.estimate_answer(answer, output_tokens)
    assert counted >= output_tokens + len(tools)
    assert tools or counted == output_tokens


class Memory(SessionManager):
    """Only what is decided: nothing is read or written."""

    async def load(self, message_id: str | None = None) -> SessionState:
        raise NotImplementedError

    async def answer(self, turn_number: int) -> StoredMessage | None:
        raise NotImplementedError

    async def begin_turn(self, **_: Any) -> None:
        raise NotImplementedError

    async def restart_turn(self, **_: Any) -> None:
        raise NotImplementedError

    async def finish_turn(self, record: TurnRecord) -> None:
        raise NotImplementedError

    async def repair_turn(self, turn_id: str, parts: Sequence[Part]) -> bool:
        raise NotImplementedError

    async def running_turns(self) -> Any:
        raise NotImplementedError


@dataclass
class Played:
    """A whole conversation, played with the decisions of a `SessionManager` and a store that keeps what it is told."""

    session: Memory
    stored: list[PastTurn] = field(default_factory=list)
    summaries: list[tuple[int, int]] = field(default_factory=list)

    @property
    def summarized_to(self) -> int:
        return self.summaries[-1][1] if self.summaries else 0

    def state(self) -> SessionState:
        """What a turn loads: the newest turns, one more than the window."""
        settings = self.session.settings
        loaded = max(settings.context_max_turns, settings.summary_after_turns) + 1
        newest = [turn for turn in self.stored if turn.number > self.summarized_to][-loaded:]
        summary = SummaryState("id", "So far.", self.summarized_to) if self.summaries else None
        return SessionState(latest_turn_number=len(self.stored), summary=summary, turns=newest)

    def turn(self, tokens: int, *, summary_works: bool) -> SessionState:
        number, state = len(self.stored) + 1, self.state()
        due = self.session.turns_to_summarize(state, number)
        if due and summary_works:
            self.summaries.append((due[0].number, due[-1].number))
        question = ChatMessage.user(f"question {number}")
        self.stored.append(PastTurn(number, (question, ChatMessage.assistant(f"answer {number}")), tokens))
        return state


@given(
    played=st.lists(st.tuples(st.integers(1, 200), st.booleans()), max_size=60),
    window_turns=st.integers(1, 8),
    summary_turns=st.integers(1, 8),
    summary_tokens=st.integers(50, 600),
)
def test_summaries_and_window_show_every_turn_once_or_say_that_there_is_a_gap(
    played: list[tuple[int, bool]], window_turns: int, summary_turns: int, summary_tokens: int
) -> None:
    settings = Settings(
        context_max_turns=window_turns,
        context_max_tokens=1_000_000,
        summary_after_turns=summary_turns,
        summary_after_tokens=summary_tokens,
    )
    conversation = Played(Memory("ada", "s", settings=settings))
    for tokens, summary_works in played:
        state = conversation.turn(tokens, summary_works=summary_works)
        # Every summary begins right after the one before it.
        ends = [0, *(end for _, end in conversation.summaries)]
        assert [start for start, _ in conversation.summaries] == [end + 1 for end in ends[:-1]]
        # It covers the turns up to the previous one, exactly.
        if conversation.summaries and conversation.summaries[-1][1] > state.summarized_to:
            assert conversation.summaries[-1][1] == len(conversation.stored) - 1
        shown = [message.text for message in conversation.session.visible_messages(state, len(conversation.stored))]
        unsummarized = range(state.summarized_to + 1, len(conversation.stored))
        expected = [text for number in unsummarized for text in (f"question {number}", f"answer {number}")]
        assert shown == expected[-2 * window_turns :]


@given(
    history=turns(min_size=1),
    summarized_to=st.integers(0, 20),
    summary_turns=st.integers(1, 5),
)
def test_a_summary_is_never_made_of_turns_with_a_hole_before_them(
    history: list[PastTurn], summarized_to: int, summary_turns: int
) -> None:
    session = Memory("ada", "s", settings=Settings(summary_after_turns=summary_turns))
    summary = SummaryState("id", "So far.", summarized_to) if summarized_to else None
    state = SessionState(latest_turn_number=history[-1].number, summary=summary, turns=history)
    due = session.turns_to_summarize(state, history[-1].number + 1)
    if due:
        assert due[0].number == summarized_to + 1
        assert [*due] == [turn for turn in history if turn.number > summarized_to]
