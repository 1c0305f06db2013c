"""What a team can put into a turn: typed output, its own context, models by name, an end in order."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel, Field

from omniagent import (
    Agent,
    ConfigurationError,
    InMemorySessionManager,
    Query,
    RunContext,
    Settings,
    TurnHooks,
    tool,
)
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers.llm_provider import ModelEvent
from omniagent.errors import (
    NotFound,
    RegistryUnavailable,
    SessionErased,
)
from omniagent.messages import DataPart
from omniagent.protocol.events import DataSession, TextDelta
from omniagent.providers import FallbackProvider, LLMProvider, ModelRequest, ModelText, ModelToolDelta
from omniagent.session.summaries import NAME_SECONDS
from omniagent.testing import Gate, InMemoryStore, MemoryCounter, MemoryRegistry, ScriptedModel, ToolCall
from tests.fixtures.conversation import Conversation, each_api

QUICK = Settings(tick_seconds=0.02)


class Weather(BaseModel):
    city: str
    degrees: int = Field(ge=-90, le=60)


def session(session_id: str = "chat", settings: Settings = QUICK) -> InMemorySessionManager:
    return InMemorySessionManager("ada", session_id, store=InMemoryStore(), settings=settings)


@each_api
async def test_an_agent_with_output_answers_with_a_validated_model_on_every_api(conversation: Conversation) -> None:
    asked = conversation.but(agent=Agent("weather", "Tell the weather.", output=Weather))
    stream = asked.runner().run_stream('[echo:{"city": "Lisbon", "degrees": 21}]')
    text = "".join([event.delta async for event in stream if event.type == "text-delta"])  # type: ignore[attr-defined]
    result = await stream.result()
    assert result.output == Weather(city="Lisbon", degrees=21)
    assert text == result.text, "streamed as it is"
    body = asked.model.requests[-1].body
    if "output_config" in body:  # Anthropic's schemas have no name and are always strict
        assert body["output_config"]["format"]["schema"]["required"] == ["city", "degrees"]
        return
    schema = body["text"]["format"] if "text" in body else body["response_format"]["json_schema"]
    assert (schema["name"], schema["strict"]) == ("Weather", True)


@each_api
async def test_an_answer_that_does_not_validate_is_repaired_on_every_api(conversation: Conversation) -> None:
    asked = conversation.but(agent=Agent("weather", "Tell the weather.", output=Weather))
    before = len(asked.model.requests)
    result = await asked.runner().run('[echo:{"city": "Lisbon", "degrees": 210}]')
    assert (result.status, type(result.output)) == ("complete", Weather)
    assert Weather.model_validate_json(result.text) == result.output
    assert asked.answer["metadata"]["output"] == json.loads(result.text)
    first, second = (request.body for request in asked.model.requests[before:])
    assert [key for key in ("text", "response_format") if first.get(key) != second.get(key)] == []
    shown = second["input"] if "input" in second else second["messages"]
    assert ["210" in str(shown[-2]), "less than or equal to 60" in str(shown[-1])] == [True, True]


async def test_a_rejected_answer_is_withdrawn_from_the_stream_and_the_message() -> None:
    good = '{"city": "Lisbon", "degrees": 21}'
    runner = TurnOperator(
        Agent("weather", "", output=Weather), session(), provider=ScriptedModel(["no ", "JSON"], good, default=good)
    )
    stream = runner.run_stream("Lisbon?")
    events = [event async for event in stream]
    result = await stream.result()
    kinds = [event.type for event in events]
    kept = events[kinds.index("reset-step") :]
    assert "".join(event.delta for event in kept if isinstance(event, TextDelta)) == result.text == good
    [data] = [event for event in events if isinstance(event, DataSession)]
    assert result.metadata["output"] == data.data["output"] == {"city": "Lisbon", "degrees": 21}
    assert (result.metadata["stepCount"], result.usage.output_tokens) == (1, 7), "both attempts are paid for"


async def test_a_retry_that_joins_or_replays_a_typed_answer_has_its_output() -> None:
    gate = Gate()
    model = ScriptedModel("no JSON", ['{"city": "Lisbon", ', gate, '"degrees": 21}'])
    runner = TurnOperator(Agent("weather", "", output=Weather), session(), provider=model, registry=MemoryRegistry())
    first = await runner.start(Query("Lisbon?", "m1"))
    await gate.reached()
    joined = await runner.start(Query("Lisbon?", "m1"))
    gate.set()
    results = [await first.result(), await joined.result(), await runner.run(Query("Lisbon?", "m1"))]
    assert [result.output for result in results] == [Weather(city="Lisbon", degrees=21)] * 3
    assert model.remaining == 0


async def test_a_typed_answer_that_does_not_fit_a_changed_model_is_replayed_without_output() -> None:
    class Forecast(BaseModel):
        days: int

    chat, model = session(), ScriptedModel('{"city": "Lisbon", "degrees": 21}')
    await TurnOperator(Agent("weather", "", output=Weather), chat, provider=model).run(Query("Lisbon?", "m1"))
    result = await TurnOperator(Agent("weather", "", output=Forecast), chat, provider=model).run(Query("Lisbon?", "m1"))
    assert (result.status, result.output) == ("complete", None)


async def test_an_answer_that_never_validates_fails_after_one_repair_round() -> None:
    model = ScriptedModel("no JSON", "still none", "never asked")
    result = await TurnOperator(Agent("weather", "", output=Weather), session(), provider=model).run("Lisbon?")
    assert (result.status, result.metadata["errorCode"], result.output) == ("failed", "invalid_output", None)
    assert result.text.startswith("Sorry"), "neither attempt is shown"
    assert model.remaining == 1


async def test_a_tool_knows_its_user_its_call_and_what_the_agent_opened_once() -> None:
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
        context.emit("progress", {"percent": 50}, id="refund")
        context.emit("progress", {"percent": 100}, id="refund")
        return "refunded" if context.deps.get(order) == context.user else "not yours"

    agent = Agent("shop", "", [refund], deps=shop)
    store = InMemoryStore()
    for category in ("silver", "gold"):
        model = ScriptedModel(ToolCall("refund", {"order": "42"}, call_id=f"call-{category}"), "Done.")
        chat = InMemorySessionManager("ada", "chat", store=store, settings=QUICK, category=category)
        result = await TurnOperator(agent, chat, provider=model).run("Refund 42")
        assert [part.data for part in result.parts if isinstance(part, DataPart)] == [{"percent": 100}]
        assert "context" not in str(model.requests[0].tools)
    await agent.aclose()
    assert calls == [
        ("ada", "silver", "call-silver", {"42": "ada"}),
        ("ada", "gold", "call-gold", {"42": "ada"}),
    ]
    assert opened == ["open", "closed"]


async def test_a_session_without_a_turn_has_no_name_and_nothing_to_resume() -> None:
    runner = TurnOperator(Agent("helper", ""), session(), provider=ScriptedModel())
    assert await runner.resume() is None
    with pytest.raises(NotFound):
        await runner.name()


def test_a_silent_model_names_a_chat_by_its_first_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def named() -> str:
        gate = Gate()
        runner = TurnOperator(Agent("helper", ""), session(), provider=ScriptedModel("Hello.", name=["A", gate]))
        await runner.run("Where is the library of Alexandria?")
        naming = asyncio.create_task(runner.name())
        await gate.reached()
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda now=loop.time: now() + NAME_SECONDS)
        return await naming

    # A loop of its own: its clock is moved.
    assert asyncio.run(named()) == "Where is the library of Alexandria?"


class Bare(LLMProvider):
    def __init__(self) -> None:
        """Leaves out what the base class does."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        yield ModelText(request.instructions)


def made(**options: Any) -> TurnOperator:
    return TurnOperator(**{"agent": Agent("helper", ""), "session": session(), "provider": ScriptedModel(), **options})


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
    "^Runner: providers must be an instance of ProviderPool, not {'acme'": lambda: made(
        providers={"acme": ScriptedModel()}
    ),
    "^Runner: registry must be an instance of TurnRegistry, not <class": lambda: made(registry=MemoryRegistry),
    "^Runner: hooks must be an instance of TurnHooks, not {}": lambda: made(hooks={}),
    "^Runner: budget must be an instance of Budget, not 5": lambda: made(budget=5),
    "^Runner: counter must be an instance of SpendingCounter, not <class": lambda: made(counter=MemoryCounter),
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
async def test_a_turn_fails_with_what_its_provider_left_out(events: list[Any], said: str) -> None:
    result = await TurnOperator(Agent("helper", ""), session(), provider=Careless(*events)).run("?")
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
async def test_a_query_that_is_no_text_is_refused(query: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the query is .*: write text, or Query\(text"):
        await TurnOperator(Agent("helper", ""), session(), provider=ScriptedModel()).run(query)


async def test_an_erased_session_is_gone_and_its_running_turn_is_lost() -> None:
    chat, gate = session(), Gate()
    runner = TurnOperator(Agent("helper", ""), chat, provider=ScriptedModel("One.", ["Half", gate]))
    await runner.run(Query("First", "m1"))
    stream = await runner.start(Query("Second", "m2"))
    await gate.reached()
    assert await runner.erase_session()
    assert not (await stream.result()).stored
    assert await chat.head() is None
    with pytest.raises(NotFound):
        await runner.erase()
    await stream.ended()
    again = TurnOperator(Agent("helper", ""), chat, provider=ScriptedModel("New."))
    assert (await again.run(Query("First", "m1"))).turn_number == 1


async def test_a_session_is_gone_before_anything_of_it_is_deleted() -> None:
    class Failing(MemoryRegistry):
        async def erase(self, owner: str, limit: int = 500) -> bool:
            raise RegistryUnavailable("down")

    chat = session()
    await TurnOperator(Agent("helper", ""), chat, provider=ScriptedModel("One.")).run(Query("First", "m1"))
    runner = TurnOperator(Agent("helper", ""), chat, provider=ScriptedModel(), registry=Failing())
    with pytest.raises(RegistryUnavailable):
        await runner.erase()
    assert await chat.head() is None
    with pytest.raises(SessionErased):
        await runner.run(Query("Second", "m2"))
    assert await TurnOperator(Agent("helper", ""), chat, provider=ScriptedModel()).erase_session(), (
        "the same request again goes on"
    )


async def test_a_team_deletes_what_it_has_stored_of_a_session_and_of_a_user() -> None:
    chat, calls, failures = session(), list[tuple[str, str | None]](), 1

    async def on_erase(user: str, session_id: str | None) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError("the team's store is down")
        calls.append((user, session_id))

    runner = TurnOperator(Agent("helper", ""), chat, provider=ScriptedModel("One."), hooks=TurnHooks(on_erase=on_erase))
    await runner.run("Hello")
    assert not await runner.erase_user()
    assert await chat.head() is None, "nobody reads it any more"
    assert await runner.erase_marked_user()
    assert calls == [(chat.user, chat.session_id), (chat.user, None)]
    assert chat.store.sessions == {}
