"""A turn whose process died, or was thought to: what its stream had said is stored, and only once."""

import asyncio
import time
from dataclasses import replace

import pytest

from omniagent import Agent, Query
from omniagent.errors import StorageUnavailable, TurnLost
from omniagent.messages import ORPHAN_ERROR, Part, TextPart
from omniagent.protocol import events, sse
from omniagent.session.manager import SessionMessage, SessionState, TurnStart
from omniagent.turns.lease import Claim
from omniagent.turns.memory_registry import MemoryRegistry
from omniagent.turns.recorder import AnswerRecorder
from tests.fixtures.conversation import Clock, Conversation, HeldBack, Json, events_of, read, seen
from tests.fixtures.stream import outline
from tests.runner.scenarios import agent
from tests.turns.registries import Hanging, Unreliable

RICH = (
    '[reason] [echo:Let me see.] [tool:add {"a": 1, "b": 2}] [tool:lookup {"city": "Atlantis"}] [then] '
    "[bad-args:add] 2 and 3 [then] [echo:Here it is: three.] [slow:1]"
)


def told(frames: list[bytes]) -> list[Json]:
    """What a reader of these frames knows of the answer, in the order it came; nothing is left open."""
    parts: list[Json] = []
    calls: dict[str, Json] = {}
    for event in sse.decode(b"".join(frames)):
        match event["type"]:
            case "start-step":
                parts.append({"type": "step-start"})
            case "text-start" | "reasoning-start" as kind:
                parts.append({"type": kind.removesuffix("-start"), "text": ""})
            case "text-delta" | "reasoning-delta":
                parts[-1]["text"] += event["delta"]
            case "tool-input-start":
                call = {"type": "tool", "name": event["toolName"], "input": "", "error": ORPHAN_ERROR, "output": None}
                calls[event["toolCallId"]] = call
                parts.append(call)
            case "tool-input-available":
                calls[event["toolCallId"]]["input"] = event["input"]
            case "tool-input-error":
                calls[event["toolCallId"]] |= {"input": event["input"], "error": event["errorText"]}
            case "tool-output-available":
                calls[event["toolCallId"]] |= {"output": event["output"], "error": None}
            case "tool-output-error":
                calls[event["toolCallId"]]["error"] = event["errorText"]
    # A block that was opened and got no text was never shown.
    return [part for part in parts if part.get("text") != ""]


def stored(answer: Json) -> list[Json]:
    known = ("type", "text", "name", "input", "output", "error")
    return [{name: part[name] for name in known if name in part} for part in answer["parts"]]


async def interrupted(conversation: Conversation, number: int, frames: list[bytes]) -> Claim:
    """Leave a turn behind as a killed process does: begun, with these frames in its log."""
    claim = Claim(conversation.session.key, f"dead-{number}", f"m-{number}")
    await conversation.session.begin_turn(TurnStart(claim.turn_id, number, claim.message_id, [TextPart(text="Hi")]))
    for index, frame in enumerate(frames):
        await conversation.registry.append(claim, index, frame)
    return claim


def cuts(frames: list[bytes]) -> list[int]:
    """Every place where a stream may end, but only one between frames of the same kind in a row."""
    kinds = [next(sse.decode(frame), {}).get("type") for frame in frames]
    return [cut for cut in range(len(frames) + 1) if cut < 2 or len(set(kinds[cut - 2 : cut + 1])) > 1]


async def test_wherever_the_stream_was_cut_what_it_said_is_stored_and_the_next_turn_works(
    conversation: Conversation,
) -> None:
    """Neither the log nor its repair knows the model's API: one of them is enough."""
    helper = conversation.but(agent=agent())
    turn = await helper.start(RICH)
    await turn.result()
    frames = [frame + b"\n\n" for frame in (await read(turn)).split(b"\n\n")[:-1]]
    session = helper.but(session_id=f"{helper.session_id}-cut")
    assert {"reasoning", "tool", "text"} <= {part["type"] for part in told(frames)}
    for number, cut in enumerate(cuts(frames)):
        await interrupted(session, 2 * number + 1, frames[:cut])
        assert outline(await session.ask("[echo:Go on.]"))[-1] == "data-session complete"
        answer = session.messages[4 * number + 1]
        assert (answer["role"], answer["status"]) == ("assistant", "interrupted")
        assert stored(answer) == told(frames[:cut]), cut
        assert all(part["done"] for part in answer["parts"] if part["type"] == "tool")


async def test_a_turn_that_still_lives_is_left_alone(conversation: Conversation) -> None:
    turn = await conversation.start("[stall] [echo:one two three four]")
    await seen(turn, "text-delta")
    head = await conversation.runner().settle()
    assert head is not None
    assert head.active_turn_id == turn.message_id
    assert [message["role"] for message in conversation.messages] == ["user"]
    await conversation.stop()
    await turn.result()


async def test_many_readers_of_a_dead_turn_leave_one_answer(conversation: Conversation) -> None:
    await interrupted(conversation, 1, [])
    await asyncio.gather(*(conversation.runner().settle() for _ in range(5)))
    head = await conversation.runner().settle()
    assert head is not None
    assert head.active_turn_id is None
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]


async def test_a_dead_turn_too_large_for_a_document_is_stored_reduced(
    conversation: Conversation,
) -> None:
    long = "\N{SNOWMAN}" * 48_000  # of six characters each in the JSON that is stored
    shown: list[events.StreamEvent] = []
    recorder = AnswerRecorder(shown.append)
    recorder.start_step()
    recorder.text("Look.")
    for number in range(60):
        recorder.tool_start(f"call-{number}", "draw")
        recorder.tool_input(f"call-{number}", {"text": long})
    await interrupted(conversation, 1, [sse.encode(event) for event in shown])
    await conversation.runner().settle()
    answer = conversation.answer
    assert (answer["status"], answer["parts"][1]["text"], len(answer["parts"])) == ("interrupted", "Look.", 2 + 60)
    await conversation.ask("[echo:Still here.]")
    assert conversation.answer["status"] == "complete"


async def test_there_is_nothing_to_repair_when_no_turn_is_open(conversation: Conversation) -> None:
    assert await conversation.runner().settle() is None
    await conversation.ask("[echo:Hello.]")
    before = conversation.messages
    await conversation.runner().settle()
    assert conversation.messages == before


async def test_a_dead_regeneration_that_showed_nothing_keeps_the_old_answer(conversation: Conversation) -> None:
    await conversation.ask(Query("[echo:Old.]", "m1"))
    old = conversation.answer
    await conversation.session.begin_turn(TurnStart("dead", 1, "m1", [], again=True))
    await conversation.runner().settle()
    assert conversation.answer == old
    assert conversation.document["active_turn_id"] is None


async def test_a_reader_is_served_without_the_repair_when_the_registry_is_down(conversation: Conversation) -> None:
    registry = Unreliable()
    asked = conversation.but(registry=registry)
    claim = await interrupted(asked, 1, [])
    registry.is_down = True
    head = await asked.runner().settle()
    assert head is not None
    assert head.active_turn_id == claim.turn_id
    registry.is_down = False
    head = await asked.runner().settle()
    assert head is not None
    assert head.active_turn_id is None


async def test_a_reader_takes_the_claim_before_it_repairs_so_its_owner_learns_it(
    conversation: Conversation, clock: Clock
) -> None:
    """The owner's process hung longer than its lease, and a page is reloaded meanwhile."""
    registry = Hanging(lease_seconds=10.0, clock=clock)
    asked = conversation.but(registry=registry)
    turn = await asked.start(Query("[stall] [echo:one two three four]", "m1"))
    await seen(turn, "text-delta")
    clock.pass_by(10)
    await asked.runner().settle()
    registry.renewing.set()
    result = await turn.result()
    assert isinstance(result.error, TurnLost)
    assert asked.answer["status"] == "interrupted"


async def test_a_whole_answer_replaces_the_interrupted_one_that_a_reader_made_of_it(
    conversation: Conversation, clock: Clock
) -> None:
    asked = conversation.but(
        registry=MemoryRegistry(lease_seconds=10.0, clock=clock),
        settings=replace(conversation.settings, tick_seconds=3600.0, lease_seconds=7200.0),
    )
    session = HeldBack(asked)
    turn = await asked.start(Query("[echo:Whole after all.]", "m1"), session=session)
    await session.writing.wait()
    clock.pass_by(10)
    await asked.runner().settle()
    assert asked.answer["status"] == "interrupted"
    session.let_go.set()
    assert (await turn.result()).stored
    assert (asked.answer["status"], asked.answer["parts"][1]["text"]) == ("complete", "Whole after all.")


async def test_an_owner_whose_expired_lease_nobody_took_keeps_its_turn(
    conversation: Conversation, clock: Clock
) -> None:
    asked = conversation.but(registry=MemoryRegistry(lease_seconds=10.0, clock=clock))
    turn = await asked.start(Query("[slow:1] [echo:one two three four]", "m1"))
    clock.pass_by(60)
    assert (await turn.result()).status == "complete"


async def test_a_turn_that_was_frozen_beyond_its_lease_does_not_write_over_its_successor(
    conversation: Conversation, clock: Clock
) -> None:
    frozen = conversation.but(
        registry=MemoryRegistry(lease_seconds=10.0, clock=clock),
        settings=replace(conversation.settings, tick_seconds=3600.0, lease_seconds=7200.0),
    )
    session = HeldBack(frozen)
    turn = await frozen.start(Query("[echo:Too late.]", "m1"), session=session)
    await session.writing.wait()
    clock.pass_by(10)
    await frozen.ask(Query("[echo:The successor.]", "m2"))
    before = frozen.messages
    session.let_go.set()
    result = await turn.result()
    assert isinstance(result.error, TurnLost)
    assert not result.stored
    assert outline(await events_of(turn))[-1] == f"error {TurnLost.public}"
    assert frozen.messages == before
    assert [(message["turn_number"], message["status"]) for message in before] == [
        (1, "complete"),
        (1, "interrupted"),
        (2, "complete"),
        (2, "complete"),
    ]


async def test_a_turn_that_learns_of_its_loss_stops_and_writes_nothing(
    conversation: Conversation, clock: Clock
) -> None:
    registry = MemoryRegistry(lease_seconds=10.0, clock=clock)
    asked = conversation.but(registry=registry)
    turn = await asked.start(Query("[stall] [echo:one two three four]", "m1"))
    await seen(turn, "text-delta")
    # Taken over between two ticks: renewing would have kept it.
    clock.pass_by(10)
    assert await registry.claim(Claim(asked.session.key, "successor", "m2")) is None
    result = await turn.result()
    assert isinstance(result.error, TurnLost)
    assert [message["role"] for message in asked.messages] == ["user"]
    running = await registry.running(asked.session.key)
    assert running is not None
    assert running.claim.turn_id == "successor"


async def test_a_registry_that_goes_down_during_a_turn_costs_the_answer_nothing(
    conversation: Conversation, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Unreliable()
    asked = conversation.but(registry=registry, agent=agent())
    turn = await asked.start('[tool:add {"a": 1, "b": 2}] [then] [slow:5] [echo:Three it is, as ever.]')
    registry.is_down = True
    result = await turn.result()
    assert (result.status, result.stored, asked.answer["status"]) == ("complete", True, "complete")
    assert "claim not released, its lease will run out" in [record.message for record in caplog.records]


async def test_mongodb_that_fails_before_the_turn_begins_holds_nothing(conversation: Conversation) -> None:
    class Down(HeldBack):
        async def load(self, message_id: str | None = None) -> SessionState:
            raise StorageUnavailable("no primary")

    requests = conversation.model.count
    with pytest.raises(StorageUnavailable):
        await conversation.start("Hello?", session=Down(conversation))
    assert await conversation.registry.running(conversation.session.key) is None
    assert conversation.model.count == requests


async def test_mongodb_that_fails_while_the_turn_begins_holds_nothing_and_ends_the_model_call(
    conversation: Conversation,
) -> None:
    class Down(HeldBack):
        async def begin_turn(self, start: TurnStart) -> None:
            await conversation.model.until(lambda model: model.count > requests)
            raise StorageUnavailable("no primary")

    requests, left = conversation.model.count, conversation.model.disconnects
    with pytest.raises(StorageUnavailable):
        await conversation.start("[stall:first] Hello?", session=Down(conversation))
    assert await conversation.registry.running(conversation.session.key) is None
    assert conversation.messages == []
    await conversation.model.until(lambda model: model.disconnects > left)


async def test_mongodb_that_stays_down_at_the_end_leaves_the_answer_to_the_repair(conversation: Conversation) -> None:
    class Down(HeldBack):
        async def finish_turn(self, answer: SessionMessage, *, attempt: int = 0) -> SessionMessage:
            raise StorageUnavailable("no primary")

    turn = await conversation.start("[echo:Kept.]", session=Down(conversation), deadline=time.monotonic() + 3)
    result = await turn.result()
    assert (result.stored, type(result.error)) == (False, StorageUnavailable)
    assert outline(await events_of(turn))[-1] == f"error {StorageUnavailable.public}"
    await conversation.runner().settle()
    assert (conversation.answer["status"], conversation.answer["parts"][1]["text"]) == ("interrupted", "Kept.")


async def test_a_message_is_answered_after_any_kind_of_end(conversation: Conversation) -> None:
    """Interrupted three times in a row, without a word in between."""
    parts: list[Part] = [TextPart(text="Hi")]
    for number in (1, 2, 3):
        await conversation.session.begin_turn(TurnStart(f"dead-{number}", number, f"m-{number}", parts))
        await conversation.runner().settle()
    await conversation.but(agent=Agent("helper", "")).ask("[echo:Still here.]")
    assert conversation.document["latest_turn_number"] == 4
