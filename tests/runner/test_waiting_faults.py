"""Kills between the answer, the tool and the continuation; requests that expire; what both model APIs are shown."""

import asyncio
from contextlib import nullcontext
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from omniagent import Agent, ToolRequest, TurnHooks, client_tool, tool
from omniagent.ai.operator import TurnOperator
from omniagent.errors import NotWaiting, ReplyConflict, RequestExpired, ToolOutcomeUnknown
from omniagent.messages import ORPHAN_ERROR, ToolPart
from omniagent.session.in_memory import InMemorySessionManager
from omniagent.session.manager import TurnStart, continuation_id, message_id_of
from omniagent.settings import Settings
from omniagent.testing import MemoryRegistry, ScriptedModel, ToolCall
from omniagent.turns.lease import Claim, OnDead, RunningTurn
from omniagent.turns.replay import record_frames
from omniagent.turns.waiting import Judge
from tests.fixtures.conversation import Clock, Conversation, events_of, move_clock
from tests.runner.processes import DyingProcess, bury
from tests.runner.sessions import QUICK, Sessions

Json = dict[str, Any]


class Refunds:
    """A tool that has to be approved, and how often it ran."""

    def __init__(self) -> None:
        self.orders: list[str] = []

        @tool(approval=True)
        async def refund(order: str) -> str:
            """Refund an order."""
            self.orders.append(order)
            return f"refunded {order}"

        self.tool = refund


class Witnessed(InMemorySessionManager):
    """Keeps a copy of the store as it is when a turn goes on, before anything of it has run."""

    copy: dict[str, Any] | None = None
    turn_id = ""

    async def begin_turn(self, start: TurnStart) -> None:
        await super().begin_turn(start)
        if start.waited is not None:
            self.copy, self.turn_id = deepcopy(self.store.sessions), start.turn_id


async def continued(refunds: Refunds) -> tuple[Witnessed, ToolRequest, list[bytes]]:
    """Run a turn that waits and goes on. Returns the session, what was asked and the frames of the second run."""
    sessions = Sessions()
    session = Witnessed("ada", "chat", store=sessions.store, settings=QUICK)
    model = ScriptedModel(["Let me see.", ToolCall("refund", {"order": "42"})], "Done at last.")
    runner = sessions.runner(model, refunds.tool, session=session)
    request = (await runner.run("Refund 42")).requests[0]
    stream = await runner.reply(request.approve())
    await stream.result()
    await stream.ended()
    log = await sessions.registry.read(session.key, session.turn_id)
    frames = b"".join(frames for _, frames in log)
    return session, request, [frame + b"\n\n" for frame in frames.split(b"\n\n") if frame]


async def test_an_answered_turn_goes_on_only_when_it_is_watched() -> None:
    sessions, refunds, watched, begun = Sessions(), Refunds(), list[str](), list[bool]()

    class Ordered(InMemorySessionManager):
        async def begin_turn(self, start: TurnStart) -> None:
            begun.append(start.turn_id in watched)
            await super().begin_turn(start)

    async def on_begin(turn_id: str, _: int) -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        watched.append(turn_id)

    session = Ordered("ada", "chat", store=sessions.store, settings=QUICK)
    model = ScriptedModel([ToolCall("refund", {"order": "42"})], "Done at last.")
    runner = sessions.runner(model, refunds.tool, session=session, hooks=TurnHooks(on_begin=on_begin))
    request = (await runner.run("Refund 42")).requests[0]
    stream = await runner.reply(request.approve())
    assert (await stream.result()).text == "Done at last."
    await stream.ended()
    assert (begun[-1], refunds.orders) == (True, ["42"])


async def test_after_a_kill_at_any_frame_the_call_runs_only_once() -> None:
    refunds = Refunds()
    witness, request, frames = await continued(refunds)
    assert witness.copy is not None
    for count in range(len(frames)):  # the last frame ends the turn
        dead = Sessions()
        dead.store.sessions.update(deepcopy(witness.copy))
        registry = dead.registry
        claim = Claim(witness.key, witness.turn_id, f"answer:{request.message_id}")
        if count:
            await registry.append(claim, 0, b"".join(frames[:count]))
        runner = dead.runner(ScriptedModel("Next."), refunds.tool)
        head = await runner.settle()
        assert head is not None
        assert head.active_turn_id is None
        answer = await dead.session().answer(1)
        assert answer is not None
        assert (answer.id, answer.status) == (message_id_of(witness.turn_id), "interrupted")
        assert answer.text.startswith("Let me see.")
        [part] = [part for part in answer.parts if isinstance(part, ToolPart)]
        was_logged = any(b"tool-output-available" in frame for frame in frames[:count])
        assert (part.done, part.output, part.error) == (
            (True, "refunded 42", None) if was_logged else (True, None, ORPHAN_ERROR)
        )
        again = await events_of(await runner.reply(request.approve()))
        kind = "tool-output-available" if was_logged else "tool-output-error"
        assert [event["type"] for event in again][:3] == ["start", "data-approval-response", kind]
        assert again[-1]["data"]["status"] == "interrupted"
        assert (await runner.run("Next")).turn_number == 2
    assert refunds.orders == ["42"], "it ran once, in the run that was not killed"


async def test_a_run_killed_at_any_frame_continues_without_repeating_calls() -> None:
    refunds = Refunds()
    witness, request, frames = await continued(refunds)
    assert witness.copy is not None
    whole = await witness.answer(1)
    assert whole is not None
    for count in range(len(frames)):
        dead = Sessions()
        dead.store.sessions.update(deepcopy(witness.copy))
        logged = b"".join(frames[:count])
        if count:
            claim = Claim(witness.key, witness.turn_id, f"answer:{request.message_id}")
            await dead.registry.append(claim, 0, logged)
        refunds.orders.clear()
        stream = await dead.runner(ScriptedModel("Done at last."), refunds.tool).continue_turn()
        assert stream is not None
        result = await stream.result()
        await stream.ended()
        assert (result.status, result.message.id) == ("complete", request.message_id)
        has_run, is_known = b': {"approved":' in logged, b"tool-output-available" in logged
        assert refunds.orders == ([] if has_run else ["42"])
        [part] = [part for part in result.message.parts if isinstance(part, ToolPart)]
        if has_run and not is_known:
            assert part.public_error == ToolOutcomeUnknown.public
        else:
            assert list(result.message.parts) == list(whole.parts)
        assert (result.metadata["stepCount"], result.text) == (2, whole.text)
        log = b"".join(each for _, each in await dead.registry.read(witness.key, witness.turn_id))
        assert [type(part) for part in record_frames(log).parts] == [type(part) for part in result.message.parts]
        assert await dead.are_free()


async def test_the_same_answer_again_continues_a_dead_run_and_another_one_is_refused() -> None:
    refunds = Refunds()
    witness, request, frames = await continued(refunds)
    assert witness.copy is not None
    for count in range(len(frames)):
        dead = Sessions()
        dead.store.sessions.update(deepcopy(witness.copy))
        if count:
            claim = Claim(witness.key, witness.turn_id, f"answer:{request.message_id}")
            await dead.registry.append(claim, 0, b"".join(frames[:count]))
        refunds.orders.clear()
        runner = dead.runner(ScriptedModel("Done at last."), refunds.tool)
        with pytest.raises(ReplyConflict):
            await runner.reply(request.deny())
        stream = await runner.reply(request.approve())
        events = await events_of(stream)
        await stream.ended()
        assert (events[0]["messageId"], events[-1]["data"]["status"]) == (request.message_id, "complete")
        assert refunds.orders == ([] if b': {"approved":' in b"".join(frames[:count]) else ["42"])
        assert await dead.are_free()


class LateRegistry(MemoryRegistry):
    """A registry whose first claim by a request takes longer than the lease of whoever holds the session."""

    def __init__(self, holder: Claim) -> None:
        self._now = 0.0
        super().__init__(lease_seconds=10.0, clock=lambda: self._now)
        self._holder = holder

    async def claim(self, claim: Claim, on_dead: OnDead | None = None) -> RunningTurn | None:
        if claim != self._holder and not self._now:
            self._now = 11.0
        return await super().claim(claim, on_dead)


async def test_the_same_answer_again_continues_a_run_whose_lease_expires_while_the_session_is_claimed() -> None:
    refunds = Refunds()
    witness, request, frames = await continued(refunds)
    assert witness.copy is not None
    dead = Sessions()
    dead.store.sessions.update(deepcopy(witness.copy))
    claim = Claim(witness.key, witness.turn_id, f"answer:{request.message_id}")
    registry = LateRegistry(claim)
    await registry.claim(claim)
    await registry.append(claim, 0, frames[0])
    refunds.orders.clear()
    runner = dead.runner(ScriptedModel("Done at last."), refunds.tool, registry=registry)
    stream = await runner.reply(request.approve())
    events = await events_of(stream)
    await stream.ended()
    assert (events[0]["messageId"], events[-1]["data"]["status"]) == (request.message_id, "complete")
    assert refunds.orders == ["42"]


async def test_a_kill_before_the_answer_is_stored_leaves_the_turn_waiting() -> None:
    """The process had the claim, and nothing else."""
    refunds, sessions = Refunds(), Sessions()
    model = ScriptedModel(ToolCall("refund", {"order": "42"}), "Done.")
    request = (await sessions.runner(model, refunds.tool).run("Refund 42")).requests[0]
    now = [0.0]
    registry = MemoryRegistry(lease_seconds=10.0, clock=lambda: now[0])
    await registry.claim(Claim(sessions.session().key, f"x.{request.message_id}", f"answer:{request.message_id}"))
    now[0] += 11.0
    runner = sessions.runner(model, refunds.tool, registry=registry)
    assert (await runner.reply(request.approve()).result()).status == "complete"
    assert refunds.orders == ["42"]


STAGES = [("load", 1), ("claim", 1), ("load", 2), ("admit", 1), ("begin_turn", 1), ("append", 1), ("append", 2)]
STAGES += [("finish_turn", 1), ("withdraw", 1), ("release", 1)]


@pytest.mark.parametrize("has_effect", [False, True])
async def test_after_a_kill_at_any_call_the_tool_ran_once_at_most(has_effect: bool) -> None:
    """Every stage between the answer, the tool and the continuation: before or after each call of the stores."""
    living = asyncio.all_tasks()
    for at in STAGES:
        clock, sessions, refunds = Clock(), Sessions(), Refunds()
        sessions.registry = registry = MemoryRegistry(lease_seconds=10.0, clock=clock)
        model = ScriptedModel(ToolCall("refund", {"order": "42"}), default="Done.")
        request = (await sessions.runner(model, refunds.tool).run("Refund 42")).requests[0]
        process = DyingProcess(sessions.store, registry, QUICK, at=at, has_effect=has_effect)
        doomed = TurnOperator(
            Agent("helper", "", [refunds.tool]), process.session, provider=model, registry=process.registry
        )
        answering = asyncio.create_task(events_of(doomed.reply(request.approve())))
        while not process.is_dead and not answering.done():
            await asyncio.wait([answering], timeout=0.005)
        assert process.is_dead, at
        clock.pass_by(11)
        runner = sessions.runner(model, refunds.tool)
        result = await runner.reply(request.approve()).result()
        assert (result.message_id, result.turn_number) == (request.message_id, 1), at
        assert result.status == "complete", at
        [call] = [part for part in result.message.parts if isinstance(part, ToolPart)]
        if call.error is None:
            assert refunds.orders == ["42"], at
        else:  # it was about to run
            assert (call.public_error, len(refunds.orders) <= 1) == (ToolOutcomeUnknown.public, True), at
        assert (await runner.run("Next")).turn_number == 2
        messages = sessions.store.sessions[sessions.session().key].messages
        assert [(message.turn_number, message.role) for message in messages] == [
            *((1, "user"), (1, "assistant"), (2, "user"), (2, "assistant"))
        ]
        await bury(living)


EXPIRING = Settings(tick_seconds=0.02, lease_seconds=30.0, request_expiry_days=0.0)


@pytest.mark.parametrize("look", ["settle", "answer", "resume", "ask"])
async def test_what_nobody_answered_in_time_is_denied_when_somebody_looks(look: str) -> None:
    refunds, sessions = Refunds(), Sessions(EXPIRING)
    runner = sessions.runner(ScriptedModel(ToolCall("refund", {"order": "42"}), "Next."), refunds.tool)
    request = (await runner.run("Refund 42")).requests[0]
    match look:
        case "settle":
            await runner.settle()
        case "answer":
            with pytest.raises(RequestExpired):
                await runner.reply(request.approve())
        case "resume":
            await runner.resume()
        case "ask":
            assert (await runner.run("Next")).turn_number == 2
    answer = await sessions.session().answer(1)
    assert answer is not None
    assert (answer.status, answer.metadata["stopReason"]) == ("cancelled", "expired")
    [part] = [part for part in answer.parts if isinstance(part, ToolPart)]
    assert part.is_denied
    with pytest.raises((RequestExpired, NotWaiting)):
        await runner.reply(request.approve(), message_id=request.message_id)
    assert refunds.orders == []
    await sessions.store.open_turns.finish()
    assert await sessions.are_free()


async def test_a_request_expires_between_the_look_at_the_session_and_the_verdict() -> None:
    refunds, sessions = Refunds(), Sessions(EXPIRING)
    waiting = await sessions.runner(ScriptedModel(ToolCall("refund", {"order": "42"})), refunds.tool).run("Refund 42")
    [request] = waiting.requests
    assert request.expires_at is not None
    for seconds, is_late in ((-1, False), (0, True)):
        now = request.expires_at + timedelta(seconds=seconds)
        judge = Judge(lambda _: None, answered_by="ada", now=now)
        with pytest.raises(RequestExpired) if is_late else nullcontext():
            assert judge.judge(waiting.message, [request.approve()]).is_complete


@client_tool
async def locate() -> str:
    """Find out where the user is."""
    raise NotImplementedError


ENDINGS = ("approved", "denied", "in part", "unanswered", "stopped", "expired", "killed")


@pytest.mark.parametrize(
    ("api", "ending"),
    [*(("responses", ending) for ending in ENDINGS), ("chat", "denied"), ("chat", "killed")],
)
async def test_both_apis_take_the_history_of_a_turn_that_waited(
    conversation: Conversation, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offline model refuses what the APIs refuse: above all a call without its output."""
    refunds = Refunds()
    asked = conversation.but(agent=Agent("helper", "Help.", [refunds.tool, locate]))
    runner = asked.runner()
    waiting = await runner.run('[tool:refund {"order": "42"}] [tool:locate {}] [then] [echo:Done.]')
    first, second = waiting.requests
    match ending:
        case "approved" | "denied":
            answer = first.approve() if ending == "approved" else first.deny("too much")
            result = await runner.reply(answer, second.reply("Rome")).result()
            assert (result.status, result.text) == ("complete", "Done.")
        case "in part":
            assert (await runner.reply(first.approve()).result()).status == "waiting"
        case "stopped":
            assert await runner.stop()
        case "expired":
            move_clock(monkeypatch, days=61)
        case "killed":
            head, agent = await asked.session.head(), asked.agent
            judge = Judge(agent.tool, answered_by="ada", now=asked.session.now())
            answered = judge.judge(waiting.message, [first.approve(), second.reply("Rome")]).message
            turn_id, seen = continuation_id(waiting.message_id), head.latest_turn_id if head is not None else None
            start = TurnStart(turn_id, 1, "", [], again=True, waited=answered, seen_turn_id=seen)
            await asked.session.begin_turn(start)
    result = await runner.run("[echo:And on.]")
    assert (result.status, result.text, result.turn_number) == ("complete", "And on.", 2)
    assert refunds.orders == (["42"] if ending == "approved" else [])
