"""NAME_SESSIONS: a session is named after its first complete answer, and nobody waits for that."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from omniagent import Agent, Overrides, RunResult, TurnHooks
from omniagent.ai import prompts
from omniagent.ai.providers.fallback import FallbackProvider
from omniagent.errors import ModelUnavailable
from omniagent.messages import Usage
from omniagent.providers import LLMProvider, ModelFinish
from omniagent.session.summaries import NAME_SECONDS
from omniagent.testing import Gate, ScriptedModel
from tests.fixtures.conversation import QUICK
from tests.runner.sessions import Sessions, moved_loop


class Chat(Sessions):
    """A session that is named, and what its names cost."""

    def __init__(self, model: LLMProvider) -> None:
        super().__init__(replace(QUICK, name_sessions=True))
        self.model = model
        self.costs: list[tuple[str, bool]] = []
        """The purpose of each call that was made beside an answer, and whether its cost is estimated."""

    async def ask(self, text: str = "Hi") -> RunResult:
        """Ask, and wait until nothing more is done for the turn."""
        hooks = TurnHooks(on_model_call=lambda purpose, usage: self.costs.append((purpose, usage.estimated)))
        stream = await self.runner(self.model, hooks=hooks).start(text)
        await stream.ended()
        return await stream.result()

    async def name(self) -> str | None:
        return (await self.head()).name


async def test_an_agent_may_have_prompts_of_its_own_for_summaries_and_names(sessions: Sessions) -> None:
    own = Overrides(model="small", instructions="In three bullet points.")
    for naming, told, named_by in (
        (None, prompts.NAME_CHAT, "small"),
        (Overrides(instructions="In one word."), "In one word.", "scripted"),
    ):
        model, session = ScriptedModel(default="Hello."), sessions.session(named_by)
        runner = sessions.runner(model, agent=Agent("helper", "", summary=own, naming=naming), session=session)
        for _ in range(2):
            await runner.run("Hi.")
        await runner.name()
        await runner.summarize()
        name, summary = model.requests[-2:]
        assert (name.instructions, name.overrides.model or model.model) == (told, named_by)
        assert (summary.instructions, summary.overrides.model) == ("In three bullet points.", "small")


async def test_the_first_answer_names_its_session_once_and_it_is_paid_for() -> None:
    chat = Chat(ScriptedModel("Hello.", "Again.", name="A greeting"))
    await chat.ask()
    assert await chat.name() == "A greeting"
    await chat.session().rename("Mine", was="A greeting")
    await chat.ask("Hi again")
    assert await chat.name() == "Mine", "a name that somebody chose stands"
    assert chat.costs == [("name", False)]


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
    await chat.ask()
    assert chat.costs == [("name", each) for each in estimated]


REFUSED = ["I cannot help with that.", ModelFinish("content-filter", Usage(5, 5))]


@pytest.mark.parametrize(
    ("answer", "name"),
    [("<think>\nHm.\n</think>\n\nA greeting", "A greeting"), (REFUSED, "Hi Bo"), (KeyError("choices"), None)],
)
async def test_neither_reasoning_nor_a_refusal_nor_a_fault_names_a_session(answer: Any, name: str | None) -> None:
    chat = Chat(ScriptedModel("Hello.", name=answer))
    assert (await chat.ask("Hi Bo")).status == "complete"
    assert await chat.name() == name


async def test_the_answer_is_complete_before_its_session_has_a_name() -> None:
    gate = Gate()
    chat = Chat(ScriptedModel("Hello.", name=["A ", gate, "greeting"]))
    stream = await chat.runner(chat.model).start("Hi")
    shown = [event.type async for event in stream]
    assert (shown.count("finish"), (await stream.result()).status) == (1, "complete")
    await gate.reached()
    assert await chat.name() is None
    gate.set()
    await stream.ended()
    assert await chat.name() == "A greeting"


def test_a_silent_model_names_a_chat_by_its_first_words() -> None:
    async def named() -> str:
        gate = Gate()
        runner = Sessions().runner(ScriptedModel("Hello.", name=["A", gate]))
        await runner.run("Where is the library of Alexandria?")
        naming = asyncio.create_task(runner.name())
        await gate.reached()
        with moved_loop(NAME_SECONDS):
            return await naming

    assert asyncio.run(named()) == "Where is the library of Alexandria?"


def test_a_long_name_ends_with_a_whole_word() -> None:
    name = prompts.clean_name("The quick brown fox jumps over the lazy dog, and then another one, and sleeps")
    assert name == "The quick brown fox jumps over the lazy dog, and then"
    assert prompts.clean_name("x" * 100) == "x" * prompts.MAX_GENERATED_NAME_LENGTH
