"""The watch and the run function as Lambda calls them: they find turns whose process died, and finish them."""

import asyncio
import json
from types import SimpleNamespace
from typing import NoReturn

import pytest
from opentelemetry.sdk.trace import TracerProvider

from omniagent.app.queues import MAX_TRIES
from omniagent.errors import RegistryUnavailable
from omniagent.lambda_runtime import event_loop
from omniagent.session.manager import new_id
from omniagent.tracing import spans
from omniagent.tracing.recording import OpenTelemetryRecorder
from omniagent.turns.lease import Claim, InboxMessage, RunningTurn
from omniagent.turns.memory_registry import MemoryRegistry
from omniagent.turns.query import Query
from scripts.readme import LOOK_READS, look_dollars, looks_at
from tests.fixtures.conversation import Clock
from tests.fixtures.jobs import CONTEXT, batch, failures
from tests.fixtures.world import World
from tests.functions.run.dead_turns import (
    LEASE_SECONDS,
    Functions,
    a_takeover,
    a_watch,
    answer_of,
    begin,
    begin_again,
    stored_answer,
)


def test_a_turn_that_lives_is_looked_at_again_when_its_lease_has_run_out(
    functions: Functions, world: World, clock: Clock
) -> None:
    key, turn_id = begin(world)
    clock.pass_by(4)
    functions.check(key, turn_id, tries=3)
    assert functions.watches.checks == [(turn_id, 0, 27)]
    assert functions.watches.sent[0]["tries"] == 0
    assert (functions.runs.sent, answer_of(world, key)) == ([], None)


def test_a_dead_turn_is_finished_and_every_process_that_works_on_it_is_looked_after(
    functions: Functions, world: World, clock: Clock
) -> None:
    key, turn_id = begin(world)
    clock.pass_by(LEASE_SECONDS)
    functions.check(key, turn_id)
    answer = stored_answer(world, key)
    assert (answer["status"], answer["client_message_id"]) == ("complete", turn_id)
    before_it_was_taken_up, as_it_went_on = (turn_id, 0, 5), (turn_id, 1, 31)
    assert functions.watches.checks == [before_it_was_taken_up, as_it_went_on]
    assert functions.runs.sent == []


def test_a_run_function_that_never_answers_is_followed_by_another_with_growing_pauses(
    functions: Functions, world: World, clock: Clock
) -> None:
    key, turn_id = begin(world)
    clock.pass_by(LEASE_SECONDS)
    messages, delays = [json.loads(a_watch(key, turn_id))], []
    while messages:
        [message] = messages
        functions.watch.handler(batch(json.dumps(message)), CONTEXT)
        delays += [sent["delay"] for sent in functions.watches.sent]
        messages = functions.watches.taken()
    assert delays == [5, 10, 20, 40, 80, 160, 320, 640, 900, 900]
    takeovers = functions.runs.taken()
    assert [takeover["tries"] for takeover in takeovers] == list(range(MAX_TRIES + 1))
    assert all(takeover["watched"] and not takeover["handed_over"] for takeover in takeovers)


def test_a_turn_that_kills_every_process_that_claims_it_is_given_up(
    functions: Functions, world: World, clock: Clock
) -> None:
    key, turn_id = begin(world)
    clock.pass_by(LEASE_SECONDS)
    message = json.loads(a_watch(key, turn_id))
    for attempt in range(1, MAX_TRIES + 1):
        functions.watch.handler(batch(json.dumps(message)), CONTEXT)
        [takeover] = functions.runs.taken()
        assert takeover["tries"] == 0, "a process that is alive resets the pause"
        claim = Claim(key, turn_id, "m1", owner=new_id(), attempt=attempt)
        assert event_loop.run(world.application.registry.claim(claim)) is None  # and the run function dies
        [message] = functions.watches.taken()
        functions.watch.handler(batch(json.dumps(message)), CONTEXT)
        [message] = functions.watches.taken()
        clock.pass_by(LEASE_SECONDS)
    functions.watch.handler(batch(json.dumps(message)), CONTEXT)
    [takeover] = functions.runs.taken()
    assert (takeover["tries"], functions.watches.sent) == (MAX_TRIES, []), "the queue's deliveries are the last"


def test_a_watch_that_is_delivered_twice_leads_to_one_turn(functions: Functions, world: World, clock: Clock) -> None:
    key, turn_id = begin(world)
    clock.pass_by(LEASE_SECONDS)
    for _ in range(2):
        functions.check(key, turn_id)
    for _ in range(3):  # every chain of checks ends
        for message in functions.watches.taken():
            functions.check(key, message["turn_id"], attempt=message["attempt"])
    assert functions.watches.sent == []
    assert world.database.messages.count_documents({"session_id": key}) == 2


def test_a_dead_turn_is_handed_over_even_if_its_next_check_cannot_be_sent(
    functions: Functions, world: World, clock: Clock
) -> None:
    key, turn_id = begin(world)
    clock.pass_by(LEASE_SECONDS)
    functions.watches.is_down = True
    assert failures(functions.watch.handler(batch(a_watch(key, turn_id)), CONTEXT)) == [
        "message-1"
    ]  # so the queue delivers it again
    [takeover] = functions.runs.taken()
    functions.run.handler(batch(json.dumps(takeover)), CONTEXT)
    assert stored_answer(world, key)["status"] == "complete"


def test_a_dead_turn_that_cannot_be_handed_over_is_checked_again(
    functions: Functions, world: World, clock: Clock
) -> None:
    key, turn_id = begin(world)
    clock.pass_by(LEASE_SECONDS)
    functions.runs.is_down = True
    functions.watch.handler(batch(a_watch(key, turn_id)), CONTEXT)
    assert functions.watches.checks == [(turn_id, 0, 5)]
    assert functions.watches.sent[0]["tries"] == 1


def test_a_check_that_takes_too_long_is_given_up_in_time_and_made_again(
    functions: Functions, world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, turn_id = begin(world)
    is_free = event_loop.run(_new_event())

    async def stuck(_self: object, _session: str) -> None:
        await is_free.wait()

    hurried = SimpleNamespace(aws_request_id="r1", get_remaining_time_in_millis=lambda: 2_100)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryRegistry, "running", stuck)
        functions.watch.handler(batch(a_watch(key, turn_id)), hurried)
    assert functions.watches.checks == [(turn_id, 0, 5)]
    is_free.set()


def test_the_collector_of_traces_gets_only_the_time_that_is_left(
    functions: Functions, world: World, clock: Clock
) -> None:
    """A check whose process is killed after it has sent the next one is delivered again, and sends another."""

    class Collected(OpenTelemetryRecorder):
        def flush(self, timeout_seconds: float) -> bool:
            timeouts.append(timeout_seconds)
            return False

    timeouts: list[float] = []
    key, turn_id = begin(world)
    spans.activate(Collected(TracerProvider(), capture_content=False))
    try:
        for milliseconds in (120_000, 1_500):
            hurried = SimpleNamespace(aws_request_id="r1", get_remaining_time_in_millis=lambda left=milliseconds: left)
            functions.watch.handler(batch(a_watch(key, turn_id)), hurried)
    finally:
        spans.activate(None)
    assert timeouts[0] == 2.0
    assert timeouts[1] <= 1.0


async def _new_event() -> asyncio.Event:
    return asyncio.Event()


def test_a_handed_over_turn_is_continued_when_its_process_has_let_go(
    functions: Functions, world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, turn_id = begin(world)
    running = MemoryRegistry.running

    async def let_go_meanwhile(registry: MemoryRegistry, session: str) -> RunningTurn | None:
        held = await running(registry, session)
        await registry.let_go(Claim(key, turn_id, "m1"))
        return held

    monkeypatch.setattr(MemoryRegistry, "running", let_go_meanwhile)
    functions.run.handler(batch(a_takeover(key, turn_id, handed_over=True)), CONTEXT)
    assert stored_answer(world, key)["status"] == "complete"
    assert functions.watches.checks == [(turn_id, 1, 31)], "the watch of the process before goes on by itself"


def test_a_handed_over_turn_whose_process_does_not_let_go_is_left_to_its_watch(
    functions: Functions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, turn_id = begin(world)
    monkeypatch.setattr("omniagent.app.run_jobs.HAND_OVER_SECONDS", 0.0)
    functions.run.handler(batch(a_takeover(key, turn_id, handed_over=True)), CONTEXT)
    assert (functions.runs.sent, functions.watches.sent, answer_of(world, key)) == ([], [], None)


def test_a_turn_that_has_ended_needs_nothing(functions: Functions, world: World, clock: Clock) -> None:
    key, turn_id = begin(world)
    clock.pass_by(LEASE_SECONDS)
    functions.check(key, turn_id)
    functions.watches.sent.clear()
    functions.check(key, turn_id)
    functions.check(key, "another")
    functions.check("nobody:s1", turn_id)
    assert (functions.runs.sent, functions.watches.sent) == ([], [])


def test_the_watch_of_an_undisturbed_turn_costs_what_the_readme_says(
    functions: Functions, world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    running = MemoryRegistry.running

    async def counted(registry: MemoryRegistry, session: str) -> RunningTurn | None:
        nonlocal reads
        reads += 1
        return await running(registry, session)

    user = world.user()
    user.ask("[echo:Done.]")
    [message] = functions.watches.sent
    assert message["delay"] == LEASE_SECONDS + 1
    monkeypatch.setattr(MemoryRegistry, "running", counted)
    functions.watch.handler(batch(json.dumps(message)), CONTEXT)
    assert (len(functions.watches.sent), len(functions.runs.sent), reads) == (looks_at(1, LEASE_SECONDS), 0, LOOK_READS)
    assert 1000 * look_dollars(1) <= 0.002


def test_the_watch_of_an_earlier_process_ends_when_a_later_one_has_begun(
    functions: Functions, world: World, clock: Clock
) -> None:
    key, turn_id = begin(world)
    clock.pass_by(LEASE_SECONDS)
    later = Claim(key, turn_id, "m1", owner="later", attempt=1)
    event_loop.run(world.application.registry.claim(later))
    functions.check(key, turn_id)
    assert functions.watches.checks == [(turn_id, 0, 31)], "the later one may die before anybody looks after it"
    functions.watches.sent.clear()
    begin_again(world, key, turn_id, attempt=1)
    functions.check(key, turn_id)
    assert functions.watches.sent == []
    functions.check(key, turn_id, attempt=1)
    assert functions.watches.checks == [(turn_id, 1, 31)]


def test_the_previous_watch_runs_a_message_whose_process_died_before_it_began(
    functions: Functions, world: World, clock: Clock
) -> None:
    user = world.user()
    user.ask("[echo:Hello.]")
    key = user.key
    before, later = Claim(key, new_id(), "m1"), Claim(key, new_id(), "m2")
    registry = world.application.registry

    async def queued_and_claimed() -> None:
        await registry.claim(before)
        await registry.post(before, InboxMessage("m2", "[echo:The second.]"), 1)
        await registry.release(before)
        await registry.claim(later)

    event_loop.run(queued_and_claimed())
    functions.watches.sent.clear()
    functions.check(key, before.turn_id)
    assert functions.watches.checks == [(before.turn_id, 0, 31)], "nobody else looks after the message"
    clock.pass_by(LEASE_SECONDS)
    functions.check(key, before.turn_id)
    assert stored_answer(world, key, 2)["status"] == "complete"


def test_a_turn_whose_answer_could_not_be_stored_is_finished_although_nobody_holds_it(
    functions: Functions, world: World, clock: Clock
) -> None:
    key, turn_id = begin(world)
    event_loop.run(world.application.registry.release(Claim(key, turn_id, "m1")))
    functions.check(key, turn_id)
    assert stored_answer(world, key)["status"] == "complete"


def test_a_message_that_waits_for_a_dead_process_is_run_and_looked_after(
    functions: Functions, world: World, clock: Clock
) -> None:
    key, turn_id = begin(world)
    claim, posted = Claim(key, turn_id, "m1"), InboxMessage("m2", "[echo:The second.]")
    event_loop.run(world.application.registry.post(claim, posted, 5))
    clock.pass_by(LEASE_SECONDS)
    functions.check(key, turn_id)  # finishes the first
    assert answer_of(world, key, 2) is None
    functions.watches.sent.clear()
    functions.check(key, turn_id)
    second = stored_answer(world, key, 2)
    assert second["parts"][-1]["text"] == "The second."
    assert (second["client_message_id"], 0, 31) in functions.watches.checks


def ask(world: World, user: str, text: str = "[echo:Asked again.]", *, category: str | None = None) -> tuple[str, str]:
    """Claim a turn that a process dies of before it stores anything. Returns the key of its session, and its id."""

    async def claimed() -> tuple[str, str]:
        session = await world.application.session(user, new_id(), category=category)
        question = Query(text, "m1").packed(session)
        claim = Claim(session.key, new_id(), "m1", question=question)
        await world.application.registry.claim(claim)
        return session.key, claim.turn_id

    return event_loop.run(claimed())


def test_a_question_that_was_never_stored_is_asked_again_for_a_user_whom_nobody_knows(
    functions: Functions, world: World, clock: Clock
) -> None:
    user = f"user:{new_id()}"
    key, turn_id = ask(world, user, category="gold")
    functions.check(key, turn_id)
    assert functions.watches.checks == [(turn_id, 0, 31)], "it may be alive"
    functions.watches.sent.clear()
    clock.pass_by(LEASE_SECONDS)
    functions.check(key, turn_id)
    answer = stored_answer(world, key)
    assert (answer["status"], answer["parts"][-1]["text"]) == ("complete", "Asked again.")
    assert functions.watches.checks == [(turn_id, 0, 5), (answer["client_message_id"], 1, 31)]
    known = world.database.users.find_one({"client_id": user})
    assert known is not None
    assert known["category"] == "gold"
    functions.watches.sent.clear()
    functions.check(key, turn_id)  # delivered again
    assert functions.watches.sent == []
    assert world.database.messages.count_documents({"session_id": key}) == 2


def test_a_question_that_was_never_stored_does_not_outlive_the_deletion_of_its_user(
    functions: Functions, world: World, clock: Clock
) -> None:
    user = world.user()
    user.ask("[echo:Hello.]")
    key, turn_id = ask(world, user.client_id)
    assert user.call("DELETE", "/users/me").status_code == 204
    clock.pass_by(LEASE_SECONDS)
    functions.watches.sent.clear()
    functions.check(key, turn_id)
    assert event_loop.run(world.application.registry.running(key)) is None
    assert world.database.messages.count_documents({"session_id": key}) == 0
    assert world.database.users.count_documents({"client_id": user.client_id}) == 0


def down(_self: object, _session: str) -> NoReturn:
    raise RegistryUnavailable("down")


def test_a_check_that_fails_is_made_again_with_growing_pauses_and_fails_at_last(
    functions: Functions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, turn_id = begin(world)
    monkeypatch.setattr(MemoryRegistry, "running", down)
    for tries in (0, 1, MAX_TRIES - 1):
        functions.watch.handler(batch(a_watch(key, turn_id, tries=tries)), CONTEXT)
    assert [(sent["tries"], sent["delay"]) for sent in functions.watches.sent] == [(1, 5), (2, 10), (MAX_TRIES, 900)]
    assert failures(functions.watch.handler(batch(a_watch(key, turn_id, tries=MAX_TRIES)), CONTEXT)) == ["message-1"]


def test_a_job_that_fails_is_sent_again_with_growing_pauses_and_fails_at_last(
    functions: Functions, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, _ = begin(world)
    job = {"kind": "turn", "session_id": key, "message_id": "m2"}
    monkeypatch.setattr(MemoryRegistry, "running", down)
    for tries in (0, 1, MAX_TRIES - 1):
        functions.run.handler(batch(json.dumps(job | {"tries": tries})), CONTEXT)
    assert [(sent["tries"], sent["delay"]) for sent in functions.runs.sent] == [(1, 5), (2, 10), (MAX_TRIES, 900)]
    assert {sent["message_id"] for sent in functions.runs.sent} == {"m2"}
    assert failures(functions.run.handler(batch(json.dumps(job | {"tries": MAX_TRIES})), CONTEXT)) == ["message-1"]


def test_a_turn_that_cannot_continue_ends_as_one_dead_letter(
    functions: Functions, world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, turn_id = begin(world)
    clock.pass_by(LEASE_SECONDS)

    async def throttled(*_: object) -> bool:
        raise RegistryUnavailable("throttled")

    monkeypatch.setattr(MemoryRegistry, "append", throttled)
    message = json.loads(a_watch(key, turn_id))
    for tries in range(1, MAX_TRIES + 1):
        functions.watch.handler(batch(json.dumps(message)), CONTEXT)
        [takeover] = functions.runs.taken()
        functions.run.handler(batch(json.dumps(takeover)), CONTEXT)
        [message] = functions.watches.taken()
        assert (message["tries"], functions.runs.sent) == (tries, [])
    functions.watch.handler(batch(json.dumps(message)), CONTEXT)
    [takeover] = functions.runs.taken()
    assert failures(functions.run.handler(batch(json.dumps(takeover)), CONTEXT)) == ["message-1"]
    assert (functions.runs.sent, functions.watches.sent) == ([], [])


def test_a_turn_that_another_process_has_just_claimed_keeps_its_watch_after_the_last_try(
    functions: Functions, world: World, clock: Clock
) -> None:
    key, turn_id = begin(world)
    clock.pass_by(LEASE_SECONDS)
    functions.watch.handler(batch(a_watch(key, turn_id, tries=MAX_TRIES)), CONTEXT)
    later = Claim(key, turn_id, "m1", owner="later", attempt=1)
    event_loop.run(world.application.registry.claim(later))  # and dies before it begins
    [takeover] = functions.runs.taken()
    functions.run.handler(batch(json.dumps(takeover)), CONTEXT)
    assert functions.watches.checks == [(turn_id, 0, 31)]


@pytest.mark.parametrize("body", ["{}", "nonsense", '{"kind": "unknown"}', '{"kind": "takeover"}'])
def test_what_is_no_job_fails_and_is_a_dead_letter_at_last(functions: Functions, body: str) -> None:
    for function in (functions.run, functions.watch):
        assert failures(function.handler(batch(body), CONTEXT)) == ["message-1"]


def test_a_turn_can_be_continued_by_hand(functions: Functions, world: World, clock: Clock) -> None:
    key, turn_id = begin(world)
    event = {"kind": "takeover", "session_id": key, "turn_id": turn_id}
    assert functions.run.handler(event, CONTEXT) == {"status": "alive"}
    assert [check[0] for check in functions.watches.checks] == [turn_id]
    functions.watches.sent.clear()
    clock.pass_by(LEASE_SECONDS)
    assert functions.run.handler(event, CONTEXT) == {"status": "continued"}
    assert functions.watches.checks == [(turn_id, 0, 31), (turn_id, 1, 31)]
    assert functions.run.handler(event, CONTEXT) == {"status": "ended"}
