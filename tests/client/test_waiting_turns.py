"""The AI SDK's own clients answer turns that wait: approvals, questions and tools that only the client can run."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from omniagent import Agent, Query, ask_user, client_tool, tool
from omniagent.testing import Gate, ScriptedModel
from tests.client.conftest import SdkClient, Server
from tests.client.test_ai_sdk import send, signals_read, stored
from tests.fixtures.conversation import Conversation, move_clock
from tests.runner.sessions import Polled

Json = dict[str, Any]
REFUND = '[echo:Let me see.] [tool:refund {"order": "42"}] [then] [echo:Done.]'
THREE = "".join(f'[tool:refund {{"order": "{order}"}}] ' for order in (1, 2)) + "[tool:locate {}] [then] [echo:Done.]"
approving_versions = pytest.mark.parametrize("version", [6, 7])


class Position(BaseModel):
    latitude: float
    longitude: float = 0.0


@client_tool
async def locate() -> Position:  # type: ignore[empty-body]
    """Find out where the user is."""


class Shop:
    """The server of one test, and what its tool did."""

    def __init__(self, server: Server, conversation: Conversation) -> None:
        self.refunds: list[str] = []

        @tool(approval=lambda _, arguments: f"order {arguments.order} is large")
        async def refund(order: str) -> str:
            """Refund an order."""
            self.refunds.append(order)
            return f"refunded {order}"

        agent = Agent("shop", "", [refund, locate, ask_user])
        self.conversation = server.conversation = conversation.but(agent=agent)
        self.chat = (server.url, self.conversation.session_id)

    @property
    def stored(self) -> list[Json]:
        return stored(self.conversation)


@pytest.fixture
def shop(server: Server, conversation: Conversation) -> Shop:
    return Shop(server, conversation)


def calls(messages: list[Json]) -> list[Json]:
    return [part for part in messages[-1]["parts"] if part["type"].startswith("tool-")]


def states(messages: list[Json]) -> list[str]:
    return [part["state"] for part in calls(messages)]


def decide(call: Json, *, approved: bool, sends: bool = True, **reason: str) -> Json:
    response = {"id": call["approval"]["id"], "approved": approved, **reason}
    return {"do": "decide", "response": response, "sends": sends}


def output(call: Json, value: Any, *, sends: bool = True) -> Json:
    name = call["type"].removeprefix("tool-")
    return {
        "do": "output",
        "result": {"tool": name, "toolCallId": call["toolCallId"], "output": value},
        "sends": sends,
    }


def comparable(messages: list[Json]) -> list[Json]:
    """Messages without what a client of another version keeps, or has not been told live, about an approval."""
    return [
        message | {"parts": [{k: v for k, v in part.items() if k != "approval"} for part in message["parts"]]}
        for message in messages
    ]


@approving_versions
@pytest.mark.parametrize("approved", [True, False])
async def test_the_verdict_is_sent_by_the_sdks_helper_and_the_message_goes_on(
    sdk: SdkClient, shop: Shop, version: int, approved: bool
) -> None:
    waiting = await sdk.drive(*shop.chat, send(REFUND), version=version, answers=True)
    assert (waiting["status"], len(waiting["bodies"]), states(waiting["messages"])) == (
        "ready",
        1,
        ["approval-requested"],
    )
    [call] = calls(waiting["messages"])
    seen = await sdk.drive(
        *shop.chat,
        decide(call, approved=approved, reason="I say so"),
        messages=waiting["messages"],
        version=version,
        answers=True,
    )
    assert (seen["status"], seen["error"], len(seen["bodies"])) == ("ready", None, 1)
    assert [message["id"] for message in seen["messages"]] == [message["id"] for message in waiting["messages"]]
    assert states(seen["messages"]) == ["output-available" if approved else "output-denied"]
    assert calls(shop.stored)[0]["approval"]["reason"] == "I say so"
    assert comparable(seen["messages"]) == comparable(shop.stored)
    assert shop.refunds == (["42"] if approved else [])


@approving_versions
async def test_three_calls_of_a_step_get_different_replies_in_one_request(
    sdk: SdkClient, shop: Shop, version: int
) -> None:
    waiting = await sdk.drive(*shop.chat, send(THREE), version=version, answers=True)
    first, second, third = calls(waiting["messages"])
    seen = await sdk.drive(
        *shop.chat,
        decide(first, approved=True, sends=False),
        output(third, {"latitude": 1.5}, sends=False),
        decide(second, approved=False, reason="too much"),
        messages=waiting["messages"],
        version=version,
        answers=True,
    )
    assert (seen["status"], seen["error"], len(seen["bodies"])) == ("ready", None, 1)
    assert states(seen["messages"]) == ["output-available", "output-denied", "output-available"]
    assert calls(seen["messages"])[2]["output"] == {"latitude": 1.5, "longitude": 0.0}
    assert comparable(seen["messages"]) == comparable(shop.stored)
    assert shop.refunds == ["1"]


@approving_versions
async def test_a_page_that_was_reloaded_and_another_browser_answer_one_step_together(
    sdk: SdkClient, shop: Shop, version: int
) -> None:
    await sdk.drive(*shop.chat, send(THREE), version=version, answers=True)
    reloaded = shop.stored
    first, second, third = calls(reloaded)
    # The other browser answers without the helpers: what is missing is no reason for it not to send.
    denial = {"tool_call_id": second["toolCallId"], "approved": False}
    body = {"session_id": shop.conversation.session_id, "replies": [denial]}
    await sdk.drive(*shop.chat, {"do": "post", "body": body})
    assert states(shop.stored) == ["approval-requested", "output-denied", "input-available"]
    seen = await sdk.drive(
        *shop.chat,
        {"do": "resume"},
        decide(first, approved=True, sends=False),
        output(third, {"latitude": 2}),
        messages=shop.stored,
        version=version,
        answers=True,
    )
    assert (seen["status"], seen["error"]) == ("ready", None)
    assert comparable(seen["messages"]) == comparable(shop.stored)
    assert shop.refunds == ["1"]


async def test_a_deep_output_and_a_large_number_do_not_stop_the_chat(
    sdk: SdkClient, server: Server, conversation: Conversation
) -> None:
    @tool(approval=lambda _, arguments: arguments.needs)
    async def dig(needs: bool) -> Any:
        """Return 32 levels, which are stored as they are, and the largest number that is."""
        found: Any = 2**63 - 1  # a page sends it back as 9223372036854776000
        for _ in range(32):
            found = [found]
        return found

    server.conversation = conversation.but(agent=Agent("miner", "", [dig]))
    both = '[tool:dig {"needs": false}] [tool:dig {"needs": true}] [then] [echo:Done.]'
    waiting = await sdk.drive(server.url, conversation.session_id, send(both))
    approve = decide(calls(waiting["messages"])[1], approved=True)
    seen = await sdk.drive(
        server.url, conversation.session_id, approve, send("[echo:Next.]"), messages=waiting["messages"], answers=True
    )
    assert (seen["error"], states(seen["messages"][:2])) == (None, ["output-available"] * 2)
    assert seen["messages"][-1]["parts"][-1]["text"] == "Next."


@approving_versions
async def test_another_page_is_told_who_decided_what_and_why(sdk: SdkClient, shop: Shop, version: int) -> None:
    await sdk.drive(*shop.chat, send(REFUND), version=version)
    page = shop.stored
    [call] = calls(page)
    denial = {"tool_call_id": call["toolCallId"], "approved": False, "reason": "too much"}
    body = {"session_id": shop.conversation.session_id, "replies": [denial]}
    seen = await sdk.drive(
        *shop.chat, {"do": "post", "body": body}, {"do": "resume"}, messages=page, version=version, answers=True
    )
    assert (seen["status"], seen["error"], states(seen["messages"])) == ("ready", None, ["output-denied"])
    verdict = {"approvalId": call["approval"]["id"], "toolCallId": call["toolCallId"], "approved": False}
    told = {"type": "data-approval-response", "data": verdict | {"reason": "too much"}, "transient": True}
    if version == 7:
        assert seen["messages"] == shop.stored, "the reason is in the part, as after a reload"
    else:
        assert told in seen["data"], "version 6 has no chunk for it: its page is told, its message is not"
        assert comparable(seen["messages"]) == comparable(shop.stored)


@approving_versions
async def test_a_resumed_approval_is_valid_for_the_clients_own_schema(sdk: SdkClient, shop: Shop, version: int) -> None:
    await sdk.drive(*shop.chat, send(REFUND), version=version)
    page = shop.stored
    approval = {"tool_call_id": calls(page)[0]["toolCallId"], "approved": True}
    body = {"session_id": shop.conversation.session_id, "replies": [approval]}
    seen = await sdk.drive(
        *shop.chat, {"do": "post", "body": body}, {"do": "resume"}, {"do": "validate"}, messages=page, version=version
    )
    assert (seen["error"], seen["valid"], states(seen["messages"])) == (None, True, ["output-available"])
    assert comparable(seen["messages"]) == comparable(shop.stored)


async def test_version_7_is_shown_a_message_that_joins_the_answer(
    sdk: SdkClient, server: Server, conversation: Conversation
) -> None:
    gate = Gate()
    model = ScriptedModel(["A long", gate, " answer."], "A short one.")
    asked = server.conversation = conversation.but(provider=model, agent=Agent("helper", ""), registry=Polled())
    reading = asyncio.create_task(sdk.drive(server.url, asked.session_id, send("Hello"), version=7))
    await gate.reached()
    joining = await asked.start(Query("Short, please.", "m2", busy="steer"))
    await signals_read(asked)
    gate.set()
    seen = await reading
    await joining.ended()
    assert (seen["status"], seen["error"]) == ("ready", None)
    part = {"type": "steering-message", "id": "m2", "parts": [{"type": "text", "text": "Short, please."}]}
    assert part in seen["messages"][-1]["parts"]
    assert seen["messages"][-1] == stored(asked, sdk=7)[-1]


@approving_versions
async def test_an_answer_after_a_month_goes_on_and_one_after_the_expiry_is_refused(
    sdk: SdkClient, shop: Shop, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sdk.drive(*shop.chat, send(REFUND), version=version)
    move_clock(monkeypatch, days=30)
    [call] = calls(shop.stored)
    approve = decide(call, approved=True)
    seen = await sdk.drive(*shop.chat, approve, messages=shop.stored, version=version, answers=True)
    assert (seen["status"], states(seen["messages"]), shop.refunds) == ("ready", ["output-available"], ["42"])

    await sdk.drive(*shop.chat, send(REFUND), messages=shop.stored, version=version)
    [late] = calls(shop.stored)
    before = shop.stored
    move_clock(monkeypatch, days=61)
    refused = await sdk.drive(*shop.chat, decide(late, approved=True), messages=before, version=version, answers=True)
    assert refused["status"] == "error"
    assert "request_expired" in refused["error"]
    assert (states(shop.stored), shop.refunds) == (["output-denied"], ["42"])


@approving_versions
async def test_a_question_is_answered_and_the_turn_may_ask_again(sdk: SdkClient, shop: Shop, version: int) -> None:
    ask = '[tool:ask_user {"question": "Which?", "choices": ["red", "blue"]}] [then] ' + REFUND
    waiting = await sdk.drive(*shop.chat, send(ask), version=version, answers=True)
    [question] = calls(waiting["messages"])
    asked = await sdk.drive(
        *shop.chat, output(question, "red"), messages=waiting["messages"], version=version, answers=True
    )
    assert (asked["status"], states(asked["messages"])) == ("ready", ["output-available", "approval-requested"])
    approve = decide(calls(asked["messages"])[1], approved=True)
    seen = await sdk.drive(*shop.chat, approve, messages=asked["messages"], version=version, answers=True)
    assert (seen["status"], seen["error"]) == ("ready", None)
    assert comparable(seen["messages"]) == comparable(shop.stored)
    assert shop.refunds == ["42"]


@approving_versions
async def test_a_new_message_instead_of_an_answer_is_answered(sdk: SdkClient, shop: Shop, version: int) -> None:
    seen = await sdk.drive(*shop.chat, send(REFUND), send("[echo:Then not.]"), version=version, answers=True)
    assert (seen["status"], seen["error"], len(seen["messages"])) == ("ready", None, 4)
    assert shop.stored[1]["metadata"]["stopReason"] == "unanswered"
    assert seen["messages"][2:] == shop.stored[2:]


async def test_version_5_runs_its_tools_and_is_told_of_approvals_in_its_own_way(sdk: SdkClient, shop: Shop) -> None:
    waiting = await sdk.drive(*shop.chat, send("[tool:locate {}] [then] " + REFUND), version=5, answers=True)
    [call] = calls(waiting["messages"])
    asked = await sdk.drive(
        *shop.chat, output(call, {"latitude": 3}), messages=waiting["messages"], version=5, answers=True
    )
    assert (asked["status"], asked["error"]) == ("ready", None)
    assert asked["messages"] == stored(shop.conversation, sdk=5), "as after a reload"
    [request] = [part for part in asked["messages"][-1]["parts"] if part["type"] == "data-approval-request"]
    answer = {"tool_call_id": request["data"]["toolCallId"], "approved": False}
    body = {"session_id": shop.conversation.session_id, "replies": [answer]}
    seen = await sdk.drive(
        *shop.chat, {"do": "post", "body": body}, {"do": "resume"}, messages=asked["messages"], version=5, answers=True
    )
    assert (seen["status"], seen["error"]) == ("ready", None)
    assert states(seen["messages"]) == ["output-available", "output-error"]
    assert seen["messages"] == stored(shop.conversation, sdk=5)
    assert seen["messages"][-1]["parts"][-1]["text"] == "Done."
    assert shop.refunds == []


async def test_version_5_shows_a_request_in_one_place_live_resumed_and_reloaded(sdk: SdkClient, shop: Shop) -> None:
    two = '[tool:refund {"order": "1"}] [tool:locate {}] [then] [echo:Done.]'
    live = await sdk.drive(*shop.chat, send(two), version=5)
    resumed = await sdk.drive(*shop.chat, {"do": "resume"}, messages=live["messages"][:1], version=5)
    assert live["messages"] == resumed["messages"] == stored(shop.conversation, sdk=5)
    kinds = [part["type"] for part in live["messages"][-1]["parts"]]
    assert kinds == ["step-start", "tool-refund", "tool-locate", "data-approval-request"]


@pytest.mark.parametrize("version", [5, 6, 7])
async def test_a_page_with_a_stopped_tool_sends_by_itself_only_once(
    sdk: SdkClient, server: Server, conversation: Conversation, version: int
) -> None:
    @tool
    async def wait() -> None:
        """Wait until stopped."""
        await asyncio.Event().wait()

    asked = server.conversation = conversation.but(agent=Agent("helper", "", [locate, wait]))
    chat = (server.url, asked.session_id)
    waiting = await sdk.drive(*chat, send("[tool:locate {}] [then] [tool:wait {}]"), version=version, answers=True)
    [call] = calls(waiting["messages"])
    stop = output(call, {"latitude": 1}) | {"when": "tool-input-available", "then": "stop"}
    seen = await sdk.drive(*chat, stop, messages=waiting["messages"], version=version, answers=True)
    assert (seen["status"], seen["error"], len(seen["bodies"])) == ("ready", None, 2)
    assert seen["messages"][-1]["parts"] == [*stored(asked)[-1]["parts"], {"type": "step-start"}]
