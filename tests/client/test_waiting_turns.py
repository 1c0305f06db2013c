"""The AI SDK's own clients answer turns that wait: approvals, questions and tools that only the client can run."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from omniagent import Agent, Query, ask_user, client_tool, tool
from omniagent.testing import Gate, ScriptedModel
from tests.client.conftest import RESUME, Page, SdkClient, Server, send, signals_read
from tests.fixtures.conversation import move_clock
from tests.runner.sessions import Polled

Json = dict[str, Any]
REFUND = '[echo:Let me see.] [tool:refund {"order": "42"}] [then] [echo:Done.]'
THREE = "".join(f'[tool:refund {{"order": "{order}"}}] ' for order in (1, 2)) + "[tool:locate {}] [then] [echo:Done.]"


class Position(BaseModel):
    latitude: float
    longitude: float = 0.0


@client_tool
async def locate() -> Position:  # type: ignore[empty-body]
    """Find out where the user is."""


class Shop(Page):
    """A page that sends by itself once everything is answered, and what the server's tool did."""

    def __init__(self, sdk: SdkClient, server: Server, version: int) -> None:
        super().__init__(sdk, server, version, answers=True)
        self.refunds: list[str] = []

        @tool(approval=lambda _, arguments: f"order {arguments.order} is large")
        async def refund(order: str) -> str:
            """Refund an order."""
            self.refunds.append(order)
            return f"refunded {order}"

        self.serve(agent=Agent("shop", "", [refund, locate, ask_user]))

    def post(self, call_id: str, **verdict: Any) -> Json:
        """Another browser answers a call, without the SDK's helpers."""
        replies = [{"tool_call_id": call_id, **verdict}]
        return {"do": "post", "body": {"session_id": self.conversation.session_id, "replies": replies}}


@pytest.fixture(params=[6, 7])
def shop(sdk: SdkClient, server: Server, request: pytest.FixtureRequest) -> Shop:
    """For each version that knows approvals."""
    return Shop(sdk, server, request.param)


@pytest.fixture
def old_shop(sdk: SdkClient, server: Server) -> Shop:
    return Shop(sdk, server, 5)


def calls(messages: list[Json]) -> list[Json]:
    return [part for part in messages[-1]["parts"] if part["type"].startswith("tool-")]


def states(messages: list[Json]) -> list[str]:
    return [part["state"] for part in calls(messages)]


def decide(call: Json, *, approved: bool, sends: bool = True, **reason: str) -> Json:
    response = {"id": call["approval"]["id"], "approved": approved, **reason}
    return {"do": "decide", "response": response, "sends": sends}


def output(call: Json, value: Any, *, sends: bool = True) -> Json:
    result = {"tool": call["type"].removeprefix("tool-"), "toolCallId": call["toolCallId"], "output": value}
    return {"do": "output", "result": result, "sends": sends}


def comparable(messages: list[Json]) -> list[Json]:
    """Messages without what a client of another version keeps, or has not been told live, about an approval."""
    return [
        message | {"parts": [{k: v for k, v in part.items() if k != "approval"} for part in message["parts"]]}
        for message in messages
    ]


def check_shown(seen: Json, shop: Shop, *expected: str) -> None:
    """Hold what a page shows against what is stored, and the states of its last message's calls."""
    assert (seen["status"], seen["error"]) == ("ready", None)
    assert states(seen["messages"]) == list(expected)
    assert comparable(seen["messages"]) == comparable(shop.stored)


@pytest.mark.parametrize("approved", [True, False])
async def test_the_verdict_is_sent_by_the_sdks_helper_and_the_message_goes_on(shop: Shop, approved: bool) -> None:
    waiting = await shop.drive(send(REFUND))
    assert (waiting["status"], len(waiting["bodies"])) == ("ready", 1)
    assert states(waiting["messages"]) == ["approval-requested"]
    [call] = calls(waiting["messages"])
    verdict = decide(call, approved=approved, reason="I say so")
    seen = await shop.drive(verdict, messages=waiting["messages"])
    check_shown(seen, shop, "output-available" if approved else "output-denied")
    assert len(seen["bodies"]) == 1
    assert [message["id"] for message in seen["messages"]] == [message["id"] for message in waiting["messages"]]
    assert calls(shop.stored)[0]["approval"]["reason"] == "I say so"
    assert shop.refunds == (["42"] if approved else [])


async def test_three_calls_of_a_step_get_different_replies_in_one_request(shop: Shop) -> None:
    waiting = await shop.drive(send(THREE))
    first, second, third = calls(waiting["messages"])
    seen = await shop.drive(
        decide(first, approved=True, sends=False),
        output(third, {"latitude": 1.5}, sends=False),
        decide(second, approved=False, reason="too much"),
        messages=waiting["messages"],
    )
    check_shown(seen, shop, "output-available", "output-denied", "output-available")
    assert len(seen["bodies"]) == 1
    assert calls(seen["messages"])[2]["output"] == {"latitude": 1.5, "longitude": 0.0}
    assert shop.refunds == ["1"]


async def test_a_page_that_was_reloaded_and_another_browser_answer_one_step_together(shop: Shop) -> None:
    await shop.drive(send(THREE))
    first, second, third = calls(shop.stored)
    await shop.drive(shop.post(second["toolCallId"], approved=False), version=6, answers=False)
    assert states(shop.stored) == ["approval-requested", "output-denied", "input-available"]
    approve, located = decide(first, approved=True, sends=False), output(third, {"latitude": 2})
    seen = await shop.drive(RESUME, approve, located, messages=shop.stored)
    check_shown(seen, shop, "output-available", "output-denied", "output-available")
    assert shop.refunds == ["1"]


async def test_a_deep_output_and_a_large_number_do_not_stop_the_chat(page: Page) -> None:
    @tool(approval=lambda _, arguments: arguments.needs)
    async def dig(needs: bool) -> Any:
        """Return 32 levels, which are stored as they are, and the largest number that is."""
        found: Any = 2**63 - 1  # a page sends it back as 9223372036854776000
        for _ in range(32):
            found = [found]
        return found

    page.serve(agent=Agent("miner", "", [dig]))
    waiting = await page.drive(send('[tool:dig {"needs": false}] [tool:dig {"needs": true}] [then] [echo:Done.]'))
    approve = decide(calls(waiting["messages"])[1], approved=True)
    seen = await page.drive(approve, send("[echo:Next.]"), messages=waiting["messages"], answers=True)
    assert (seen["error"], states(seen["messages"][:2])) == (None, ["output-available"] * 2)
    assert seen["messages"][-1]["parts"][-1]["text"] == "Next."


async def test_another_page_is_told_who_decided_what_and_why(shop: Shop) -> None:
    await shop.drive(send(REFUND), answers=False)
    page = shop.stored
    [call] = calls(page)
    seen = await shop.drive(shop.post(call["toolCallId"], approved=False, reason="too much"), RESUME, messages=page)
    check_shown(seen, shop, "output-denied")
    verdict = {"approvalId": call["approval"]["id"], "toolCallId": call["toolCallId"], "approved": False}
    told = {"type": "data-approval-response", "data": verdict | {"reason": "too much"}, "transient": True}
    if shop.version == 7:
        assert seen["messages"] == shop.stored, "the reason is in the part, as after a reload"
    else:
        assert told in seen["data"], "version 6 has no chunk for it: its page is told, its message is not"


async def test_a_resumed_approval_is_valid_for_the_clients_own_schema(shop: Shop) -> None:
    shop.answers = False
    await shop.drive(send(REFUND))
    page = shop.stored
    approval = shop.post(calls(page)[0]["toolCallId"], approved=True)
    seen = await shop.drive(approval, RESUME, {"do": "validate"}, messages=page)
    check_shown(seen, shop, "output-available")
    assert seen["valid"] is True
    told = [call.get("approval", {}).get("approved") for call in calls(seen["messages"])]
    assert told == [True if shop.version == 7 else None], "only version 7 has a chunk for it"


async def test_version_7_is_shown_a_message_that_joins_the_answer(page: Page) -> None:
    page.version = 7
    gate = Gate()
    model = ScriptedModel(["A long", gate, " answer."], "A short one.")
    asked = page.serve(provider=model, agent=Agent("helper", ""), registry=Polled())
    reading = asyncio.create_task(page.drive(send("Hello")))
    await gate.reached()
    joining = await asked.start(Query("Short, please.", "m2", busy="steer"))
    await signals_read(asked)
    gate.set()
    seen = await reading
    await joining.ended()
    assert (seen["status"], seen["error"]) == ("ready", None)
    part = {"type": "steering-message", "id": "m2", "parts": [{"type": "text", "text": "Short, please."}]}
    assert part in seen["messages"][-1]["parts"]
    assert seen["messages"][-1] == page.stored[-1]


async def test_an_answer_after_a_month_goes_on_and_one_after_the_expiry_is_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.drive(send(REFUND), answers=False)
    move_clock(monkeypatch, days=30)
    [call] = calls(shop.stored)
    seen = await shop.drive(decide(call, approved=True), messages=shop.stored)
    assert (seen["status"], states(seen["messages"]), shop.refunds) == ("ready", ["output-available"], ["42"])

    await shop.drive(send(REFUND), messages=shop.stored, answers=False)
    [late] = calls(shop.stored)
    before = shop.stored
    move_clock(monkeypatch, days=61)
    refused = await shop.drive(decide(late, approved=True), messages=before)
    assert refused["status"] == "error"
    assert "request_expired" in refused["error"]
    assert (states(shop.stored), shop.refunds) == (["output-denied"], ["42"])


async def test_a_question_is_answered_and_the_turn_may_ask_again(shop: Shop) -> None:
    ask = '[tool:ask_user {"question": "Which?", "choices": ["red", "blue"]}] [then] ' + REFUND
    waiting = await shop.drive(send(ask))
    [question] = calls(waiting["messages"])
    asked = await shop.drive(output(question, "red"), messages=waiting["messages"])
    assert (asked["status"], states(asked["messages"])) == ("ready", ["output-available", "approval-requested"])
    seen = await shop.drive(decide(calls(asked["messages"])[1], approved=True), messages=asked["messages"])
    check_shown(seen, shop, "output-available", "output-available")
    assert shop.refunds == ["42"]


async def test_a_new_message_instead_of_an_answer_is_answered(shop: Shop) -> None:
    seen = await shop.drive(send(REFUND), send("[echo:Then not.]"))
    assert (seen["status"], seen["error"], len(seen["messages"])) == ("ready", None, 4)
    assert shop.stored[1]["metadata"]["stopReason"] == "unanswered"
    assert seen["messages"][2:] == shop.stored[2:]


async def test_version_5_runs_its_tools_and_is_told_of_approvals_in_its_own_way(old_shop: Shop) -> None:
    shop = old_shop
    waiting = await shop.drive(send("[tool:locate {}] [then] " + REFUND))
    [call] = calls(waiting["messages"])
    asked = await shop.drive(output(call, {"latitude": 3}), messages=waiting["messages"])
    assert (asked["status"], asked["error"]) == ("ready", None)
    assert asked["messages"] == shop.stored, "as after a reload"
    [request] = [part for part in asked["messages"][-1]["parts"] if part["type"] == "data-approval-request"]
    denial = shop.post(request["data"]["toolCallId"], approved=False)
    seen = await shop.drive(denial, RESUME, messages=asked["messages"])
    check_shown(seen, shop, "output-available", "output-error")
    assert seen["messages"] == shop.stored
    assert seen["messages"][-1]["parts"][-1]["text"] == "Done."
    assert shop.refunds == []


async def test_version_5_shows_a_request_in_one_place_live_resumed_and_reloaded(old_shop: Shop) -> None:
    two = '[tool:refund {"order": "1"}] [tool:locate {}] [then] [echo:Done.]'
    live = await old_shop.drive(send(two), answers=False)
    resumed = await old_shop.drive(RESUME, messages=live["messages"][:1], answers=False)
    assert live["messages"] == resumed["messages"] == old_shop.stored
    kinds = [part["type"] for part in live["messages"][-1]["parts"]]
    assert kinds == ["step-start", "tool-refund", "tool-locate", "data-approval-request"]


@pytest.mark.parametrize("version", [5, 6, 7])
async def test_a_page_with_a_stopped_tool_sends_by_itself_only_once(page: Page, version: int) -> None:
    @tool
    async def wait() -> None:
        """Wait until stopped."""
        await asyncio.Event().wait()

    page.version, page.answers = version, True
    page.serve(agent=Agent("helper", "", [locate, wait]))
    waiting = await page.drive(send("[tool:locate {}] [then] [tool:wait {}]"))
    [call] = calls(waiting["messages"])
    stop = output(call, {"latitude": 1}) | {"when": "tool-input-available", "then": "stop"}
    seen = await page.drive(stop, messages=waiting["messages"])
    assert (seen["status"], seen["error"], len(seen["bodies"])) == ("ready", None, 2)
    assert seen["messages"][-1]["parts"] == [*page.stored[-1]["parts"], {"type": "step-start"}]
