"""Following a turn that another process runs: from its first event, to its end or to that of its process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from omniagent import Query
from omniagent.errors import RegistryUnavailable, TooManyReaders, TurnInProgress
from omniagent.messages import Status, StepPart, TextPart
from omniagent.protocol import events, sse
from omniagent.session.manager import SessionMessage, TurnStart, new_id
from omniagent.testing import Gate, MemoryRegistry, ScriptedModel
from omniagent.turns import follow
from omniagent.turns.follow import MAX_READERS_PER_SESSION
from omniagent.turns.lease import Claim, Reader, TurnRegistry
from omniagent.turns.replay import HANDED_OVER, STEP, TAKEN_OVER, FollowedLog
from tests.fixtures.conversation import QUICK, Clock, Conversation, each_registry, read, seen
from tests.fixtures.stream import check_order, outline
from tests.runner.sessions import Sessions
from tests.turns.registries import Unreliable, until

STALLED = "[stall] [echo:one two three four]"


@pytest.fixture
def conversation(conversation: Conversation, registry: TurnRegistry) -> Conversation:
    return conversation.but(registry=registry)


@each_registry
async def test_readers_that_resume_get_the_bytes_of_the_stream(conversation: Conversation) -> None:
    turn = await conversation.start(STALLED)
    await seen(turn, "text-delta")
    first, second = await conversation.runner().resume(), await conversation.runner().resume()
    assert first is not None
    assert second is not None
    reading = [asyncio.create_task(read(stream)) for stream in (first, second)]
    await conversation.stop()
    assert [await task for task in reading] == [await read(turn)] * 2


@each_registry
async def test_an_answer_that_has_just_ended_can_be_resumed_and_an_old_one_not(conversation: Conversation) -> None:
    assert await conversation.runner().resume() is None
    told = await conversation.ask("[echo:Hello.]")
    stream = await conversation.runner().resume()
    assert stream is not None
    assert outline(list(sse.decode(await read(stream)))) == outline(told)
    long_ago = datetime.now(UTC) - timedelta(minutes=1)
    conversation.database.sessions.update_one({"_id": conversation.session.key}, {"$set": {"updated_at": long_ago}})
    assert await conversation.runner().resume() is None


async def resumed(conversation: Conversation) -> AsyncIterator[bytes]:
    """Return the frames of the running turn, for a reader that resumes it."""
    stream = await conversation.runner().resume()
    assert stream is not None
    return stream.sse()


async def dying(conversation: Conversation, *logged: events.StreamEvent) -> Claim:
    """A turn whose process does not do anything any more."""
    claim = Claim(conversation.session.key, "dying", "m1")
    await conversation.registry.claim(claim)
    await conversation.session.begin_turn(TurnStart("dying", 1, "m1", [TextPart(text="Hi")]))
    for number, event in enumerate(logged):
        await conversation.registry.append(claim, number, sse.encode(event))
    return claim


BEGINNING = (
    events.Start("dying", {"sessionId": "s", "turnNumber": 1}),
    events.StartStep(),
    events.TextStart("0"),
    events.TextDelta("0", "Half an ans"),
)


@each_registry
async def test_when_the_process_dies_the_stream_is_ended_for_it_and_the_session_repaired(
    conversation: Conversation, clock: Clock
) -> None:
    await dying(conversation, *BEGINNING)
    frames = await resumed(conversation)
    told = await anext(frames)
    clock.pass_by(10)
    told += b"".join([piece async for piece in frames])
    assert told.endswith(sse.DONE)
    check_order(list(sse.decode(told)))
    assert outline(list(sse.decode(told)))[3:] == [
        "text-delta 0 Half an ans",
        "text-end 0",
        "finish-step",
        "abort interrupted",
        "finish other",
        "data-session interrupted",
    ]
    assert (conversation.answer["status"], conversation.answer["parts"][1]["text"]) == ("interrupted", "Half an ans")
    assert conversation.document["active_turn_id"] is None


async def test_a_dead_turn_is_repaired_by_who_wants_to_resume_it(conversation: Conversation, clock: Clock) -> None:
    await dying(conversation, *BEGINNING)
    clock.pass_by(10)
    stream = await conversation.runner().resume()
    assert stream is not None
    assert conversation.answer["status"] == "interrupted"
    assert stream.message_id == conversation.answer["client_message_id"]


async def test_a_reader_of_a_dead_turn_is_shown_the_answer_that_has_replaced_it(
    conversation: Conversation, clock: Clock
) -> None:
    await dying(conversation, *BEGINNING)
    frames = await resumed(conversation)
    told = await anext(frames)
    clock.pass_by(10)
    await conversation.runner().resume()  # by another tab, which then asks again
    new = (await conversation.ask(Query("Hi", "m1", regenerate=True)))[0]["messageId"]
    told += b"".join([piece async for piece in frames])
    shown = list(sse.decode(told))
    assert told.endswith(sse.DONE)
    assert [event["messageId"] for event in shown if event["type"] == "start"] == ["dying", new]
    after = [event["delta"] for event in shown[len(BEGINNING) :] if event["type"] == "text-delta"]
    assert "".join(after) == "".join(part["text"] for part in conversation.answer["parts"] if part["type"] == "text")


async def test_a_turn_that_ended_between_two_looks_is_followed_to_its_end(conversation: Conversation) -> None:
    claim = await dying(conversation, *BEGINNING)
    frames = await resumed(conversation)
    await anext(frames)
    await conversation.registry.append(claim, len(BEGINNING), sse.DONE)
    await conversation.registry.release(claim)
    assert [piece async for piece in frames][-1].endswith(sse.DONE)


async def stillborn(conversation: Conversation) -> Claim:
    """A turn whose process failed before the user's message was stored: its caller has the error."""
    claim = Claim(conversation.session.key, "stillborn", "m1")
    await conversation.registry.claim(claim)
    return claim


async def test_a_turn_that_never_began_cannot_be_resumed(conversation: Conversation) -> None:
    claim = await stillborn(conversation)
    resuming = asyncio.create_task(conversation.runner().resume())
    await conversation.registry.release(claim)
    assert await resuming is None


async def test_a_message_whose_turn_never_began_is_answered_by_who_asks_again(conversation: Conversation) -> None:
    claim = await stillborn(conversation)
    retrying = asyncio.create_task(conversation.ask(Query("[echo:Here.]", "m1")))
    await conversation.registry.release(claim)
    assert outline(await retrying)[-1] == "data-session complete"


async def test_a_silent_turn_keeps_the_connection_alive(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "KEEP_ALIVE_SECONDS", 0.03)
    claim = await dying(conversation, *BEGINNING)
    frames = await resumed(conversation)
    await anext(frames)
    assert await anext(frames) == sse.KEEP_ALIVE
    await conversation.registry.append(claim, len(BEGINNING), sse.DONE)
    rest = b"".join([piece async for piece in frames if piece != sse.KEEP_ALIVE])
    assert rest == b"".join(map(sse.encode, BEGINNING[1:])) + sse.DONE, "held back until its process was seen to live"


@pytest.mark.parametrize("status", ["complete", "interrupted"])
async def test_a_regeneration_that_dies_before_it_has_logged_anything_is_told_from_its_start(
    conversation: Conversation, clock: Clock, status: Status
) -> None:
    await conversation.ask("[echo:Before.]")
    claim = Claim(conversation.session.key, "again", "regenerate:first")
    await conversation.registry.claim(claim)
    state = await conversation.session.load()
    assert state.question is not None
    await conversation.session.begin_turn(TurnStart("again", 1, state.question.id, [TextPart(text="Hi")], again=True))
    await conversation.registry.append(claim, 0, sse.KEEP_ALIVE)
    frames = await resumed(conversation)
    assert await anext(frames) == sse.KEEP_ALIVE
    answer = SessionMessage("again", "assistant", 1, [StepPart(), TextPart(text="After.")], status)
    await conversation.session.finish_turn(answer)
    clock.pass_by(10)
    wire = list(sse.decode(b"".join([piece async for piece in frames])))
    check_order(wire)
    assert wire[0]["messageId"] == "again"
    assert [event["delta"] for event in wire if event["type"] == "text-delta"] == ["After."]


async def following(conversation: Conversation) -> tuple[Unreliable, Claim, AsyncIterator[bytes]]:
    """A reader who has got the beginning of an answer through a registry that can fail."""
    registry = Unreliable()
    followed = conversation.but(registry=registry)
    claim = await dying(followed, *BEGINNING)
    frames = await resumed(followed)
    await anext(frames)
    return registry, claim, frames


async def test_the_log_is_read_once_for_a_reader(conversation: Conversation) -> None:
    registry, claim, frames = await following(conversation)
    await registry.append(claim, len(BEGINNING), sse.DONE)
    assert b"".join([piece async for piece in frames]).endswith(sse.DONE)
    assert registry.reads.count(-1) == 1


async def test_a_process_that_takes_over_does_not_vouch_for_the_step_of_the_dead_one(
    conversation: Conversation,
) -> None:
    registry, claim, frames = await following(conversation)
    successor = replace(claim, owner="successor", attempt=1)
    await registry.seize(successor)  # it claims before it writes to the log
    rest = asyncio.create_task(_joined(frames))
    reads = 0

    async def is_read_again() -> bool:
        return len(registry.reads) > reads + 1

    for _ in range(3):
        await registry.renew(successor)
        reads = len(registry.reads)
        await until(is_read_again)
    taken_over = sse.encode_note({TAKEN_OVER: 1, "owner": successor.owner})
    again = b"".join(map(sse.encode, (*BEGINNING[1:3], events.TextDelta("0", "A whole answer.")))) + sse.DONE
    await registry.append(successor, len(BEGINNING), taken_over + again)
    assert await rest == again


async def _joined(frames: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in frames])


async def test_a_registry_that_fails_for_a_moment_costs_a_reader_nothing(conversation: Conversation) -> None:
    registry, claim, frames = await following(conversation)
    registry.is_down = True
    rest = asyncio.ensure_future(anext(frames))
    await until(lambda: _ready(registry.refusals > 2))
    registry.is_down = False
    await registry.append(claim, len(BEGINNING), sse.DONE)
    assert (await rest).endswith(sse.DONE)


async def test_a_registry_that_stays_away_ends_the_stream_of_an_answer_that_is_stored(
    conversation: Conversation,
) -> None:
    registry, _, frames = await following(conversation.but(settings=replace(QUICK, lease_seconds=0.1)))
    registry.is_down = True
    await conversation.session.finish_turn(SessionMessage("dying", "assistant", 1, [StepPart(), TextPart(text="All.")]))
    assert b"".join([piece async for piece in frames]).endswith(sse.DONE)


async def test_a_reader_of_an_unfinished_answer_learns_that_the_registry_is_down(
    conversation: Conversation,
) -> None:
    registry, _, frames = await following(conversation.but(settings=replace(QUICK, lease_seconds=0.1)))
    registry.is_down = True
    with pytest.raises(RegistryUnavailable):
        await anext(frames)


async def _ready(value: bool) -> bool:
    return value


async def test_a_turn_that_dies_after_its_answer_was_stored_is_told_to_its_end(
    conversation: Conversation, clock: Clock
) -> None:
    """Committed, but killed before the last chunk: the reader gets the rest of what is stored."""
    await dying(conversation, *BEGINNING)
    frames = await resumed(conversation)
    told = await anext(frames)
    answer = SessionMessage(
        "dying",
        "assistant",
        1,
        [StepPart(), TextPart(text="Half an answer."), StepPart(), TextPart(text="And more.")],
        metadata={"finishReason": "stop", "status": "complete"},
    )
    await conversation.session.finish_turn(answer)
    clock.pass_by(10)
    told += b"".join([piece async for piece in frames])
    wire = list(sse.decode(told))
    check_order(wire)
    assert outline(wire)[3:] == [
        "text-delta 0 Half an answer.",
        "text-end 0",
        "finish-step",
        "start-step",
        "text-start 1",
        "text-delta 1 And more.",
        "text-end 1",
        "finish-step",
        "finish stop",
        "data-session complete",
    ]


async def test_a_reader_ends_itself_after_a_while_without_an_end_of_the_answer(conversation: Conversation) -> None:
    turn = await conversation.start(STALLED)
    await seen(turn, "text-delta")
    impatient = conversation.but(settings=replace(QUICK, follow_seconds=0.01))
    stream = await impatient.runner().resume()
    assert stream is not None
    frames = b"".join([piece async for piece in stream.sse()])
    kinds = [event["type"] for event in sse.decode(frames)]
    assert kinds[0] == "start"
    assert not {"finish", "abort", "error"} & set(kinds)
    assert not frames.endswith(sse.DONE)
    joined = await impatient.runner().start(Query(STALLED, conversation.messages[0]["client_message_id"]))
    with pytest.raises(TurnInProgress, match="Send the same request again"):
        await joined.result()
    await conversation.stop()
    await turn.result()


class LosesAnAnswer(MemoryRegistry):
    """The first reader is counted, but not told so."""

    has_lost = False

    async def enter(self, reader: Reader) -> Sequence[str]:
        sessions = await MemoryRegistry.enter(self, reader)
        if not self.has_lost:
            self.has_lost = True
            raise RegistryUnavailable("the answer was lost")
        return sessions


async def test_a_reader_who_is_not_let_in_is_not_counted() -> None:
    sessions, gate = Sessions(replace(QUICK, max_readers_per_user=1)), Gate()
    sessions.registry = LosesAnAnswer()
    runner = sessions.runner(ScriptedModel(["One", gate, "."]))
    turn = await runner.start("Go")
    await gate.reached()
    with pytest.raises(RegistryUnavailable):
        await runner.resume()
    reader = await runner.resume()
    assert reader is not None
    gate.set()
    assert (await reader.result()).text == "One."
    await asyncio.gather(turn.ended(), reader.ended())


@each_registry
async def test_readers_are_counted_per_session_and_per_user(conversation: Conversation) -> None:
    most = MAX_READERS_PER_SESSION
    few = conversation.but(settings=replace(QUICK, max_readers_per_user=most + 1))
    other = few.but(session_id=new_id())
    turns = [await each.start(STALLED) for each in (few, other)]
    for turn in turns:
        await seen(turn, "text-delta")
    readers = [await few.runner().resume() for _ in range(most)]
    with pytest.raises(TooManyReaders) as refused:
        await few.runner().resume()
    assert (refused.value.status, refused.value.code) == (429, "too_many_readers")
    readers.append(await other.runner().resume())
    with pytest.raises(TooManyReaders):
        await other.runner().resume()
    assert readers[0] is not None
    await readers[0].ended()
    readers[0] = await few.runner().resume()
    for turn, each in zip(turns, (few, other), strict=True):
        await each.stop()
        await turn.result()


@each_registry
async def test_a_reader_whose_process_died_counts_until_its_time_is_over(registry: TurnRegistry, clock: Clock) -> None:
    user = new_id()
    await registry.enter(Reader("dead", user, f"{user}:a", 60))
    clock.pass_by(59)
    own, *others = await registry.enter(Reader("second", user, f"{user}:b", 60))
    assert others
    assert own not in others
    clock.pass_by(1)
    third = Reader("third", user, f"{user}:b", 60)
    own, *others = await registry.enter(third)
    assert others == [own]
    await registry.leave(third)
    await registry.leave(third)
    assert len(await registry.enter(Reader("fourth", user, f"{user}:b", 60))) == 2


def test_a_reader_hurries_from_a_hand_over_until_the_next_process_shows_something() -> None:
    log = FollowedLog()
    steps = b"".join(map(sse.encode, BEGINNING))
    hurries = []
    for chunk in (
        steps + sse.encode_note({STEP: "tool-calls"}),
        sse.encode_note({HANDED_OVER: 0, "calls": "open"}),
        sse.encode_note({TAKEN_OVER: 1, "owner": "next"}),
        sse.START_STEP,
        sse.encode(events.TextDelta("0", "And")),
    ):
        log.take([chunk])
        hurries.append(log.waits_for_process)
    assert hurries == [False, True, True, True, False]
    assert log.owner == "next"
