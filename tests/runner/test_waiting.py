"""A turn that waits for a human or a client: asked, answered, continued, in memory and with a scripted model."""

import asyncio
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from omniagent import InMemorySessionManager, RunContext, ToolRequest, tool
from omniagent.ai.approvals import ToolReply
from omniagent.ai.client_tools import ask_user, client_tool
from omniagent.errors import (
    InvalidRequest,
    NotWaiting,
    ReplyConflict,
    RequestError,
    RequestExpired,
    ToolOutcomeUnknown,
    TooManyReaders,
    UnknownRequest,
)
from omniagent.messages import DENIED_ERROR, UNANSWERED_ERROR, ToolPart
from omniagent.session.live import Change
from omniagent.testing import ScriptedModel, ToolCall
from omniagent.turns.registry import Chunk
from tests.fixtures.conversation import QUICK, events_of
from tests.fixtures.live_turns import answer_of
from tests.runner.sessions import REFUND, Refunds, Sessions

Json = dict[str, Any]


class Position(BaseModel):
    latitude: float
    longitude: float = 0.0


@client_tool
async def locate(accuracy: str) -> Position:  # type: ignore[empty-body]
    """Find out where the user is."""


@tool
async def look(order: str) -> str:
    """Look an order up."""
    return f"order {order}"


@pytest.fixture
def refunds() -> Refunds:
    return Refunds()


def types(events: list[Json]) -> list[str]:
    """Without texts, and without what is told of a decision: its readers may know it already."""
    left_out = ("text-", "tool-input-delta", "data-approval-response")
    return [event["type"] for event in events if not event["type"].startswith(left_out)]


async def test_a_call_that_needs_approval_makes_the_turn_wait(refunds: Refunds, sessions: Sessions) -> None:
    runner = sessions.runner(ScriptedModel(["Let me see.", REFUND]), refunds.tool)
    stream = await runner.start("Refund 42")
    events = await events_of(stream)
    await stream.ended()
    assert types(events) == [
        *("start", "start-step", "tool-input-start", "tool-input-available", "tool-approval-request"),
        *("finish-step", "finish", "data-session"),
    ]
    assert (events[-2]["finishReason"], events[-1]["data"]["status"]) == ("tool-calls", "waiting")
    result = await stream.result()
    [request] = result.requests
    assert (result.status, request.kind) == ("waiting", "approval")
    assert (request.tool, request.input) == ("refund", {"order": "42"})
    assert next(e for e in events if e["type"] == "tool-approval-request")["approvalId"] == request.id
    assert refunds.orders == []
    head = await sessions.head()
    assert (head.running, head.waiting and head.waiting.until) == (None, request.expires_at)


async def test_an_approved_call_runs_once_and_the_turn_goes_on_in_the_same_message(
    refunds: Refunds, sessions: Sessions
) -> None:
    model = ScriptedModel(["Let me see.", REFUND], "Done.")
    runner = sessions.runner(model, refunds.tool)
    waiting = await runner.run("Refund 42")
    stream = await runner.reply(waiting.requests[0].approve())
    events = await events_of(stream)
    await stream.ended()
    assert types(events) == [*("start", "tool-output-available", "start-step", "finish-step", "finish", "data-session")]
    assert events[0]["messageId"] == waiting.message_id == stream.message_id
    result = await stream.result()
    assert (result.status, result.text, result.message.turn_number) == ("complete", "Let me see.Done.", 1)
    assert (refunds.orders, refunds.call_ids) == (["42"], [waiting.requests[0].call_id])
    assert result.message.metadata["stepCount"] == 2
    assert result.usage.total_tokens > waiting.usage.total_tokens
    part = next(part for part in model.requests[1].messages[-1].parts if isinstance(part, ToolPart))
    assert part.output == "refunded 42"
    state = await sessions.session().load()
    assert state.answer == result.message
    assert state.head.turn is None


async def test_a_denied_call_is_not_run_and_the_model_reads_why(refunds: Refunds, sessions: Sessions) -> None:
    model = ScriptedModel(REFUND, "Then not.")
    runner = sessions.runner(model, refunds.tool)
    waiting = await runner.run("Refund 42")
    events = await events_of(await runner.reply(waiting.requests[0].deny("too much")))
    assert types(events)[:3] == ["start", "tool-output-denied", "start-step"]
    [part] = [part for part in model.requests[1].messages[-1].parts if isinstance(part, ToolPart)]
    assert part.error == f"{DENIED_ERROR} Reason: too much"
    assert refunds.orders == []


async def test_what_may_run_runs_and_answers_are_kept_until_all_are_there(refunds: Refunds, sessions: Sessions) -> None:
    orders = [ToolCall(name, {"order": order}) for name, order in (("refund", "1"), ("look", "2"), ("refund", "3"))]
    calls = [*orders, ToolCall("locate", {"accuracy": "high"})]
    runner = sessions.runner(ScriptedModel(calls, "Done."), refunds.tool, look, locate)
    stream = await runner.start("Go")
    assert "tool-output-available" in types(await events_of(stream))
    first, second, third = (await stream.result()).requests
    for answer, results in ((first.approve(), []), (third.reply({"latitude": 1}), ["tool-output-available"])):
        partial = await runner.reply(answer)
        events = await events_of(partial)
        assert types(events) == ["start", *results, "finish", "data-session"]
        assert (events[-2]["finishReason"], events[-1]["data"]["status"]) == ("tool-calls", "waiting")
        assert refunds.orders == []
    assert [request.call_id for request in (await partial.result()).requests] == [second.call_id]
    rest = await runner.reply(second.deny())
    assert types(await events_of(rest))[:5] == [
        *("start", "tool-output-denied", "tool-output-available", "tool-output-available", "start-step")
    ]
    result = await rest.result()
    assert refunds.orders == ["1"]
    outputs = [part.output for part in result.parts if isinstance(part, ToolPart)]
    assert outputs == ["refunded 1", "order 2", None, {"latitude": 1.0, "longitude": 0.0}]


async def test_fifty_identical_answers_at_once_run_the_tool_once_and_another_verdict_is_refused(
    refunds: Refunds, sessions: Sessions
) -> None:
    runner = sessions.runner(ScriptedModel(["Hm.", REFUND], "Done."), refunds.tool)
    request = (await runner.run("Refund 42")).requests[0]

    async def answer() -> list[Json]:
        while True:
            with suppress(TooManyReaders):
                return await events_of(await runner.reply(request.approve()))
            await asyncio.sleep(0.01)

    streams = await asyncio.gather(*(answer() for _ in range(50)))
    assert refunds.orders == ["42"]
    for events in streams:
        assert types(events)[:3] == ["start", "tool-output-available", "start-step"]
        text = "".join(event["delta"] for event in events if event["type"] == "text-delta")
        assert text == "Done."
    assert types(await events_of(await runner.reply(request.approve()))) == types(streams[0]), "replayed"
    with pytest.raises(ReplyConflict):
        await runner.reply(request.deny())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (ToolReply("nobody", approved=True), UnknownRequest),
        (ToolReply("call_1", output="refunded"), InvalidRequest),
        (ToolReply("call_1", error="no"), InvalidRequest),
        (ToolReply("call_1"), InvalidRequest),
        (ToolReply("call_1", approved=True, request_id="another"), UnknownRequest),
        (ToolReply("call_1", approved=True, output=1), InvalidRequest),
    ],
)
async def test_an_answer_that_does_not_fit_changes_nothing(
    refunds: Refunds, sessions: Sessions, answer: ToolReply, error: type[RequestError]
) -> None:
    runner = sessions.runner(ScriptedModel(REFUND), refunds.tool)
    waiting = await runner.run("Refund 42")
    with pytest.raises(error):
        await runner.reply(answer)
    assert (await sessions.session().load()).answer == waiting.message
    assert refunds.orders == []


async def test_the_output_of_a_clients_tool_is_validated(sessions: Sessions) -> None:
    runner = sessions.runner(ScriptedModel(ToolCall("locate", {"accuracy": "high"}), "There."), locate)
    request = (await runner.run("Where am I?")).requests[0]
    with pytest.raises(InvalidRequest, match="latitude"):
        await runner.reply(request.reply({"latitude": "north"}))
    result = await runner.reply(request.fail("no permission")).result()
    assert next(part for part in result.parts if isinstance(part, ToolPart)).error == "no permission"


@pytest.mark.parametrize("is_echo", [False, True])
async def test_an_output_for_a_call_that_was_closed_is_refused(sessions: Sessions, is_echo: bool) -> None:
    """Also in the AI SDK's body, which repeats the outputs of calls that are settled."""
    runner = sessions.runner(ScriptedModel(ToolCall("locate", {"accuracy": "high"})), locate)
    waiting = await runner.run("Where am I?")
    assert await runner.stop()
    late = ToolReply(waiting.requests[0].call_id, output={"latitude": 1}, is_echo=is_echo)
    with pytest.raises(NotWaiting):
        await runner.reply(late, message_id=waiting.message_id)


async def test_ask_user_takes_one_of_its_choices(sessions: Sessions) -> None:
    call = ToolCall("ask_user", {"question": "Which?", "choices": ["red", "blue"]})
    runner = sessions.runner(ScriptedModel(call, "Blue it is."), ask_user)
    request = (await runner.run("Paint")).requests[0]
    with pytest.raises(InvalidRequest, match="choose one of red, blue"):
        await runner.reply(request.reply("green"))
    assert (await runner.reply(request.reply("blue")).result()).text == "Blue it is."


async def test_a_rule_says_whether_and_why_and_one_that_raises_runs_nothing(sessions: Sessions) -> None:
    ran: list[int] = []

    async def rule(context: RunContext, arguments: Any) -> str | None:
        if arguments.amount < 0:
            raise ValueError("secret")
        return f"{arguments.amount} is a lot for {context.user}" if arguments.amount > 100 else None

    @tool(approval=rule)
    async def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    calls = [ToolCall("pay", {"amount": amount}) for amount in (1, -1, 500)]
    result = await sessions.runner(ScriptedModel(calls, tools_may_crash=True), pay).run("Pay")
    assert ran == [1]
    assert [request.reason for request in result.requests] == ["500 is a lot for ada"]
    errors = [part.public_error for part in result.parts if isinstance(part, ToolPart)]
    assert errors == [None, "The tool failed.", None]


async def test_a_new_message_closes_what_is_pending_and_runs_nothing(refunds: Refunds, sessions: Sessions) -> None:
    model = ScriptedModel([ToolCall("refund", {"order": "1"}), ToolCall("refund", {"order": "2"})], "Never mind.")
    runner = sessions.runner(model, refunds.tool)
    first, second = (await runner.run("Refund both")).requests
    assert (await runner.reply(first.approve()).result()).status == "waiting"
    result = await runner.run("Forget it")
    assert (result.message.turn_number, result.status) == (2, "complete")
    closed = await answer_of(sessions.session(), 1)
    assert closed is not None
    assert (closed.status, closed.metadata["stopReason"]) == ("cancelled", "unanswered")
    told = [part for message in model.requests[1].messages for part in message.parts if isinstance(part, ToolPart)]
    assert [(part.done, part.error) for part in told] == [(True, UNANSWERED_ERROR)] * 2
    for late in (second.approve(), ToolReply(second.call_id, approved=True)):
        with pytest.raises(NotWaiting):
            await runner.reply(late)
    assert refunds.orders == []


# Kills between the answer, the tool and the continuation


class Witnessed(InMemorySessionManager):
    """Keeps a copy of the store as it is when a turn goes on, before anything of it has run."""

    copy: dict[str, Any] | None = None
    journal = ""

    async def write(self, change: Change) -> bool:
        is_written = await super().write(change)
        if change.before.waiting is not None and change.after.running is not None:
            self.copy, self.journal = deepcopy(self.store.sessions), change.after.running.journal
        return is_written


async def continued(refunds: Refunds) -> tuple[Witnessed, ToolRequest, list[bytes]]:
    """Run a turn that waits and goes on. Returns the session, what was asked and the journal of the second run."""
    sessions = Sessions()
    session = Witnessed("ada", "chat", store=sessions.store, settings=QUICK)
    model = ScriptedModel(["Let me see.", REFUND], "Done at last.")
    runner = sessions.runner(model, refunds.tool, session=session)
    request = (await runner.run("Refund 42")).requests[0]
    stream = await runner.reply(request.approve())
    await stream.result()
    await stream.ended()
    chunks = await sessions.registry.read(session.key, session.journal)
    return session, request, [line for chunk in chunks for line in chunk.lines.split(b"\n")]


async def killed(witness: Witnessed, lines: list[bytes]) -> Sessions:
    """The sessions after a process that has written these lines died."""
    dead = Sessions()
    assert witness.copy is not None
    dead.store.sessions.update(deepcopy(witness.copy))
    if lines:
        chunk = Chunk(0, "dead", witness.now(), b"\n".join(lines))
        await dead.registry.append(witness.key, witness.journal, chunk)
    dead.pass_by()
    return dead


@pytest.mark.parametrize("is_replied", [False, True], ids=["unasked", "by the same reply"])
async def test_a_run_killed_at_any_line_continues_without_repeating_calls(is_replied: bool) -> None:
    refunds = Refunds()
    witness, request, lines = await continued(refunds)
    whole = await answer_of(witness, 1)
    assert whole is not None
    for count in range(len(lines)):
        dead = await killed(witness, lines[:count])
        refunds.orders.clear()
        runner = dead.runner(ScriptedModel("Done at last."), refunds.tool)
        with pytest.raises(ReplyConflict):
            await runner.reply(request.deny())
        stream = await (runner.reply(request.approve()) if is_replied else runner.take_up())
        assert stream is not None
        result = await stream.result()
        await stream.ended()
        assert (result.status, result.message.id) == ("complete", request.message_id)
        written = b"\n".join(lines[:count])
        has_run, is_known = b'{"record":"approved"' in written, b"tool-output-available" in written
        assert refunds.orders == ([] if has_run else ["42"])
        [part] = [part for part in result.message.parts if isinstance(part, ToolPart)]
        if has_run and not is_known:
            assert part.public_error == ToolOutcomeUnknown.public
        else:
            assert list(result.message.parts) == list(whole.parts)
        assert (result.message.metadata["stepCount"], result.text) == (2, whole.text)
        await dead.store.open_turns.finish()
        assert await dead.are_free()


async def test_what_nobody_answered_in_time_is_denied(refunds: Refunds, sessions: Sessions) -> None:
    sessions.settings = replace(QUICK, request_expiry_days=0.0)
    runner = sessions.runner(ScriptedModel(REFUND), refunds.tool)
    request = (await runner.run("Refund 42")).requests[0]
    with pytest.raises(RequestExpired):
        await runner.reply(request.approve())
    await runner.take_up()
    answer = await answer_of(sessions.session(), 1)
    assert answer is not None
    assert (answer.status, answer.metadata["stopReason"]) == ("cancelled", "expired")
    [part] = [part for part in answer.parts if isinstance(part, ToolPart)]
    assert part.is_denied
    with pytest.raises((RequestExpired, NotWaiting)):
        await runner.reply(request.approve(), message_id=request.message_id)
    assert refunds.orders == []
