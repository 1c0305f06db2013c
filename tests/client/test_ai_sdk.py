"""What the AI SDK's own client makes of our streams: the same message that is stored, whatever happens on the way."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

from omniagent import Agent, tool
from omniagent.messages import Part
from omniagent.protocol.ui_messages import ui_message
from omniagent.session.ids import new_id
from omniagent.turns.engine import following
from tests.client.conftest import SdkClient, Server
from tests.fixtures.conversation import QUICK, Conversation
from tests.fixtures.conversation import seen as seen_of
from tests.runner.scenarios import SCENARIOS, Scenario, agent
from tests.runner.sessions import Polled, until

Json = dict[str, Any]
_PARTS: TypeAdapter[list[Part]] = TypeAdapter(list[Part])


def send(text: str, **more: Any) -> Json:
    return {"do": "send", "text": text, **more}


def stored(conversation: Conversation, *, sdk: int = 6) -> list[Json]:
    """The conversation as GET /sessions/{id}/messages gives it."""
    return [
        ui_message(
            message["client_message_id"],
            message["role"],
            _PARTS.validate_python(message["parts"]),
            message["metadata"],
            sdk=sdk,
        )
        for message in conversation.messages
    ]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_the_client_accepts_the_stream_and_builds_the_message_that_is_stored(
    sdk: SdkClient, server: Server, conversation: Conversation, scenario: Scenario
) -> None:
    asked = server.conversation = conversation.but(agent=agent(), settings=replace(QUICK, **scenario.settings))
    seen = await sdk.drive(server.url, asked.session_id, send(scenario.prompt))
    assert seen["messages"] == stored(asked)
    assert (seen["status"], seen["error"]) == (("error", scenario.error) if scenario.error else ("ready", None))
    assert [(part["type"], part["data"]["status"]) for part in seen["data"]] == [("data-session", scenario.status)]
    assert seen["finishes"] == [
        {
            "isAbort": False,
            "isDisconnect": False,
            "isError": scenario.error is not None,
            "finishReason": scenario.reason,
        }
    ]


@pytest.mark.parametrize("version", [5, 7])
async def test_arguments_that_are_not_json_are_shown_live_as_they_are_stored(
    sdk: SdkClient, server: Server, conversation: Conversation, version: int
) -> None:
    asked = server.conversation = conversation.but(agent=agent())
    seen = await sdk.drive(server.url, asked.session_id, send("[bad-args:add] [then] [echo:Five.]"), version=version)
    assert seen["messages"] == stored(asked, sdk=version)


async def test_stop_keeps_the_text(sdk: SdkClient, server: Server, conversation: Conversation) -> None:
    stop = send("[stall] [echo:one two three four]", when="text-delta", then="stop")
    seen = await sdk.drive(server.url, conversation.session_id, stop)
    assert seen["status"] == "ready"
    assert seen["messages"] == stored(conversation)
    assert seen["messages"][1]["parts"][1] == {"type": "text", "text": "one two three", "state": "done"}
    assert seen["messages"][1]["metadata"]["status"] == "cancelled"
    assert [part["data"]["status"] for part in seen["data"]] == ["cancelled"]


def slow_agent() -> tuple[Agent, asyncio.Event]:
    """An agent with a tool that answers when the test lets it."""
    released = asyncio.Event()

    @tool
    async def think() -> str:
        """Think for as long as the test wants."""
        await released.wait()
        return "thought"

    return Agent("helper", "", [think]), released


THINK = "[echo:Let me think.] [tool:think {}] [then] [echo:Here is the answer.]"


async def test_resuming_after_a_cut_connection_ends_with_the_message_of_an_uninterrupted_client(
    sdk: SdkClient, server: Server, conversation: Conversation
) -> None:
    helper, released = slow_agent()
    asked = server.conversation = conversation.but(agent=helper)
    cut = send(THINK, when="tool-input-available", then="cut")
    seen = await sdk.drive(server.url, asked.session_id, cut)
    assert (seen["status"], seen["finishes"][0]["isDisconnect"]) == ("error", True)

    resuming = asyncio.create_task(sdk.drive(server.url, asked.session_id, {"do": "resume"}, messages=seen["messages"]))
    uninterrupted = asyncio.create_task(
        sdk.drive(server.url, asked.session_id, {"do": "resume"}, messages=seen["messages"][:1])
    )
    await server.joined.acquire()
    await server.joined.acquire()
    released.set()
    resumed, followed = await resuming, await uninterrupted
    assert resumed["status"] == followed["status"] == "ready"
    assert resumed["messages"] == followed["messages"] == stored(asked)


async def test_resuming_in_the_same_chat_replaces_what_was_half_built(
    sdk: SdkClient, server: Server, conversation: Conversation
) -> None:
    asked = server.conversation = conversation
    cut = send("[stall] [echo:one two three four]", when="text-delta", then="cut")
    stop = {"do": "resume", "when": "text-delta", "then": "stop"}
    seen = await sdk.drive(server.url, asked.session_id, cut, stop)
    assert (seen["status"], seen["error"]) == ("ready", None)
    assert seen["messages"] == stored(asked)


async def test_a_client_that_only_reconnects_ends_with_the_parts_of_an_undisturbed_run(
    sdk: SdkClient, server: Server, conversation: Conversation
) -> None:
    """Its process freezes in a tool that may run again, and counts as dead; another one finishes the turn."""
    thawed = asyncio.Event()
    runs: list[None] = []

    @tool(retry_safe=True)
    async def think() -> str:
        """Think."""
        runs.append(None)
        if len(runs) == 1:
            await thawed.wait()
        return "thought"

    async def is_free() -> bool:
        return not len(alive.store.open_turns)

    helper = Agent("helper", "", [think])
    alive = server.conversation = conversation.but(agent=helper)
    lost = await sdk.drive(server.url, alive.session_id, send(THINK, when="tool-input-available", then="cut"))
    dead = server.conversation = alive.but(later=timedelta(seconds=2 * alive.settings.lease_seconds))
    seen = await sdk.drive(server.url, dead.session_id, {"do": "resume"}, messages=lost["messages"])
    thawed.set()
    await until(is_free)
    assert (seen["status"], seen["error"]) == ("ready", None)
    assert seen["messages"] == stored(dead)
    assert seen["messages"][1]["metadata"]["status"] == "complete"

    server.conversation = conversation.but(agent=helper, session_id=new_id())
    whole = await sdk.drive(server.url, server.conversation.session_id, send(THINK))
    assert _without_ids(seen["messages"][1]["parts"]) == _without_ids(whole["messages"][1]["parts"])


async def signals_read(conversation: Conversation) -> None:
    """Wait until the running turn has read its signals: that of a message in line was sent before."""
    registry = conversation.registry
    assert isinstance(registry, Polled)
    last = registry.polls + 2

    async def have_been() -> bool:
        return registry.polls >= last

    await until(have_been)


def _without_ids(parts: list[Json]) -> list[Json]:
    return [{name: value for name, value in part.items() if name != "toolCallId"} for part in parts]


async def test_a_stream_that_ends_itself_leaves_a_client_that_resumes_to_the_whole_answer(
    sdk: SdkClient, server: Server, conversation: Conversation
) -> None:
    helper, released = slow_agent()
    asked = server.conversation = conversation.but(agent=helper)
    leave = send(THINK, when="tool-input-available", then="leave")
    left = await sdk.drive(server.url, asked.session_id, leave)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "FOLLOW_SECONDS", 0.01)
        ended = await sdk.drive(server.url, asked.session_id, {"do": "resume"}, messages=left["messages"][:1])
    assert (ended["status"], ended["error"]) == ("ready", None)
    assert ended["finishes"][-1].get("finishReason") is None, "what tells a client to resume"
    resume = {"do": "resume"}
    resuming = asyncio.create_task(sdk.drive(server.url, asked.session_id, resume, messages=ended["messages"]))
    await server.joined.acquire()
    await server.joined.acquire()
    released.set()
    assert (await resuming)["messages"] == stored(asked)


async def test_resuming_an_answer_that_has_just_ended_shows_it_once(
    sdk: SdkClient, server: Server, conversation: Conversation
) -> None:
    prompt = '[reason] [tool:add {"a": 1, "b": 2}] [then] [echo:Three.]'
    asked = server.conversation = conversation.but(agent=agent())
    seen = await sdk.drive(server.url, asked.session_id, send(prompt), {"do": "resume"})
    assert (seen["status"], seen["messages"]) == ("ready", stored(asked))
    late = await sdk.drive(server.url, asked.session_id, {"do": "resume"}, messages=seen["messages"][:1])
    assert (late["status"], late["messages"]) == ("ready", stored(asked))


async def test_a_retry_of_an_answered_message_shows_the_one_answer(
    sdk: SdkClient, server: Server, conversation: Conversation
) -> None:
    prompt = '[reason] [tool:add {"a": 1, "b": 2}] [tool:fly {}] [then] [bad-args:add] [then] [echo:Three.]'
    asked = server.conversation = conversation.but(agent=agent())
    first = await sdk.drive(server.url, asked.session_id, send(prompt))
    requests = asked.model.count
    again = send(prompt, again=first["messages"][0]["id"])
    seen = await sdk.drive(server.url, asked.session_id, again, messages=first["messages"])
    assert seen["messages"] == first["messages"] == stored(asked)
    assert asked.model.count == requests


async def test_regenerate_replaces_the_last_answer(sdk: SdkClient, server: Server, conversation: Conversation) -> None:
    one, two = send("[echo:One.]"), send("[echo:Two.]")
    before = await sdk.drive(server.url, conversation.session_id, one, two)
    seen = await sdk.drive(
        server.url,
        conversation.session_id,
        {"do": "regenerate", "messageId": before["messages"][-1]["id"]},
        messages=before["messages"],
    )
    assert (seen["status"], seen["messages"]) == ("ready", stored(conversation))
    assert seen["messages"][:-1] == before["messages"][:-1]
    assert seen["messages"][-1]["id"] != before["messages"][-1]["id"]


async def test_a_second_message_is_refused_with_a_reason_while_the_first_is_answered(
    sdk: SdkClient, server: Server, conversation: Conversation
) -> None:
    asked = server.conversation = conversation
    turn = await asked.start("[stall] [echo:one two three four]")
    seen = await sdk.drive(server.url, asked.session_id, send("And another one"))
    assert seen["status"] == "error"
    assert "turn_in_progress" in seen["error"]
    await asked.stop()
    await turn.result()


async def test_a_message_that_steers_ends_with_the_answer_that_it_joined(
    sdk: SdkClient, server: Server, conversation: Conversation
) -> None:
    helper, released = slow_agent()
    asked = server.conversation = conversation.but(agent=helper, registry=Polled())
    turn = await asked.start(THINK)
    await seen_of(turn, "tool-input-available")
    steer = send("[echo:A short answer.]", body={"busy": "steer"})
    steering = asyncio.create_task(sdk.drive(server.url, asked.session_id, steer))
    await server.joined.acquire()
    await signals_read(asked)
    released.set()
    steered = await steering
    await turn.ended()
    assert (steered["status"], steered["error"]) == ("ready", None)
    answer = stored(asked)[-1]
    assert steered["messages"][-1] == answer
    question = steered["messages"][0]
    part = {"type": "data-steering", "id": question["id"], "data": {"text": "[echo:A short answer.]"}}
    assert part in answer["parts"]
    assert [message["role"] for message in stored(asked)] == ["user", "assistant"]


@pytest.mark.parametrize("api", ["chat"])  # every other test asks the other API of the model
async def test_a_conversation_goes_on_after_every_kind_of_answer(
    sdk: SdkClient, server: Server, conversation: Conversation
) -> None:
    """One chat in one tab through all the scenarios: what it shows at the end is what is stored."""
    asked = server.conversation = conversation.but(agent=agent())
    short = [scenario for scenario in SCENARIOS if not scenario.settings]
    seen = await sdk.drive(server.url, asked.session_id, *(send(scenario.prompt) for scenario in short))
    assert len(seen["messages"]) == 2 * len(short)
    assert seen["messages"] == stored(asked)
