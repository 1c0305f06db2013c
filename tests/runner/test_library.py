"""The library without a server: a project's runner, and what a session has kept."""

import asyncio
import json

import pytest

from omniagent import (
    Agent,
    Approver,
    Budget,
    Callbacks,
    InMemorySessionManager,
    Project,
    Query,
    RunContext,
    Runner,
    RunResult,
    Settings,
    ToolRequest,
    tool,
)
from omniagent.errors import BudgetExceeded, ConfigurationError, Forbidden, TurnInProgress, UnknownRequest
from omniagent.messages import DataPart, TextPart
from omniagent.protocol.ui_messages import ui_message
from omniagent.testing import Gate, InMemoryStore, ScriptedModel, ToolCall
from tests.runner.conftest import SessionOf
from tests.runner.sessions import Sessions


@tool(approval=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def nobody(approver: Approver, request: ToolRequest) -> bool:
    return False


HELPER = Agent("helper", "")


async def test_a_runner_of_a_project_knows_its_settings_providers_budgets_and_approvers() -> None:
    model = ScriptedModel(ToolCall("pay", {"amount": 5}))
    project = Project(
        agent=Agent("shop", "Sell.", [pay]),
        providers={"scripted": model},
        settings={"model": "scripted/x"},
        budgets={"guest": Budget(requests_per_minute=1)},
        approvers=nobody,
    )
    session = InMemorySessionManager("ada", store=InMemoryStore(), category="guest")
    runner = Runner(project, session)
    waiting = await runner.run("Buy it")
    assert (waiting.status, len(model.requests)) == ("waiting", 1)
    with pytest.raises((Forbidden, UnknownRequest)):
        await runner.reply(waiting.requests[0].approve())
    with pytest.raises(BudgetExceeded):
        await Runner(project, session).run("Again")


async def test_a_session_keeps_the_settings_that_it_was_created_with() -> None:
    project = Project(agent=Agent("shop", "Sell."), settings={"model": "scripted/x"})
    session = InMemorySessionManager("ada", store=InMemoryStore(), settings=Settings(model="other/y"))
    Runner(project, session, provider=ScriptedModel())
    assert session.settings.model == "other/y"


async def test_data_and_metadata_of_a_message_come_back_as_json_that_can_be_sent(session_of: SessionOf) -> None:
    """A page that cuts a text in the middle of an emoji sends half a surrogate pair."""
    model, data = ScriptedModel("Hello."), DataPart(name="title", data={"cut": "Hi \ud83d", "size": (1, 2**80)})
    query = Query("Hi", "m1", parts=[TextPart(text="Hi"), data], metadata={"\ud83d": "\ude00"})
    for _ in range(2):
        assert (await Runner(HELPER, session_of("chat"), provider=model).run(query)).text == "Hello."
    question = (await Runner(HELPER, session_of("chat"), provider=model).history())[0]
    shown = ui_message(question.id, "user", question.parts, question.metadata)
    assert json.dumps(shown, ensure_ascii=False).encode()
    assert shown["parts"][1] == {"type": "data-title", "data": {"cut": "Hi ?", "size": [1, 2**80]}}
    assert shown["metadata"] == {"?": "?"}
    assert len(model.requests) == 1, "the second was a retry"


async def test_messages_sessions_and_open_requests_are_found_again(session_of: SessionOf) -> None:
    model = ScriptedModel("One.", "Two.", ToolCall("pay", {"amount": 5}), "Paid.")
    agent = Agent("shop", "Sell.", [pay])
    for text in ("First", "Second"):
        await Runner(agent, session_of("chat"), provider=model).run(text)
    await Runner(agent, session_of("shop"), provider=model).run("Pay")

    again = Runner(agent, session_of("chat"), provider=model)
    assert [message.text for message in await again.history()] == ["First", "One.", "Second", "Two."]
    assert [message.text for message in await again.history(turns=1)] == ["Second", "Two."]
    assert [message.text for message in await again.history(before=2)] == ["First", "One."]
    assert [await again.history(before=number) for number in (1, 0)] == [[], []]
    assert await again.requests() == []

    store, user = session_of("any").store, session_of("any").user
    newest, oldest = await store.list_sessions(user)
    assert [(each.session_id, each.latest_turn_number) for each in (newest, oldest)] == [("shop", 1), ("chat", 2)]
    assert await store.list_sessions(user, limit=1) == [newest]
    assert await store.list_sessions("nobody") == []
    with pytest.raises(ConfigurationError, match=r"limit=0\): must be 1 or more"):
        await store.list_sessions(user, limit=0)

    shop = Runner(agent, session_of("shop"), provider=model)
    [request] = await shop.requests()
    assert (request.tool, request.input, request.user) == ("pay", {"amount": 5}, user)
    assert (await shop.reply(request.approve()).result()).text == "Paid."
    assert await shop.requests() == []
    await shop.erase()
    assert [each.session_id for each in await store.list_sessions(user)] == ["chat"]
    assert await shop.history() == []


async def test_the_history_has_the_question_of_a_running_turn_and_not_its_answer(session_of: SessionOf) -> None:
    gate = Gate()
    stream = await Runner(HELPER, session_of("chat"), provider=ScriptedModel(["Half", gate])).start("Hello?")
    await gate.reached()
    runner = Runner(HELPER, session_of("chat"), provider=ScriptedModel())
    (question,) = await runner.history()
    assert question.text == "Hello?"
    with pytest.raises(TurnInProgress):
        await runner.switch(question.node)
    assert await runner.stop()
    await stream.result()
    assert [message.status for message in await runner.history()] == ["complete", "cancelled"]


async def test_the_tree_has_the_messages_of_all_branches_in_pages(sessions: Sessions) -> None:
    runner = sessions.runner(ScriptedModel("One.", "Two."))
    first = await runner.run(Query("Hello?", "m1"))
    edited = await runner.run(Query("Goodbye?", "m1"))
    *page, last = await runner.tree(limit=3)
    rest = await runner.tree(after=last)
    assert [message.text for message in (*page, last, *rest)] == ["Hello?", "One.", "Goodbye?", "Two."]
    assert [message.parent for message in (*page, last, *rest)] == ["", page[0].node, "", last.node]
    assert (page[1].node, rest[0].node) == (first.message_id, edited.message_id)


async def test_a_provider_factory_that_fails_is_a_mistake_of_the_project() -> None:
    def broken(model: str) -> ScriptedModel:
        raise ZeroDivisionError(model)

    project = Project(agent=Agent("shop", "", model="acme/x"), providers={"acme": broken})
    with pytest.raises(ConfigurationError, match=r"acme/x.*ZeroDivisionError"):
        await Runner(project, InMemorySessionManager("ada", store=InMemoryStore())).run("Hello?")


async def test_a_result_is_returned_after_on_finish_has_run() -> None:
    finished: list[str] = []

    async def on_finish(context: RunContext, result: RunResult) -> None:
        await asyncio.sleep(0)
        finished.append(result.text)

    agent = Agent("shop", "", callbacks=Callbacks(on_finish=on_finish))
    runner = Runner(agent, InMemorySessionManager("ada"), provider=ScriptedModel("One.", "Two."))
    await runner.run("Hello?")
    assert finished == ["One."]
    await (await runner.start("And now?")).result()
    assert finished == ["One.", "Two."]


def test_a_response_body_needs_an_answer_that_has_started() -> None:
    stream = Runner(HELPER, InMemorySessionManager("ada"), provider=ScriptedModel()).run_stream("Hello?")
    with pytest.raises(ConfigurationError, match=r"Write `stream = await runner\.start\(…\)`"):
        stream.sse()


@pytest.mark.parametrize(
    ("name", "sent"),
    [("openai/gpt-6-sol", "gpt-6-sol"), ("acme/parrot", "parrot"), ("meta-llama/Llama-3", "meta-llama/Llama-3")],
)
async def test_a_given_provider_is_sent_the_model_without_a_providers_name(name: str, sent: str) -> None:
    model = ScriptedModel("Hello.")
    project = Project(agent=Agent("helper", "", model=name), providers={"acme": ScriptedModel()})
    await Runner(project, InMemorySessionManager("ada"), provider=model).run("Hi.")
    assert model.requests[0].overrides.model == sent
