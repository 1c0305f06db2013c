"""What a team can put into a turn: typed output, its own context, models by name, an end in order."""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel, Field

from omniagent import Agent, ConfigurationError, InMemorySessionManager, Query, RunContext, TurnHooks, tool
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers.llm_provider import ModelEvent
from omniagent.errors import NotFound
from omniagent.messages import DataPart
from omniagent.protocol.events import DataSession, TextDelta
from omniagent.providers import FallbackProvider, LLMProvider, ModelRequest, ModelText, ModelToolDelta
from omniagent.testing import Gate, InMemoryStore, ScriptedModel, ToolCall
from tests.fixtures.conversation import Conversation, each_api
from tests.runner.sessions import Sessions, ask, texts_of


class Weather(BaseModel):
    city: str
    degrees: int = Field(ge=-90, le=60)


WEATHER = Agent("weather", "Tell the weather.", output=Weather)
GOOD, LISBON = '{"city": "Lisbon", "degrees": 21}', Weather(city="Lisbon", degrees=21)


@each_api
async def test_an_answer_that_does_not_validate_is_repaired_on_every_api(conversation: Conversation) -> None:
    asked = conversation.but(agent=WEATHER)
    before = len(asked.model.requests)
    result = await asked.runner().run('[echo:{"city": "Lisbon", "degrees": 210}]')
    assert (result.status, type(result.output)) == ("complete", Weather)
    assert Weather.model_validate_json(result.text) == result.output
    assert asked.answer["metadata"]["output"] == json.loads(result.text)
    first, second = (request.body for request in asked.model.requests[before:])
    assert [key for key in ("text", "response_format") if first.get(key) != second.get(key)] == []
    shown = second["input"] if "input" in second else second["messages"]
    assert ["210" in str(shown[-2]), "less than or equal to 60" in str(shown[-1])] == [True, True]


async def test_a_rejected_answer_is_withdrawn_from_the_stream_and_the_message(sessions: Sessions) -> None:
    stream = sessions.runner(ScriptedModel(["no ", "JSON"], GOOD, default=GOOD), agent=WEATHER).run_stream("Lisbon?")
    events = [event async for event in stream]
    result = await stream.result()
    kept = events[[event.type for event in events].index("reset-step") :]
    assert "".join(event.delta for event in kept if isinstance(event, TextDelta)) == result.text == GOOD
    [data] = [event for event in events if isinstance(event, DataSession)]
    assert result.message.metadata["output"] == data.data["output"] == {"city": "Lisbon", "degrees": 21}
    assert (result.message.metadata["stepCount"], result.usage.output_tokens) == (1, 7), "both attempts are paid for"


async def test_a_retry_that_joins_or_replays_a_typed_answer_has_its_output(sessions: Sessions) -> None:
    class Forecast(BaseModel):
        days: int

    gate = Gate()
    model = ScriptedModel("no JSON", ['{"city": "Lisbon", ', gate, '"degrees": 21}'])
    runner = sessions.runner(model, agent=WEATHER)
    first = await runner.start(ask("m1"))
    await gate.reached()
    joined = await runner.start(ask("m1"))
    gate.set()
    results = [await first.result(), await joined.result(), await runner.run(ask("m1"))]
    assert [result.output for result in results] == [LISBON] * 3
    changed = await sessions.runner(model, agent=Agent("weather", "", output=Forecast)).run(ask("m1"))
    assert (changed.status, changed.output) == ("complete", None), "it does not fit the new model"
    assert model.remaining == 0


async def test_an_answer_that_never_validates_fails_after_one_repair_round(sessions: Sessions) -> None:
    model = ScriptedModel("no JSON", "still none", "never asked")
    result = await sessions.runner(model, agent=WEATHER).run("Lisbon?")
    assert (result.status, result.message.metadata["errorCode"], result.output) == ("failed", "invalid_output", None)
    assert result.text.startswith("Sorry"), "neither attempt is shown"
    assert model.remaining == 1


async def test_a_tool_knows_its_user_its_call_and_what_the_agent_opened_once(sessions: Sessions) -> None:
    opened: list[str] = []
    calls: list[tuple[str, str | None, str | None, dict[str, str]]] = []

    @asynccontextmanager
    async def shop() -> AsyncIterator[dict[str, str]]:
        opened.append("open")
        yield {"42": "ada"}
        opened.append("closed")

    @tool
    async def refund(order: str, context: RunContext[dict[str, str]]) -> str:
        """Refund an order of the caller's."""
        calls.append((context.user, context.category, context.call_id, context.deps))
        for percent in (50, 100):
            context.emit("progress", {"percent": percent}, id="refund")
        return "refunded" if context.deps.get(order) == context.user else "not yours"

    agent = Agent("shop", "", [refund], deps=shop)
    for category in ("silver", "gold"):
        model = ScriptedModel(ToolCall("refund", {"order": "42"}, call_id=f"call-{category}"), "Done.")
        runner = sessions.runner(model, agent=agent, session=sessions.session(category=category))
        result = await runner.run("Refund 42")
        assert [part.data for part in result.parts if isinstance(part, DataPart)] == [{"percent": 100}]
        assert "context" not in str(model.requests[0].tools)
    await agent.aclose()
    assert calls == [("ada", each, f"call-{each}", {"42": "ada"}) for each in ("silver", "gold")]
    assert opened == ["open", "closed"]


async def test_a_session_without_a_turn_has_no_name_and_nothing_to_resume(sessions: Sessions) -> None:
    runner = sessions.runner(ScriptedModel())
    assert await runner.resume() is None
    with pytest.raises(NotFound):
        await runner.name()


class Bare(LLMProvider):
    def __init__(self) -> None:
        """Leaves out what the base class does."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        yield ModelText(request.instructions)


def made(**options: Any) -> TurnOperator:
    given = {"agent": Agent("helper", ""), "session": Sessions().session(), "provider": ScriptedModel(), **options}
    return TurnOperator(**given)


async def awaited(*_: object) -> None: ...


async def of_many(a: str, b: str, c: str, d: str) -> None: ...


MISTAKES: dict[str, Callable[[], object]] = {
    r"must be an LLMProvider, not 'gpt-6-sol': the name of a model goes into Agent\(model=…\)": lambda: made(
        provider="gpt-6-sol"
    ),
    "must be an LLMProvider, not <class": lambda: made(provider=ScriptedModel),
    r"Bare has no model: call super\(\).__init__\(model\)": lambda: made(provider=Bare()),
    "^Runner: agent must be an instance of Agent or Project, not <class": lambda: made(agent=Agent),
    "^Runner: session must be an instance of SessionManager, not 'ada'": lambda: made(session="ada"),
    "^Runner: budget must be an instance of Budget, not 5": lambda: made(budget=5),
    r"^Runner: approvers must be a function of \(approver, request\), not True": lambda: made(approvers=True),
    "FallbackProvider: each must be an LLMProvider, not 'gpt-6-sol'": lambda: FallbackProvider(
        [ScriptedModel(), "gpt-6-sol"]  # type: ignore[list-item]
    ),
    r"Runner.reply takes replies such as request.approve\(\), not \(True": lambda: made().reply(True),  # type: ignore[arg-type]
    "the user of a session is 7: pass a name, as text": lambda: InMemorySessionManager(7),  # type: ignore[arg-type]
    "the user of a session is ' ': pass a name, as text": lambda: InMemorySessionManager(" "),
    r"the store is .*: pass InMemoryStore\(\)": lambda: InMemorySessionManager("ada", store=InMemoryStore),  # type: ignore[arg-type]
    "category.*: pass ": lambda: InMemorySessionManager("ada", category=7),  # type: ignore[arg-type]
    "settings.*: pass ": lambda: InMemorySessionManager("ada", settings={"max_steps": 3}),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("said", MISTAKES)
def test_a_part_of_another_kind_is_refused_where_it_is_passed(said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        MISTAKES[said]()


AWAITED, NOT_AWAITED = ("on_work", "on_end", "on_erase"), ("on_model_call", "on_refusal")


@pytest.mark.parametrize(
    ("names", "hook", "said"),
    [
        (AWAITED, lambda *_: None, "must be an async function: write `async def`"),
        (AWAITED, of_many, r"must take \("),
        (NOT_AWAITED, awaited, "is not awaited: write `def`"),
    ],
)
def test_a_hook_of_another_shape_is_refused(names: Sequence[str], hook: Any, said: str) -> None:
    for name in names:
        with pytest.raises(ConfigurationError, match=f"TurnHooks: {name} {said}"):
            TurnHooks(**{name: hook})


class Careless(LLMProvider):
    def __init__(self, *events: Any) -> None:
        super().__init__("careless")
        self.events = events

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        for event in self.events:
            yield event


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (["Hello"], r"careless: the provider yielded 'Hello': yield ModelText\(…\) and the like, and ModelFinish"),
        ([ModelText("Hello")], "careless: the stream has no end: no ModelFinish came"),
        ([ModelToolDelta("c1", "{")], "no tool call 'c1' is open: yield ModelToolStart before ModelToolDelta"),
    ],
)
async def test_a_turn_fails_with_what_its_provider_left_out(sessions: Sessions, events: list[Any], said: str) -> None:
    result = await sessions.runner(Careless(*events)).run("?")
    assert result.status == "failed"
    assert re.match(said, str(result.error))


def test_a_provider_whose_stream_cannot_be_one_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigurationError, match="provider Whole: its stream is no async generator: write `async def"):

        class Whole(LLMProvider):
            async def stream(self, request: ModelRequest) -> str:  # type: ignore[override]
                return request.instructions

    with pytest.raises(ConfigurationError, match="provider Sync: its stream is no async generator"):

        class Sync(LLMProvider):
            def stream(self, request: ModelRequest) -> Any:
                yield ModelText(request.instructions)


@pytest.mark.parametrize("query", [None, 3, [{"role": "user", "content": "Hi"}], Query(None)])  # type: ignore[arg-type]
async def test_a_query_that_is_no_text_is_refused(sessions: Sessions, query: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the query is .*: write text, or Query\(text"):
        await sessions.runner(ScriptedModel()).run(query)


async def test_an_erased_session_is_gone_with_what_runs_and_waits_in_it(sessions: Sessions) -> None:
    model, first, _ = await sessions.answering()
    second = await sessions.runner(model).start(ask("m2", "queue"))
    assert await sessions.runner(model).erase_session()
    assert not (await first.result()).stored
    assert [event.type async for event in second] == ["error"]
    assert not sessions.store.sessions
    with pytest.raises(NotFound):
        await sessions.runner(model).erase()
    assert await texts_of(await sessions.runner(ScriptedModel("New.")).start(ask("m1"))) == ["New."]


async def test_a_team_deletes_what_it_has_stored_of_a_session_and_of_a_user(sessions: Sessions) -> None:
    chat, calls, failures = sessions.session(), list[tuple[str, str | None]](), 1

    async def on_erase(user: str, session_id: str | None) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError("the team's store is down")
        calls.append((user, session_id))

    runner = sessions.runner(ScriptedModel("One."), hooks=TurnHooks(on_erase=on_erase))
    await runner.run("Hello")
    assert not await runner.erase_user()
    assert await chat.head() is None, "nobody reads it any more"
    assert await runner.erase_marked_user()
    assert calls == [(chat.user, chat.session_id), (chat.user, None)]
    assert chat.store.sessions == {}
