"""What the model is shown of a session: properties that hold for every conversation."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omniagent.messages import ChatMessage, DataPart, Part, ReasoningPart, SteeringPart, StepPart, TextPart, ToolPart
from omniagent.providers import ModelRequest
from omniagent.session import window
from omniagent.session.window import Limits, PastTurn, RollingSummary

texts = st.text(max_size=40)
parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(StepPart),
    st.builds(TextPart, text=texts),
    st.builds(
        ReasoningPart,
        text=texts,
        provider_data=st.none() | st.integers(0, 2000).map(lambda n: {"encrypted_content": "x" * n}),
    ),
    st.builds(DataPart, name=st.just("map"), data=texts),
    st.builds(SteeringPart, message_id=st.just("m2"), text=texts),
    st.builds(
        ToolPart,
        call_id=st.uuids().map(str),
        name=st.sampled_from(["add", "look up", ""]),
        input=st.none() | texts | st.dictionaries(texts, st.integers(), max_size=2),
        output=st.none() | texts | st.lists(st.integers(), max_size=3) | st.integers(1, 9).map(lambda n: "x" * 900 * n),
        error=st.none() | texts,
        done=st.booleans(),
    ),
)
answers = st.builds(ChatMessage, role=st.just("assistant"), parts=st.lists(parts, max_size=5))
exchanges = st.tuples(texts.map(ChatMessage.user), answers)


def numbered(sizes: list[tuple[int, int]]) -> list[PastTurn]:
    """Turns in order, of which only number and size matter. Numbers are missing where turns were deleted."""
    numbers = accumulate(step for step, _ in sizes)
    return [PastTurn(number, (), tokens) for number, (_, tokens) in zip(numbers, sizes, strict=True)]


def past(number: int, messages: tuple[ChatMessage, ...]) -> PastTurn:
    return PastTurn(number, messages, sum(window.estimate_parts(message.parts) for message in messages))


turns = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 300)), max_size=12).map(numbered)
told = st.lists(exchanges, max_size=4).map(lambda said: [past(number, each) for number, each in enumerate(said, 1)])
limits = st.builds(Limits, max_turns=st.integers(1, 10), max_tokens=st.integers(64, 3000))


HUGE = [past(1, (ChatMessage.user("Tell me all."), ChatMessage.assistant("word " * 120_000)))]


@given(told, limits)
@example(HUGE, Limits(30, 32_000))
def test_the_window_is_an_unbroken_run_of_the_newest_turns_within_the_budget(
    history: list[PastTurn], limits: Limits
) -> None:
    chosen = window.window(history, limits)
    numbers = [turn.number for turn in chosen]
    assert numbers == [turn.number for turn in history][len(history) - len(chosen) :]
    fits = len(history) <= limits.max_turns and sum(turn.tokens for turn in history) <= limits.max_tokens
    assert not fits or chosen == history
    assert len(chosen) <= limits.max_turns
    assert chosen or not history, "the newest turn is shown, at least in part"
    assert sum(turn.tokens for turn in chosen) <= limits.max_tokens
    shown = sum(window.estimate_parts(message.parts) for turn in chosen for message in turn.messages)
    assert shown <= limits.max_tokens


def test_a_turn_that_does_not_fit_loses_its_tool_outputs_first() -> None:
    call = ToolPart(call_id="1", name="search", input={"q": "x"}, output="y" * 40_000, done=True)
    big = past(1, (ChatMessage.user("Find it."), ChatMessage(role="assistant", parts=[call, TextPart(text="Found.")])))
    last = past(2, (ChatMessage.user("Thanks."), ChatMessage.assistant("Any time.")))
    [question, answer, *_] = window.messages_of(window.window([big, last], Limits(10, 1000)))
    assert (question.text, answer.text) == ("Find it.", "Found.")
    assert [len(str(part.output)) for part in answer.parts if isinstance(part, ToolPart)] == [506]


def test_within_a_turn_the_outputs_of_older_steps_are_cut_first_and_the_budget_holds() -> None:
    steps = [ToolPart(call_id=str(n), name="read", input={}, output="z" * 20_000, done=True) for n in range(8)]
    messages = window.compose([], Limits(30, 12_000), ChatMessage.user("Read all."), steps)
    sizes = [len(str(part.output)) for part in messages[-1].parts if isinstance(part, ToolPart)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 20_000
    assert sum(window.estimate_parts(message.parts) for message in messages) <= 12_000


@given(told, limits, st.lists(parts, max_size=4))
@example(HUGE, Limits(30, 3_000), [TextPart(text="word " * 2_000)])
def test_history_gives_way_to_the_answer_so_far(history: list[PastTurn], limits: Limits, answer: list[Part]) -> None:
    question = ChatMessage.user("And now?")
    messages = window.compose(history, limits, question, answer)
    assert question in messages
    rest = sum(window.estimate_parts(message.parts) for message in messages)
    fixed = window.estimate_parts(question.parts) + window.estimate_parts(window.fit_answer(answer, 0))
    assert rest <= max(limits.max_tokens, fixed)


def test_returned_reasoning_counts_and_a_turn_too_long_keeps_its_texts() -> None:
    thought = ReasoningPart(text="", provider_data={"id": "r1", "encrypted_content": "x" * 20_000})
    call = ToolPart(call_id="1", name="look", input={}, output="y" * 8_000, done=True)
    answer: list[Part] = [StepPart(), thought, call, StepPart(), TextPart(text="Seen.")]
    before = past(1, (ChatMessage.user("Hello?"), ChatMessage.assistant("word " * 2_000)))
    messages = window.compose([before], Limits(30, 6_000), ChatMessage.user("Look."), answer[:3])
    assert sum(window.estimate_parts(message.parts) for message in messages) <= 6_000
    assert messages[-1].parts[1] == thought, "its API requires it back"
    assert len(str(messages[-1].parts[2])) < 1_000
    earlier = past(1, (ChatMessage.user("Look."), ChatMessage(role="assistant", parts=answer)))
    shown = window.messages_of(window.window([earlier], Limits(30, 1_000)))
    assert [message.text for message in shown] == ["Look.", "Seen."]
    assert shown[-1].parts == [TextPart(text="Seen.")]


def test_an_estimated_call_counts_the_reasoning_of_its_own_turn_once() -> None:
    thought = ReasoningPart(text="Hm." * 100, provider_data={"field": "reasoning_content"})
    said = [ChatMessage.user("Look."), ChatMessage(role="assistant", parts=[thought, TextPart(text="Seen.")])]
    tokens, question = window.estimate_text(thought.text), ChatMessage.user("And now?")
    plain = window.estimate_request(ModelRequest("", [*said[:1], ChatMessage.assistant("Seen."), question]))
    assert window.estimate_request(ModelRequest("", [*said, question])) == plain
    assert window.estimate_request(ModelRequest("", [question, *said])) == plain + tokens
    usage = window.estimate_call(ModelRequest("", [question]), said[1].parts)
    assert (usage.reasoning_tokens, usage.output_tokens) == (tokens, tokens + window.estimate_text("Seen."))


@given(told)
def test_messages_keep_order_and_text_and_every_call_has_a_result(
    history: list[PastTurn],
) -> None:
    for message in window.messages_of(history):
        assert any(isinstance(part, TextPart | ToolPart) for part in message.parts)
        assert all(part.done for part in message.parts if isinstance(part, ToolPart))
    parts = [part for turn in history for message in turn.messages for part in message.parts]
    said = [part.text for part in parts if isinstance(part, TextPart | SteeringPart) and part.text]
    shown = [part for message in window.messages_of(history) for part in message.parts]
    assert [part.text for part in shown if isinstance(part, TextPart) and part.text] == said
    assert not any(isinstance(part, SteeringPart) for part in shown)


def test_a_message_that_joined_an_answer_is_the_users_in_its_place_now_and_later() -> None:
    call = ToolPart(call_id="1", name="look", input={}, output="seen", done=True)
    answer: list[Part] = [
        StepPart(),
        TextPart(text="Looking."),
        call,
        SteeringPart(message_id="m2", text="Be brief."),
        SteeringPart(message_id="m3", text="In French."),
        StepPart(),
        TextPart(text="Voilà."),
    ]
    question = ChatMessage.user("What is there?")
    said = [
        ("user", "What is there?"),
        ("assistant", "Looking."),
        ("user", "Be brief."),
        ("user", "In French."),
    ]
    now = window.compose([], Limits(30, 1000), question, answer[:5])
    assert [(message.role, message.text) for message in now] == said
    turn = past(1, (question, ChatMessage(role="assistant", parts=answer)))
    later = window.compose([turn], Limits(30, 1000), ChatMessage.user("And now?"))
    assert [(message.role, message.text) for message in later] == [
        *said,
        ("assistant", "Voilà."),
        ("user", "And now?"),
    ]
    assert later[1].parts == answer[:3]


@given(turns, st.integers(0, 20), limits)
def test_a_summary_is_due_after_half_a_window(history: list[PastTurn], summarized_to: int, limits: Limits) -> None:
    since = [turn for turn in history if turn.number > summarized_to]
    is_due = window.summary_is_due(history, limits, RollingSummary("", 0, 1, summarized_to))
    tokens = sum(turn.tokens for turn in since)
    assert is_due == (2 * len(since) >= limits.max_turns or 2 * tokens >= limits.full_tokens) or not since


def starts(tokens: int, *, summaries: bool = True) -> list[int]:
    """Return the first turn of the window at each of 200 turns. A summary is there one turn after it was due."""
    limits, history, found, summary = Limits(30, 32_000), list[PastTurn](), list[int](), None
    for number in range(1, 201):
        read = history[-limits.max_turns - 1 :]
        shown = window.window(read, limits, summary, room=limits.max_tokens - tokens)
        found.append(shown[0].number if shown else 1)
        if summaries and window.summary_is_due(read, limits, summary):
            summary = RollingSummary("", 0, 1, number - 1)
        history.append(PastTurn(number, (), tokens))
    return found


@pytest.mark.parametrize(("tokens", "share"), [(200, 0.85), (500, 0.85), (1000, 0.85), (2000, 0.8)])
def test_most_of_the_prompt_repeats_the_one_before(tokens: int, share: float) -> None:
    firsts = starts(tokens)
    sizes = [number - first for number, first in enumerate(firsts, 1)]
    repeated = [size for size, first, after in zip(sizes, firsts, firsts[1:], strict=False) if first == after]
    assert sum(repeated) / sum(sizes) >= share


@pytest.mark.parametrize("tokens", [200, 2000])
def test_without_a_summary_the_window_also_moves_in_large_steps(tokens: int) -> None:
    firsts = starts(tokens, summaries=False)
    steps = [after - first for first, after in pairwise(firsts) if after != first]
    assert min(steps) >= 1
    assert sum(steps) / len(steps) >= 7


@given(told, st.integers(0, 4), st.lists(parts, max_size=6))
def test_within_a_turn_the_prompt_only_grows(history: list[PastTurn], summarized_to: int, answer: list[Part]) -> None:
    question, limits = ChatMessage.user("And now?"), Limits(30, 1_000_000)
    summary = RollingSummary("", 0, 1, summarized_to)
    first = window.compose(history, limits, question, summary=summary)
    later = window.compose(history, limits, question, answer, summary=summary)
    assert later[: len(first)] == first


@given(st.lists(st.integers(1, 9), min_size=2, max_size=8), st.integers(200, 3000))
def test_an_answer_that_outgrows_its_budget_changes_seldom(sizes: list[int], budget: int) -> None:
    parts: list[Part] = []
    calls: list[list[Part]] = []
    for number, size in enumerate(sizes):
        call = ToolPart(call_id=str(number), name="read", input={}, output="z" * 900 * size, done=True)
        parts += [StepPart(), call]
        calls.append(window.fit_answer(parts, budget))
    for before, after in pairwise(calls):
        changed = [index for index, part in enumerate(before) if after[index] != part]
        uncut = [index for index, part in enumerate(before) if len(str(getattr(part, "output", ""))) > 510]
        assert changed in ([], uncut), "all outputs are cut at once, or none"


@given(turns, st.integers(1, 500))
def test_pieces_are_the_whole_in_order_and_fit(history: list[PastTurn], max_tokens: int) -> None:
    cut = window.pieces(history, max_tokens)
    assert [turn for piece in cut for turn in piece] == history
    assert all(len(piece) == 1 or sum(turn.tokens for turn in piece) <= max_tokens for piece in cut)
    assert all(cut)


@given(texts, texts)
def test_more_text_is_never_fewer_tokens(text: str, more: str) -> None:
    assert 1 <= window.estimate_text(text) <= window.estimate_text(text + more) <= len(text + more) + 1


@given(st.lists(parts, max_size=5), st.integers(1, 1000))
def test_reported_output_tokens_win_and_only_tool_results_are_estimated(answer: list[Part], output_tokens: int) -> None:
    tools = [part for part in answer if isinstance(part, ToolPart)]
    counted = window.estimate_answer(answer, output_tokens)
    assert counted >= output_tokens + len(tools)
    assert tools or any(isinstance(part, SteeringPart) for part in answer) or counted == output_tokens
