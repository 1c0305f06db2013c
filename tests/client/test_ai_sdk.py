"""What the AI SDK's own client makes of our streams: the same message that is stored, whatever happens on the way."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from omniagent.turns.engine import following
from tests.client.conftest import RESUME, THINK, Page, send, signals_read, slow_agent
from tests.fixtures.conversation import QUICK
from tests.fixtures.conversation import seen as seen_of
from tests.runner.scenarios import SCENARIOS, Scenario, agent
from tests.runner.sessions import Polled

Json = dict[str, Any]
STALL = "[stall] [echo:one two three four]"
CUT = {"when": "tool-input-available", "then": "cut"}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_the_client_accepts_the_stream_and_builds_the_message_that_is_stored(
    page: Page, scenario: Scenario
) -> None:
    page.serve(agent=agent(), settings=replace(QUICK, **scenario.settings))
    seen = await page.drive(send(scenario.prompt))
    assert seen["messages"] == page.stored
    assert (seen["status"], seen["error"]) == (("error", scenario.error) if scenario.error else ("ready", None))
    assert [(part["type"], part["data"]["status"]) for part in seen["data"]] == [("data-session", scenario.status)]
    end = {"isAbort": False, "isDisconnect": False, "isError": scenario.error is not None}
    assert seen["finishes"] == [end | {"finishReason": scenario.reason}]


@pytest.mark.parametrize("version", [5, 7])
async def test_arguments_that_are_not_json_are_shown_live_as_they_are_stored(page: Page, version: int) -> None:
    page.version = version
    page.serve(agent=agent())
    seen = await page.drive(send("[bad-args:add] [then] [echo:Five.]"))
    assert seen["messages"] == page.stored


async def test_stop_keeps_the_text(page: Page) -> None:
    seen = await page.drive(send(STALL, when="text-delta", then="stop"))
    assert (seen["status"], seen["messages"]) == ("ready", page.stored)
    assert seen["messages"][1]["parts"][1] == {"type": "text", "text": "one two three", "state": "done"}
    assert seen["messages"][1]["metadata"]["status"] == "cancelled"
    assert [part["data"]["status"] for part in seen["data"]] == ["cancelled"]


async def test_resuming_after_a_cut_connection_ends_with_the_message_of_an_uninterrupted_client(page: Page) -> None:
    helper, released = slow_agent()
    page.serve(agent=helper)
    seen = await page.drive(send(THINK, **CUT))
    assert (seen["status"], seen["finishes"][0]["isDisconnect"]) == ("error", True)

    resuming = asyncio.create_task(page.drive(RESUME, messages=seen["messages"]))
    uninterrupted = asyncio.create_task(page.drive(RESUME, messages=seen["messages"][:1]))
    await page.server.joined.acquire()
    await page.server.joined.acquire()
    released.set()
    resumed, followed = await resuming, await uninterrupted
    assert resumed["status"] == followed["status"] == "ready"
    assert resumed["messages"] == followed["messages"] == page.stored


async def test_resuming_in_the_same_chat_replaces_what_was_half_built(page: Page) -> None:
    stop = RESUME | {"when": "text-delta", "then": "stop"}
    seen = await page.drive(send(STALL, when="text-delta", then="cut"), stop)
    assert (seen["status"], seen["error"]) == ("ready", None)
    assert seen["messages"] == page.stored


async def test_a_stream_that_ends_itself_leaves_a_client_that_resumes_to_the_whole_answer(page: Page) -> None:
    helper, released = slow_agent()
    page.serve(agent=helper)
    left = await page.drive(send(THINK, when="tool-input-available", then="leave"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "FOLLOW_SECONDS", 0.01)
        ended = await page.drive(RESUME, messages=left["messages"][:1])
    assert (ended["status"], ended["error"]) == ("ready", None)
    assert ended["finishes"][-1].get("finishReason") is None, "what tells a client to resume"
    resuming = asyncio.create_task(page.drive(RESUME, messages=ended["messages"]))
    await page.server.joined.acquire()
    await page.server.joined.acquire()
    released.set()
    assert (await resuming)["messages"] == page.stored


async def test_resuming_an_answer_that_has_just_ended_shows_it_once(page: Page) -> None:
    page.serve(agent=agent())
    seen = await page.drive(send('[reason] [tool:add {"a": 1, "b": 2}] [then] [echo:Three.]'), RESUME)
    assert (seen["status"], seen["messages"]) == ("ready", page.stored)
    late = await page.drive(RESUME, messages=seen["messages"][:1])
    assert (late["status"], late["messages"]) == ("ready", page.stored)


async def test_a_retry_of_an_answered_message_shows_the_one_answer(page: Page) -> None:
    prompt = '[reason] [tool:add {"a": 1, "b": 2}] [tool:fly {}] [then] [bad-args:add] [then] [echo:Three.]'
    model = page.serve(agent=agent()).model
    first = await page.drive(send(prompt))
    requests = model.count
    seen = await page.drive(send(prompt, again=first["messages"][0]["id"]), messages=first["messages"])
    assert seen["messages"] == first["messages"] == page.stored
    assert model.count == requests


async def test_regenerate_replaces_the_last_answer(page: Page) -> None:
    before = await page.drive(send("[echo:One.]"), send("[echo:Two.]"))
    again = {"do": "regenerate", "messageId": before["messages"][-1]["id"]}
    seen = await page.drive(again, messages=before["messages"])
    assert (seen["status"], seen["messages"]) == ("ready", page.stored)
    assert seen["messages"][:-1] == before["messages"][:-1]
    assert seen["messages"][-1]["id"] != before["messages"][-1]["id"]


async def test_a_second_message_is_refused_with_a_reason_while_the_first_is_answered(page: Page) -> None:
    turn = await page.conversation.start(STALL)
    seen = await page.drive(send("And another one"))
    assert seen["status"] == "error"
    assert "turn_in_progress" in seen["error"]
    await page.conversation.stop()
    await turn.result()


async def test_a_message_that_steers_ends_with_the_answer_that_it_joined(page: Page) -> None:
    helper, released = slow_agent()
    asked = page.serve(agent=helper, registry=Polled())
    turn = await asked.start(THINK)
    await seen_of(turn, "tool-input-available")
    steering = asyncio.create_task(page.drive(send("[echo:A short answer.]", body={"busy": "steer"})))
    await page.server.joined.acquire()
    await signals_read(asked)
    released.set()
    steered = await steering
    await turn.ended()
    assert (steered["status"], steered["error"]) == ("ready", None)
    [question, answer] = page.stored
    assert (question["role"], steered["messages"][-1]) == ("user", answer)
    part = {"type": "data-steering", "id": steered["messages"][0]["id"], "data": {"text": "[echo:A short answer.]"}}
    assert part in answer["parts"]
