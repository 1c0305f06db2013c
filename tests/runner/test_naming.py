"""NAME_SESSIONS: a session is named after its first complete answer, and nobody waits for that."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from omniagent import Agent, InMemorySessionManager, Overrides, RunResult, Settings, TurnHooks
from omniagent.ai import prompts
from omniagent.ai.operator import TurnOperator
from omniagent.ai.providers.fallback import FallbackProvider
from omniagent.errors import ModelUnavailable
from omniagent.messages import Usage
from omniagent.providers import LLMProvider, ModelFinish
from omniagent.testing import Gate, InMemoryStore, ScriptedModel

NAMING = Settings(tick_seconds=0.02, name_sessions=True)


class Chat:
    """A session in memory, its runner, and what its hooks heard."""

    def __init__(self, model: LLMProvider, settings: Settings = NAMING) -> None:
        self.session = InMemorySessionManager("ada", "chat", store=InMemoryStore(), settings=settings)
        self.costs: list[str] = []
        self.estimated: list[bool] = []
        self.over = asyncio.Event()
        hooks = TurnHooks(on_end=self._end, on_model_call=self._cost)
        self.runner = TurnOperator(Agent("helper", ""), self.session, provider=model, hooks=hooks)

    async def _end(self, _: RunResult) -> None:
        self.over.set()

    def _cost(self, purpose: str, usage: Usage) -> None:
        self.costs.append(purpose)
        self.estimated.append(usage.estimated)

    async def ask(self, text: str) -> RunResult:
        """Ask, and wait until nothing more is done for the turn."""
        self.over.clear()
        result = await self.runner.run(text)
        await self.over.wait()
        return result

    async def name(self) -> str | None:
        head = await self.session.head()
        return head.name if head else None


async def test_an_agent_may_have_prompts_of_its_own_for_summaries_and_names() -> None:
    own = Overrides(model="small", instructions="In three bullet points.")
    for naming, told, named_by in (
        (None, prompts.NAME_CHAT, "small"),
        (Overrides(instructions="In one word."), "In one word.", "scripted"),
    ):
        model = ScriptedModel(default="Hello.")
        session = InMemorySessionManager("ada", "chat", store=InMemoryStore())
        runner = TurnOperator(Agent("helper", "", summary=own, naming=naming), session, provider=model)
        for _ in range(2):
            await runner.run("Hi.")
        await runner.name()
        await runner.summarize()
        name, summary = model.requests[-2:]
        assert (name.instructions, name.overrides.model or model.model) == (told, named_by)
        assert (summary.instructions, summary.overrides.model) == ("In three bullet points.", "small")


async def test_the_first_answer_names_its_session_once_and_it_is_paid_for() -> None:
    chat = Chat(ScriptedModel("Hello.", "Again.", name="A greeting"))
    await chat.ask("Hi")
    assert await chat.name() == "A greeting"
    await chat.ask("Hi again")
    assert (chat.costs, chat.estimated) == (["name"], [False])


BREAKS: list[Any] = ["A gree", ModelUnavailable()]


@pytest.mark.parametrize(
    ("model", "estimated"),
    [
        (ScriptedModel("Hello.", name=["A greeting", ModelFinish("stop", Usage())]), [True]),
        (ScriptedModel("Hello.", name=BREAKS), [True]),
        (FallbackProvider([ScriptedModel("Hello.", name=BREAKS), ScriptedModel(name="A greeting")]), [True, False]),
    ],
    ids=["no usage", "broken off", "another goes on"],
)
async def test_a_name_whose_usage_is_not_reported_is_estimated(model: LLMProvider, estimated: list[bool]) -> None:
    chat = Chat(model)
    await chat.ask("Hi")
    assert (chat.costs, chat.estimated) == (["name"] * len(estimated), estimated)


REFUSED = ["I cannot help with that.", ModelFinish("content-filter", Usage(5, 5))]


@pytest.mark.parametrize(
    ("answer", "name"), [("<think>\nHm.\n</think>\n\nA greeting", "A greeting"), (REFUSED, "Hi Bo")]
)
async def test_neither_reasoning_nor_a_refusal_names_a_session(answer: Any, name: str) -> None:
    chat = Chat(ScriptedModel("Hello.", name=answer))
    await chat.ask("Hi Bo")
    assert await chat.name() == name


async def test_the_answer_is_complete_before_its_session_has_a_name() -> None:
    gate = Gate()
    chat = Chat(ScriptedModel("Hello.", name=["A ", gate, "greeting"]))
    stream = await chat.runner.start("Hi")
    shown = [event.type async for event in stream]
    assert (shown.count("finish"), (await stream.result()).status) == (1, "complete")
    await gate.reached()
    assert await chat.name() is None
    gate.set()
    await chat.over.wait()
    assert await chat.name() == "A greeting"


async def test_a_turn_ends_although_naming_its_session_raises() -> None:
    chat = Chat(ScriptedModel("Hello.", "Again.", name=KeyError("choices")))
    stream = await chat.runner.start("Hi")
    await stream.ended()
    assert (chat.over.is_set(), await chat.name()) == (True, None)


async def test_without_the_setting_nothing_is_named() -> None:
    chat = Chat(ScriptedModel("Hello.", name="A greeting"), replace(NAMING, name_sessions=False))
    await chat.ask("Hi")
    assert (await chat.name(), chat.costs) == (None, [])


async def test_a_name_that_somebody_chose_stands() -> None:
    chat = Chat(ScriptedModel("Hello.", "Again.", name="A greeting"))
    await chat.ask("Hi")
    await chat.session.rename("Mine", was="A greeting")
    await chat.ask("Hi again")
    assert await chat.name() == "Mine"


def test_a_long_name_ends_with_a_whole_word() -> None:
    name = prompts.clean_name("The quick brown fox jumps over the lazy dog, and then another one, and sleeps")
    assert name == "The quick brown fox jumps over the lazy dog, and then"
    assert prompts.clean_name("x" * 100) == "x" * prompts.MAX_GENERATED_NAME_LENGTH
