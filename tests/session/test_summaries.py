"""Rolling summaries: one pipeline, beside answers, from the queue and all over again."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniagent import Agent, InMemorySessionManager, Overrides, Runner, RunResult, Settings, TurnHooks
from omniagent.errors import EmptyAnswer, ModelUnavailable, NotFound
from omniagent.messages import Part, TextPart, ToolPart, Usage
from omniagent.providers import LLMProvider, ModelFinish, ModelRequest
from omniagent.session.live import SessionMessage
from omniagent.session.summaries import SummaryPipeline
from omniagent.session.window import RollingSummary, estimate_text
from omniagent.testing import Gate, InMemoryStore, ScriptedModel
from omniagent.turns.state_events import Begin, End
from tests.persistence.turns import apply, converse, reply, tip, turn

SOON = Settings(tick_seconds=0.02, context_max_turns=6)


class Chat:
    """One session in memory, with a model that plays a script."""

    def __init__(self, model: LLMProvider | None = None, settings: Settings = SOON, **hooks: object) -> None:
        self.model = model or ScriptedModel(default="Yes.", summary=lambda _: f"Summary {self.summarized()}")
        self.session = InMemorySessionManager("ada", "chat", store=InMemoryStore(), settings=settings)
        self.ended: list[RunResult] = []
        self.costs: list[tuple[str, Usage]] = []
        self.agent = Agent("helper", "Be brief.")
        self.leaves_summaries = bool(hooks.get("leaves_summaries"))
        self._summarized = 0

    def summarized(self) -> int:
        self._summarized += 1
        return self._summarized

    def runner(self) -> Runner:
        async def on_end(result: RunResult) -> None:
            self.ended.append(result)

        hooks = TurnHooks(
            on_end=on_end,
            on_model_call=lambda purpose, usage: self.costs.append((purpose, usage)),
            leaves_summaries=self.leaves_summaries,
        )
        return Runner(self.agent, self.session, provider=self.model, hooks=hooks)

    async def ask(self, text: str = "Hello?") -> RunResult:
        stream = self.runner().run_stream(text)
        result = await stream.result()
        await stream.ended()
        return result

    async def converse(self, turns: int) -> None:
        for number in range(1, turns + 1):
            await self.ask(f"Question {number}?")

    async def latest(self) -> RollingSummary | None:
        return await self.session.latest_summary(await tip(self.session))


def requests(model: LLMProvider, purpose: str) -> list[ModelRequest]:
    assert isinstance(model, ScriptedModel)
    return [request for request in model.requests if request.purpose == purpose]


async def store_turns(session: InMemorySessionManager, *answers: Sequence[Part], question: str = "Question?") -> None:
    for number, parts in enumerate(answers, 1):
        message = SessionMessage(f"question-{number}", "user", number, [TextPart(text=question)])
        await apply(session, Begin(turn(number, message=message)))
        await apply(session, End("run", reply(number, parts=parts)))


async def test_summaries_follow_each_other_without_gap_or_overlap() -> None:
    chat, newest = Chat(), []
    for _ in range(11):
        await chat.ask()
        newest.append(await chat.latest())
    first, second, third = (RollingSummary(f"Summary {n}", 2, 3 * n - 2, 3 * n) for n in (1, 2, 3))
    assert newest == [None] * 3 + [first] * 3 + [second] * 3 + [third] * 2, "up to the turn before the latest"
    assert [purpose for purpose, _ in chat.costs] == ["summary"] * 3
    assert all(usage.total_tokens for _, usage in chat.costs)


async def test_a_full_window_starts_half_a_window_later_behind_its_summary() -> None:
    chat = Chat()
    await chat.converse(8)
    *_, full, moved = ([message.text for message in request.messages] for request in requests(chat.model, "answer"))
    assert full == [text for n in range(1, 7) for text in (f"Question {n}?", "Yes.")] + ["Question 7?"]
    assert "Summary 2" in moved[0]
    assert moved[1:] == [text for n in range(4, 8) for text in (f"Question {n}?", "Yes.")] + ["Question 8?"]
    assert all("Summary" not in request.instructions for request in requests(chat.model, "answer"))


async def test_the_answer_is_stored_and_finished_while_its_summary_is_still_being_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, loop = Gate(), asyncio.get_running_loop()
    chat = Chat(ScriptedModel(default="Yes.", summary=["Late", gate, " summary."]))
    await chat.converse(3)
    stream, events = chat.runner().run_stream("Four?"), list[str]()

    async def read() -> None:
        events.extend([event.type async for event in stream])

    with monkeypatch.context() as stopped:
        stopped.setattr(loop, "time", lambda now=loop.time(): now)  # no timer expires: it is not waited for at all
        reading = asyncio.create_task(read())
        for _ in range(10_000):
            await asyncio.sleep(0)
    assert reading.done()
    assert events[-2:] == ["finish", "data-session"]
    assert (await stream.result()).text == "Yes."
    assert await chat.latest() is None
    await asyncio.sleep(3 * SOON.tick_seconds)  # without a queue nobody else would make it: it is waited for
    gate.set()
    await stream.ended()
    assert await chat.latest() == RollingSummary("Late summary.", 2, 1, 3)


@pytest.mark.parametrize("small", [{"context_max_turns": 3}, {"context_max_tokens": 100}])
async def test_no_turn_leaves_the_window_before_it_is_summarized(small: dict[str, Any]) -> None:
    chat = Chat(settings=replace(SOON, **{"context_max_turns": 500, **small}))
    for number in range(1, 7):
        await chat.ask(f"Question {number} " + "with some words in it " * 4)
    for number, request in enumerate(requests(chat.model, "answer"), 1):
        shown = "".join(message.text for message in request.messages)
        assert "Summary" in shown or all(f"Question {each} " in shown for each in range(1, number))
    assert requests(chat.model, "summary")


async def test_a_summary_that_is_late_is_left_to_the_queue_where_there_is_one() -> None:
    chat = Chat(ScriptedModel(default="Yes.", summary=["Late ", asyncio.Event()]), leaves_summaries=True)
    await chat.converse(4)
    assert [result.summary_missed for result in chat.ended] == [False, False, False, True]
    assert isinstance(chat.model, ScriptedModel)
    assert chat.model.running == 0
    assert await chat.latest() is None
    [(purpose, usage)] = chat.costs
    assert (purpose, usage.estimated, usage.input_tokens > 0) == ("summary", True, True)


async def test_what_a_summary_has_cost_is_reported_although_it_fails() -> None:
    pieces: list[str | ModelUnavailable] = ["Some of it.", ModelUnavailable()]
    settings = replace(SOON, context_max_tokens=120, context_max_turns=50)
    chat = Chat(ScriptedModel(summary=lambda _: pieces.pop(0)), settings)
    await store_turns(chat.session, *([[TextPart(text=f"Word{n} " * 60)] for n in range(4)]))
    with pytest.raises(ModelUnavailable):
        await chat.runner().summarize()
    assert [(purpose, usage.output_tokens, usage.estimated) for purpose, usage in chat.costs] == [("summary", 3, False)]


REFUSED: list[object] = ["I cannot help with that.", ModelFinish("content-filter", Usage(5, 5))]


@pytest.mark.parametrize("broken", [ModelUnavailable(), "", ["Half", ModelUnavailable()], REFUSED, "<think>Hm"])
async def test_a_summary_that_fails_does_not_fail_the_turn_and_is_reported(broken: object) -> None:
    chat = Chat(ScriptedModel(default="Yes.", summary=broken))  # type: ignore[arg-type]
    await chat.converse(4)
    assert [result.status for result in chat.ended] == ["complete"] * 4
    assert chat.ended[-1].summary_missed
    assert await chat.latest() is None


async def test_the_model_of_summaries_is_the_override_or_the_agents() -> None:
    for summary, expected in (("small", "small"), (None, "large")):
        chat = Chat()
        chat.agent = Agent("helper", "", model="large", summary=Overrides(model=summary, temperature=0.1))
        await chat.converse(4)
        [request] = requests(chat.model, "summary")
        assert (request.overrides.model, request.overrides.temperature) == (expected, 0.1)
        assert {request.overrides.model for request in requests(chat.model, "answer")} == {"large"}


async def test_an_update_stops_before_the_latest_turn_which_may_be_answered_again() -> None:
    chat = Chat(settings=replace(SOON, context_max_turns=50))
    await chat.converse(4)
    summarized = await chat.runner().summarize()
    assert (summarized.written, summarized.end_turn_number, summarized.is_done) == (1, 3, True)
    again = await chat.runner().summarize()
    assert (again.written, again.end_turn_number) == (0, 3)


async def test_an_update_stops_waiting_for_a_slow_model_in_time_and_keeps_its_pieces() -> None:
    pieces: list[str | Gate] = ["Some of it.", Gate()]
    chat = Chat(ScriptedModel(summary=lambda _: pieces.pop(0)), settings=replace(SOON, context_max_turns=500))
    await store_turns(chat.session, *([[TextPart(text="Yes.")]] * 130))
    left = iter([60.0, 0.02])
    first = await chat.runner().summarize(time_left=lambda: next(left))
    assert (first.written, first.end_turn_number, first.is_done) == (1, 50, False)
    chat.model = ScriptedModel(summary=Gate())
    with pytest.raises(ModelUnavailable):
        await chat.runner().summarize(time_left=lambda: 0.02)
    chat.model = ScriptedModel(summary="The rest.")
    rest = await chat.runner().summarize()
    assert (rest.written, rest.end_turn_number, rest.is_done) == (2, 129, True)


async def test_a_session_that_does_not_exist_cannot_be_summarized() -> None:
    for rebuild in (False, True):
        with pytest.raises(NotFound):
            await Chat().runner().summarize(rebuild=rebuild)


async def test_a_piece_that_does_not_fit_is_cut_and_nothing_is_lost() -> None:
    chat = Chat(settings=replace(SOON, context_max_tokens=120, context_max_turns=50))
    await store_turns(chat.session, *([[TextPart(text=f"Word{n} " * 60)] for n in range(4)]))
    await chat.runner().summarize()
    inputs = [request.messages[0].text for request in requests(chat.model, "summary")]
    assert len(inputs) > 3
    assert all(f"Word{n}" in "".join(inputs) for n in range(3))
    assert "Summary 1" in inputs[1]


async def test_a_summary_without_end_is_cut_before_the_model_is_shown_it() -> None:
    small = replace(SOON, context_max_tokens=2_000)
    chat = Chat(ScriptedModel(default="Yes.", summary="word " * 5_000), small)
    await chat.converse(8)
    latest = await chat.latest()
    assert latest is not None
    assert estimate_text(latest.content) <= small.context_max_tokens // 2
    assert estimate_text(requests(chat.model, "answer")[-1].messages[0].text) <= small.context_max_tokens


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=900), min_size=2, max_size=5),
    budget=st.integers(100, 400),
)
async def test_no_call_is_larger_than_allowed(texts: list[str], budget: int) -> None:
    model = ScriptedModel(summary="S")
    session = InMemorySessionManager("u", "s", store=InMemoryStore(), settings=Settings(context_max_tokens=budget))
    await store_turns(session, *([TextPart(text=text)] for text in texts))
    await SummaryPipeline(session, model).update()
    frame = estimate_text('{"previous_summary": null}\n{"role": "assistant", "text": ""}\n' * len(texts))
    assert all(estimate_text(request.messages[0].text) <= budget + frame for request in model.requests)


async def test_an_unfinished_tool_call_is_told_as_interrupted_and_an_empty_summary_is_refused() -> None:
    session = InMemorySessionManager("u", "s", store=InMemoryStore(), settings=SOON)
    call = ToolPart(call_id="1", name="weather", input={"city": "Lisbon"})
    await store_turns(session, [call], [TextPart(text="Yes.")])
    model = ScriptedModel(summary="Said.")
    await SummaryPipeline(session, model).update()
    assert r"[called weather: \"The tool call was interrupted" in model.requests[0].messages[0].text
    await converse(session, [3])
    with pytest.raises(EmptyAnswer):
        await SummaryPipeline(session, ScriptedModel(summary="")).update()
