"""The run function as Lambda calls it: it finds turns whose process died, and finishes them."""

from typing import Any

import pytest

from omniagent.app.run_jobs import BUSY_SECONDS, MAX_TRIES
from omniagent.errors import QueueUnavailable, RegistryUnavailable
from omniagent.lambda_runtime import event_loop
from omniagent.session.ids import new_id
from omniagent.turns.journal.records import HandedOver, line_of
from omniagent.turns.registry import MemoryRegistry
from tests.fixtures.conversation import move_clock
from tests.fixtures.jobs import HURRIED
from tests.fixtures.live_turns import begin_turn, enqueue, journal
from tests.fixtures.world import World
from tests.functions.run.dead_turns import RunFunction, a_run, answer_of, begin, queue_behind, session_of, stored_answer


def test_a_sweep_has_a_dead_turn_finished(run: RunFunction, world: World) -> None:
    key, turn = begin(world)
    assert run.sweep()["sessions"] == 1
    jobs = run.queue.taken()
    assert jobs == [a_run(key)]
    run.take(*jobs, *jobs)  # delivered twice
    answer = stored_answer(world, key)
    assert (answer["status"], answer["client_message_id"]) == ("complete", turn.id)
    assert world.database.messages.count_documents({"session_id": key}) == 2
    assert (run.sweep()["sessions"], run.queue.sent) == (0, [])


def test_a_dead_turn_is_found_again_after_a_failed_sweep(run: RunFunction, world: World) -> None:
    key, _ = begin(world)
    run.queue.is_down = True
    with pytest.raises(QueueUnavailable):
        run.sweep()
    run.queue.is_down = False
    run.work()
    assert stored_answer(world, key)["status"] == "complete"


def test_a_session_that_cannot_be_read_does_not_hinder_the_others(
    run: RunFunction, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broken, _), (key, _) = begin(world), begin(world)
    read = MemoryRegistry.read

    async def partly(registry: MemoryRegistry, session: str, *more: Any, **options: Any) -> Any:
        if session == broken:
            raise RegistryUnavailable("down")
        return await read(registry, session, *more, **options)

    monkeypatch.setattr(MemoryRegistry, "read", partly)
    assert run.sweep()["sessions"] == 1
    assert [job["session_id"] for job in run.queue.sent] == [key]


def test_a_handed_over_turn_is_continued_within_its_lease(run: RunFunction, world: World) -> None:
    key, turn = begin(world, is_dead=False)

    async def handed_over() -> None:
        end = line_of(HandedOver(has_open_calls=False))
        await journal(world.application.registry, await session_of(world, key), turn, [end])

    assert run.invoke(a_run(key)) == {"status": "nothing"}
    event_loop.run(handed_over())
    assert run.invoke(a_run(key)) == {"status": "ran"}
    assert stored_answer(world, key)["status"] == "complete"
    assert run.invoke(a_run("nobody:s1")) == {"status": "not_found"}


def test_a_message_in_line_that_nobody_answers_is_found(
    run: RunFunction, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = world.user()
    user.ask("[echo:Hello.]")
    queue_behind(world, user.key, "[echo:The second.]")
    move_clock(monkeypatch, days=0.001)
    run.work()
    assert stored_answer(world, user.key, 2)["parts"][-1]["text"] == "The second."


def test_a_job_without_time_leaves_the_next_message_to_another(run: RunFunction, world: World) -> None:
    key, _ = begin(world)
    queue_behind(world, key, "[echo:The second.]")
    run.take(a_run(key), context=HURRIED)
    assert stored_answer(world, key)["status"] == "complete"
    assert (answer_of(world, key, 2), run.queue.sent) == (None, [a_run(key)])


def test_a_message_of_a_user_with_too_many_turns_stays_in_line(run: RunFunction, world: World) -> None:
    user = world.user()
    limit = world.application.settings.max_running_turns_per_user

    async def busy() -> None:
        for _ in range(limit):
            await begin_turn(await world.application.session(user.client_id, new_id()))
        await enqueue(await world.application.session(user.client_id, user.session), "[echo:Done.]", "m1")

    event_loop.run(busy())
    for _ in range(2):
        assert run.invoke(a_run(user.key)) == {"status": "busy"}
    assert run.queue.delays == [BUSY_SECONDS] * 2
    others = {"user_id": user.key.partition(":")[0], "_id": {"$ne": user.key}}
    world.database.sessions.delete_many(others)
    assert run.invoke(a_run(user.key)) == {"status": "ran"}
    assert stored_answer(world, user.key)["status"] == "complete"


def test_a_failed_job_is_sent_again_with_growing_pauses_and_fails_at_last(
    run: RunFunction, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: object, **__: object) -> None:
        raise RegistryUnavailable("down")

    key, _ = begin(world)
    monkeypatch.setattr(MemoryRegistry, "read", down)
    for tries in (0, 1, MAX_TRIES - 1):
        run.take(a_run(key, tries=tries))
    assert [sent["tries"] for sent in run.queue.sent] == [1, 2, MAX_TRIES]
    assert run.queue.delays == [5, 10, 900]
    assert {sent["session_id"] for sent in run.queue.sent} == {key}
    assert run.take(a_run(key, tries=MAX_TRIES)) == ["message-1"]


@pytest.mark.parametrize("body", ["{}", "nonsense", '{"kind": "unknown"}', '{"kind": "run"}'])
def test_what_is_no_job_fails_and_becomes_a_dead_letter(run: RunFunction, body: str) -> None:
    assert run.take(body) == ["message-1"]
