"""A turn whose process died between its claim and the stored question is asked again, without anybody asking."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from omniagent import Query
from omniagent.ai.operator import TurnOperator
from omniagent.app.watcher import TurnWatcher
from omniagent.errors import NotFound, OmniAgentError, StorageUnavailable
from omniagent.session.addresses import SessionAddress
from omniagent.turns.lease import Claim, InboxMessage
from omniagent.turns.query import MAX_QUESTION_BYTES
from omniagent.turns.setup import MAX_ATTEMPTS
from omniagent.turns.unbegun import ASKED_SECONDS, Asked
from tests.runner.processes import Call
from tests.turns.deaths import LEASE_SECONDS, QUERY, MortalProcess, World
from tests.turns.registries import until

STAGES = ["after claim", "before load", "after admit", "before begin_turn"]


pytestmark = pytest.mark.usefixtures("burial")


async def held(world: World) -> Claim | None:
    running = await world.registry.running(world.session.key)
    return None if running is None else running.claim


async def dead(stage: str = "before begin_turn", query: Query = QUERY) -> World:
    """A world whose first process died before its turn began."""
    world = World(stage)
    await world.die(query)
    claim = await held(world)
    assert claim is not None
    assert claim.question
    world.process = MortalProcess(world)
    return world


@pytest.mark.parametrize("stage", STAGES)
async def test_a_question_that_was_claimed_and_not_stored_is_asked_again(stage: str) -> None:
    undisturbed = World()
    await undisturbed.runner().run(QUERY)
    world = await dead(stage)
    assert await world.session.head() is None
    claim = await held(world)
    assert claim is not None
    assert await world.runner().look(claim.turn_id) == 0
    answer = await world.finished()
    assert list(answer.parts) == list((await undisturbed.answer()).parts)
    assert world.runs == ["c1"]
    assert await held(world) is None
    assert await world.runner().look(claim.turn_id) is None
    assert world.begun[-1] == (answer.id, 1), "it has a watch of its own"


@pytest.mark.parametrize("stage", STAGES)
async def test_somebody_looks_after_a_turn_from_its_claim_on(stage: str) -> None:
    world = await dead(stage)
    claim = await held(world)
    assert claim is not None
    assert world.begun == [(claim.turn_id, 0)]


async def test_a_claim_carries_the_question_only_until_its_turn_has_begun() -> None:
    world = World("in the last text")
    asking = asyncio.create_task(world.runner().run(QUERY))
    await world.reached.wait()

    async def is_gone() -> bool:
        claim = await held(world)
        return claim is not None and not claim.question

    await until(is_gone)
    world.goes_on.set()
    assert (await asking).status == "complete"


async def test_a_start_that_kills_every_process_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    world = World("before begin_turn")
    world.deaths_left = MAX_ATTEMPTS + 1
    await world.die()
    for _ in range(MAX_ATTEMPTS):
        await world.killed(asyncio.create_task(world.continued()))
    assert await world.continued() is None
    assert await held(world) is None
    assert caplog.messages.count("dead turn not continued") == 1
    assert (await world.runner().run(Query("Go on", "m2"))).status == "complete"


async def test_deaths_before_and_after_the_begin_are_bounded_together() -> None:
    world = World("before begin_turn")
    world.deaths_left = 3
    await world.die()
    for _ in range(2):
        await world.killed(asyncio.create_task(world.continued()))
    world.stage, world.deaths_left = "mid text", MAX_ATTEMPTS
    for _ in range(MAX_ATTEMPTS - 2):
        await world.killed(asyncio.create_task(world.continued()))
    assert await world.continued() is None
    assert (await world.answer()).status == "interrupted"


async def test_a_regeneration_is_asked_again_and_replaces_the_answer_once() -> None:
    world = World()
    before = await world.runner().run(QUERY)
    world.stage = "before begin_turn"
    await world.die(Query(regenerate=True, message_id="m1", replaces=before.message_id))
    answer = await world.finished()
    assert answer.metadata["replaces"] == before.message_id
    assert len(world.model.requests) == 5, "two, the one under way, and two"
    assert await world.continued() is None


async def test_a_turn_that_has_begun_is_continued_and_not_asked_again() -> None:
    world = World("after begin_turn")
    await world.die()
    claim = await held(world)
    assert claim is not None
    assert claim.question, "it had no time to renew its claim"
    assert (await world.finished()).id == claim.turn_id


async def test_a_turn_that_ended_and_was_not_released_is_not_asked_again() -> None:
    world = World()
    await world.runner().run(QUERY)
    head = await world.session.head()
    assert head is not None
    question = Query(regenerate=True, message_id="m1").packed(world.session)
    await world.registry.claim(Claim(world.session.key, str(head.latest_turn_id), "m1", question=question))
    world.clock.pass_by(LEASE_SECONDS)
    assert await world.runner().look("t") is None
    assert await world.continued() is None
    assert len(world.model.requests) == 2


async def test_another_message_comes_in_its_place() -> None:
    world = await dead()
    assert (await world.runner().run(Query("Something else", "m2"))).status == "complete"
    assert await world.continued() is None
    assert await world.session.find("m1") is None


async def test_the_same_message_sent_again_is_answered_once() -> None:
    world = await dead()
    claim = await held(world)
    assert claim is not None
    result = await world.runner().run(QUERY)
    assert result.status == "complete"
    assert await world.runner().look(claim.turn_id) is None
    assert await world.continued() is None
    assert len(world.model.requests) == 3, "the one under way, and two"


async def test_who_joined_it_before_the_death_is_answered() -> None:
    world = World("before begin_turn")
    asking = asyncio.create_task(world.runner().run(QUERY))
    await world.reached.wait()
    joined = asyncio.create_task(world.runner(MortalProcess(world)).run(QUERY))
    await asyncio.sleep(0)
    await world.killed(asking)
    world.process = MortalProcess(world)
    assert (await joined).status == "complete"
    assert len(world.model.requests) == 3, "the one of the dead process, and two"


async def test_who_resumes_gets_the_answer() -> None:
    world = await dead()
    stream = await world.runner().resume()
    assert stream is not None
    assert (await stream.result()).status == "complete"
    await stream.ended()


@pytest.mark.parametrize("message_id", [None, "m1"])
async def test_a_stop_forgets_it(message_id: str | None) -> None:
    world = await dead()
    assert not await world.runner().stop("another")
    assert await world.runner().stop(message_id)
    assert await held(world) is None
    assert await world.continued() is None
    assert not await world.runner().stop(message_id)


async def test_a_stop_that_the_dead_process_did_not_see_is_obeyed() -> None:
    world = World("before begin_turn")
    asking = asyncio.create_task(world.runner().run(QUERY))
    await world.reached.wait()
    assert await world.runner().stop("m1")
    await world.killed(asking)
    assert await world.continued() is None
    assert await held(world) is None


async def test_the_deletion_of_its_session_wins() -> None:
    world = await dead()
    with pytest.raises(NotFound):  # MongoDB has never heard of it
        await world.runner().erase()
    assert await held(world) is None
    assert await world.continued() is None


@pytest.mark.parametrize("stage", STAGES)
async def test_the_deletion_of_its_user_wins(stage: str) -> None:
    world = await dead(stage)
    assert await world.runner().erase_user()
    assert await world.continued() is None
    assert await held(world) is None
    assert await world.session.head() is None
    assert not world.store.users


async def test_a_question_too_old_is_forgotten() -> None:
    world = await dead()
    world.clock.pass_by(ASKED_SECONDS)
    assert await world.continued() is None
    assert await held(world) is None


async def test_messages_that_were_posted_come_after_it() -> None:
    world = World()
    await world.runner().run(QUERY)
    world.stage = "before begin_turn"
    asking = asyncio.create_task(world.runner().run(Query("The second", "m2")))
    await world.reached.wait()
    claim = await held(world)
    assert claim is not None
    await world.registry.post(claim, InboxMessage("m3", "The third"), 5)
    await world.killed(asking)
    for number, message_id in ((2, "m2"), (3, "m3")):
        world.process = MortalProcess(world)
        stream = await world.runner().take_up()
        assert stream is not None
        await stream.ended()
        message = await world.session.find(message_id)
        assert message is not None
        assert message.turn_number == number


async def test_a_message_that_was_accepted_comes_after_it() -> None:
    world = World()
    await world.runner().run(QUERY)
    world.stage = "before begin_turn"
    asking = asyncio.create_task(world.runner().run(Query("The second", "m2")))
    await world.reached.wait()
    await world.runner(MortalProcess(world)).accept(Query("The third", "m3", busy="queue"))
    await world.killed(asking)
    world.process = MortalProcess(world)
    for _ in range(2):
        stream = await world.runner().run_accepted("m3")
        assert stream is not None
        await stream.ended()
    third = await world.session.find("m3")
    assert third is not None
    assert third.turn_number == 3


class Storeless(MortalProcess):
    """A process that does not reach the store."""

    async def call(self, name: str, call: Call, unavailable: type[OmniAgentError]) -> Any:
        if name == "load":
            raise StorageUnavailable("down")
        return await super().call(name, call, unavailable)


async def test_a_store_that_is_away_costs_it_an_attempt_and_no_more() -> None:
    world = await dead()
    world.process = Storeless(world)
    with pytest.raises(StorageUnavailable):
        await world.runner().continue_turn()
    claim = await held(world)
    assert claim is not None
    assert claim.attempt == 1
    assert (await world.finished()).status == "complete"


async def test_a_question_that_does_not_fit_is_not_carried() -> None:
    world = World("before begin_turn")
    world.settings = replace(world.settings, max_message_chars=1_000_000)
    world.process = MortalProcess(world)
    rng = random.Random(1)
    text = "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(MAX_QUESTION_BYTES // 2))
    await world.die(Query(text, "m1"))
    claim = await held(world)
    assert claim is not None
    assert not claim.question
    assert await world.continued() is None


async def test_whatever_is_asked_can_be_asked_again() -> None:
    world = World()
    query = Query('"\ud83d" \U0001f600 é\n', "m1", regenerate=True, replaces="a1")
    asked = Asked.by(Claim(world.session.key, "t1", "m1", question=query.packed(world.session)))
    assert asked == Asked(query, "ada", None)
    for broken in (b"", b"nonsense", query.packed(world.session)[:-9]):
        assert Asked.by(Claim(world.session.key, "t1", "m1", question=broken)) is None


async def test_a_watcher_in_a_server_finds_it() -> None:
    world = await dead("after claim")
    addresses: list[SessionAddress] = []

    async def runner(address: SessionAddress) -> TurnOperator:
        addresses.append(address)
        return world.runner(MortalProcess(world))

    watcher = TurnWatcher(world.store, world.registry, runner)
    assert await watcher.look() == 1

    async def is_complete() -> bool:
        answer = await world.session.answer(1)
        return answer is not None and answer.status == "complete"

    await until(is_complete)
    assert addresses == [SessionAddress("ada", "chat")]
    await watcher.aclose()


async def taken_up(world: World) -> bool:
    """Let another process run what waits. Returns whether it lived."""
    world.process = MortalProcess(world)
    taking_up = asyncio.create_task(world.runner().take_up())
    reaching = asyncio.create_task(world.reached.wait())
    await asyncio.wait([taking_up, reaching], return_when=asyncio.FIRST_COMPLETED)
    if not taking_up.done():
        await world.killed(taking_up)
        return False
    reaching.cancel()
    if (stream := await taking_up) is not None:
        await stream.ended()
    return True


async def test_a_queued_message_that_kills_every_process_before_its_turn_begins_fails_at_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World("before begin_turn")
    await world.runner().accept(QUERY)
    world.deaths_left = MAX_ATTEMPTS + 1
    for _ in range(MAX_ATTEMPTS + 1):
        assert not await taken_up(world)
    requests = len(world.model.requests)
    assert await taken_up(world)
    assert ((await world.answer()).status, len(world.model.requests)) == ("failed", requests)
    assert caplog.messages.count("dead turn not continued") == 1
    assert await held(world) is None
    assert (await world.runner().run(Query("Go on", "m2"))).status == "complete"


async def test_a_queued_message_that_cannot_even_be_told_to_have_failed_is_dropped() -> None:
    world = World("before load")
    await world.runner().accept(QUERY)
    world.deaths_left = 1000
    deaths = 0
    while not await taken_up(world):
        deaths += 1
        assert deaths <= MAX_ATTEMPTS + 2
    assert await held(world) is None
    world.deaths_left = 0
    assert (await world.runner().run(Query("Go on", "m2"))).status == "complete"


async def test_only_deaths_in_a_row_count_against_a_queued_message() -> None:
    world = World("before begin_turn")
    await world.runner().accept(QUERY)
    for _ in range(2):
        world.deaths_left = MAX_ATTEMPTS
        for _ in range(MAX_ATTEMPTS):
            assert not await taken_up(world)
        world.process = Storeless(world)
        with pytest.raises(StorageUnavailable):
            await world.runner().take_up()
    assert await taken_up(world)
    assert (await world.answer()).status == "complete"


async def test_a_queued_message_whose_turn_began_is_not_dropped_however_many_processes_it_has_had(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    await world.runner().accept(QUERY)
    assert await taken_up(world)
    last = Claim(world.session.key, world.turn_id, QUERY.message_id, owner="last", attempt=MAX_ATTEMPTS + 2)
    await world.registry.claim(last)
    await world.registry.post(last, InboxMessage(QUERY.message_id, QUERY.text), 1)
    world.clock.pass_by(LEASE_SECONDS)  # it has died before it released the session
    assert await taken_up(world)
    assert ((await world.answer()).status, await held(world)) == ("complete", None)
    assert "queued message dropped" not in caplog.messages
