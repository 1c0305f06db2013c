"""A message that is accepted now and answered later, by another process."""

import asyncio
from dataclasses import replace

import pytest

from omniagent import Agent, Budget, InMemorySessionManager, Query, SessionManager, TurnHooks
from omniagent.ai.operator import TurnOperator
from omniagent.errors import (
    InvalidRequest,
    NotRegenerable,
    QueueFull,
    QueueUnavailable,
    SessionErased,
    TooManyRequests,
    TooManyTurns,
    TurnInProgress,
)
from omniagent.settings import Busy
from omniagent.testing import Gate, MemoryCounter, ScriptedModel
from omniagent.turns import claiming
from omniagent.turns.inbox import MAX_POSTED_CHARS
from omniagent.turns.lease import Claim, InboxMessage
from tests.fixtures.conversation import Clock, Conversation, read
from tests.runner.sessions import QUICK, Sessions

QUERY = Query("Hello", "m1")


async def waiting(sessions: Sessions) -> list[str]:
    held = await sessions.registry.running(sessions.session().key)
    return [] if held is None else [message.id for message in held.inbox]


async def run(runner: TurnOperator, message_id: str) -> str:
    stream = await runner.run_accepted(message_id)
    assert stream is not None
    result = await stream.result()
    await stream.ended()
    return result.text


async def test_an_accepted_message_waits_and_is_answered_by_whoever_comes_for_it() -> None:
    sessions, model = Sessions(), ScriptedModel("Hi.")
    assert await sessions.runner(model).accept(QUERY) == "m1"
    assert (model.requests, await waiting(sessions)) == ([], ["m1"])
    assert await sessions.session().head() is not None, "its deletion finds what waits"
    assert await run(sessions.runner(model), "m1") == "Hi."
    assert await sessions.are_free()
    assert await sessions.runner(model).run_accepted("m1") is None, "delivered twice, answered once"
    assert len(model.requests) == 1


async def test_a_resent_message_whose_process_died_unannounced_gets_a_watch() -> None:
    sessions, watched = Sessions(), list[str]()

    async def on_begin(turn_id: str, _: int) -> None:
        watched.append(turn_id)

    await sessions.runner(ScriptedModel()).accept(QUERY)  # it is posted, and nobody is told
    await sessions.runner(ScriptedModel(), hooks=TurnHooks(on_begin=on_begin)).accept(QUERY)
    assert (watched, await waiting(sessions)) == (["m1"], ["m1"])


async def test_a_resent_message_whose_process_died_with_the_session_gets_a_watch() -> None:
    sessions, watched = Sessions(), list[str]()
    session, registry = sessions.session(), sessions.registry

    async def on_begin(turn_id: str, _: int) -> None:
        watched.append(turn_id)

    await session.create()
    dead = Claim(session.key, "t", "m1")
    await registry.claim(dead)
    await registry.post(dead, InboxMessage("m1", "Hello"), 1)
    runner = sessions.runner(ScriptedModel(), hooks=TurnHooks(on_begin=on_begin))
    again = asyncio.create_task(runner.accept(QUERY))
    await asyncio.sleep(0)
    registry.clock = lambda: 10_000_000.0
    await again
    assert (watched, await waiting(sessions)) == (["m1"], ["m1"])


async def test_an_accepted_message_stays_when_a_retry_cannot_be_watched() -> None:
    sessions = Sessions()

    async def on_begin(_: str, __: int) -> None:
        raise QueueUnavailable

    await sessions.runner(ScriptedModel()).accept(QUERY)
    with pytest.raises(QueueUnavailable):
        await sessions.runner(ScriptedModel(), hooks=TurnHooks(on_begin=on_begin)).accept(QUERY)
    assert await waiting(sessions) == ["m1"]


async def test_without_an_id_it_gets_one() -> None:
    sessions = Sessions()
    message_id = await sessions.runner(ScriptedModel()).accept("Hello")
    assert await waiting(sessions) == [message_id]


async def test_the_same_message_again_waits_once_and_afterwards_not_at_all() -> None:
    sessions, model = Sessions(), ScriptedModel("Hi.")
    runner = sessions.runner(model)
    assert await asyncio.gather(*(runner.accept(QUERY) for _ in range(5))) == ["m1"] * 5
    assert await waiting(sessions) == ["m1"]
    await run(runner, "m1")
    assert await runner.accept(QUERY) == "m1"
    assert await waiting(sessions) == []
    assert await runner.run_accepted("m1") is None
    assert (await runner.run(QUERY)).text == "Hi.", "replayed"
    assert len(model.requests) == 1


async def test_its_text_cannot_be_changed_while_it_waits() -> None:
    sessions, model = Sessions(), ScriptedModel("Hi.")
    await sessions.runner(model).accept(QUERY)
    with pytest.raises(InvalidRequest):
        await sessions.runner(model).accept(replace(QUERY, text="Bye"))
    assert await run(sessions.runner(model), "m1") == "Hi."
    assert model.requests[0].messages[-1].text == "Hello"


async def test_a_retry_without_background_joins_it() -> None:
    sessions, model = Sessions(), ScriptedModel("Hi.")
    await sessions.runner(model).accept(QUERY)
    assert (await sessions.runner(model).run(QUERY)).text == "Hi."
    assert await sessions.runner(model).run_accepted("m1") is None


async def test_whoever_resumes_before_it_runs_gets_its_stream() -> None:
    sessions, model = Sessions(), ScriptedModel("Hi.")
    await sessions.runner(model).accept(QUERY)
    stream = await sessions.runner(model).resume()
    assert stream is not None
    assert b'"delta":"Hi."' in await read(stream)


async def test_whoever_resumes_while_another_takes_it_follows_that_one() -> None:
    gate = Gate()
    sessions, model = Sessions(), ScriptedModel(["Hi", gate, "."])
    await sessions.runner(model).accept(QUERY)
    resuming = asyncio.create_task(sessions.runner(model).resume())
    await asyncio.sleep(0)  # it has seen the message that waits, and gives its process a moment
    running = await sessions.runner(model).run_accepted("m1")
    await gate.reached()
    gate.set()
    stream = await resuming
    assert stream is not None
    assert b'"finish"' in await read(stream)
    assert running is not None
    await running.ended()
    assert len(model.requests) == 1


async def test_it_is_answered_as_it_was_accepted_however_it_is_sent_again() -> None:
    sessions, model = Sessions(), ScriptedModel("One.")
    await sessions.runner(model).accept(QUERY)
    with pytest.raises(InvalidRequest):
        await sessions.runner(model).run(Query("Something else", "m1"))
    assert not model.requests
    stream = await sessions.runner(model).start(QUERY)
    assert (await stream.result()).text == "One."
    await stream.ended()
    assert await sessions.are_free()


async def test_a_stop_reaches_it_before_it_runs() -> None:
    sessions, model = Sessions(), ScriptedModel()
    await sessions.runner(model).accept(QUERY)
    assert await sessions.runner(model).stop("m1")
    assert await run(sessions.runner(model), "m1") == ""
    [question, answer] = sessions.store.sessions[sessions.session().key].messages
    assert (question.text, answer.status, model.requests) == ("Hello", "cancelled", [])


@pytest.mark.parametrize(
    ("busy", "history"), [("queue", "One. Two."), ("interrupt", "On Two."), ("steer", "One. Two.")]
)
async def test_it_meets_a_running_turn_as_its_busy_policy_says(busy: Busy, history: str) -> None:
    gate = Gate()
    sessions, model = Sessions(), ScriptedModel(["On", gate, "e."], "Two.")
    first = await sessions.runner(model).start(Query("First", "m0"))
    await gate.reached()
    with pytest.raises(TurnInProgress):
        await sessions.runner(model).accept(QUERY)
    await sessions.runner(model).accept(QUERY, busy=busy)
    if busy != "interrupt":
        with pytest.raises(TurnInProgress):
            await sessions.runner(model).run_accepted("m1")
        gate.set()
    await first.result()
    await first.ended()
    assert await run(sessions.runner(model), "m1") == "Two."
    messages = sessions.store.sessions[sessions.session().key].messages
    assert " ".join(message.text for message in messages if message.role == "assistant") == history


async def test_several_wait_in_their_order_and_one_too_many_is_refused() -> None:
    sessions, model = Sessions(replace(QUICK, max_queued_messages=2)), ScriptedModel("One.", "Two.")
    runner = sessions.runner(model)
    await runner.accept(QUERY)
    with pytest.raises(TurnInProgress):
        await runner.accept(Query("And?", "m2"))
    await runner.accept(Query("And?", "m2"), busy="queue")
    with pytest.raises(QueueFull):
        await runner.accept(Query("And?", "m3"), busy="queue")
    assert await run(runner, "m2") == "One.", "what comes before it is run first"
    assert await run(runner, "m2") == "Two."


async def test_what_cannot_be_answered_in_the_background_is_refused_and_leaves_nothing() -> None:
    sessions = Sessions(replace(QUICK, max_message_chars=100_000))
    runner = sessions.runner(ScriptedModel())
    for query in (Query("", "m1", regenerate=True), Query("x" * (MAX_POSTED_CHARS + 1)), Query(" "), Query("x", "a b")):
        with pytest.raises(InvalidRequest):
            await runner.accept(query)
    assert await waiting(sessions) == []
    assert await sessions.session().head() is None


async def test_a_message_whose_answer_failed_is_not_silently_forgotten() -> None:
    sessions = Sessions()
    runner = sessions.runner(ScriptedModel(ValueError("broken")))
    assert (await runner.run(QUERY)).status == "failed"
    with pytest.raises(NotRegenerable, match="without `background`"):
        await runner.accept(QUERY)


async def test_its_request_is_counted_once_and_over_the_budget_nothing_waits() -> None:
    sessions, counter = Sessions(), MemoryCounter(Clock())
    budget = Budget(requests_per_minute=1)
    agent, model = Agent("helper", ""), ScriptedModel("Hi.")

    def runner(session_id: str) -> TurnOperator:
        session = sessions.session(session_id)
        return TurnOperator(agent, session, provider=model, registry=sessions.registry, budget=budget, counter=counter)

    await runner("chat").accept(QUERY)
    await runner("chat").accept(QUERY)
    with pytest.raises(TooManyRequests):
        await runner("other").accept(Query("Hello", "m2"))
    assert await sessions.registry.running(sessions.session("other").key) is None
    assert await run(runner("chat"), "m1") == "Hi.", "it was counted when it was accepted"


async def test_whoever_sends_it_again_and_again_while_nobody_answers_it_gets_no_watch_for_each() -> None:
    sessions, counter, watched = Sessions(), MemoryCounter(Clock()), list[str]()

    async def on_begin(turn_id: str, _: int) -> None:
        watched.append(turn_id)

    def runner() -> TurnOperator:
        return TurnOperator(
            Agent("helper", ""),
            sessions.session(),
            provider=ScriptedModel(),
            registry=sessions.registry,
            hooks=TurnHooks(on_begin=on_begin),
            budget=Budget(requests_per_minute=3),
            counter=counter,
        )

    for _ in range(3):
        await runner().accept(QUERY)
    with pytest.raises(TooManyRequests):
        await runner().accept(QUERY)
    assert (watched, await waiting(sessions)) == (["m1", "m1"], ["m1"])


async def test_a_hook_that_hangs_does_not_hold_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "NOTICE_SECONDS", 0.01)
    sessions, model = Sessions(), ScriptedModel("Hi.")
    await sessions.runner(model).accept(QUERY)

    async def on_begin(_: str, __: int) -> None:
        await asyncio.Event().wait()

    assert await run(sessions.runner(model, hooks=TurnHooks(on_begin=on_begin)), "m1") == "Hi."


async def test_an_accepted_message_stays_queued_while_its_user_has_too_many_turns() -> None:
    gate = Gate()
    sessions, model = Sessions(replace(QUICK, max_running_turns_per_user=1)), ScriptedModel([gate, "One."], "Two.")
    first = await sessions.runner(model, session=sessions.session("other")).start("First")
    await gate.reached()
    await sessions.runner(model).accept(QUERY)
    with pytest.raises(TooManyTurns):
        await sessions.runner(model).run_accepted("m1")
    assert await waiting(sessions) == ["m1"]
    gate.set()
    await first.ended()
    assert await run(sessions.runner(model), "m1") == "Two."


async def test_a_user_cannot_have_any_number_of_messages_wait() -> None:
    sessions, model = Sessions(replace(QUICK, max_readers_per_user=2)), ScriptedModel("Hi.")
    runners = [sessions.runner(model, session=sessions.session(f"s{number}")) for number in range(3)]
    for runner in runners[:2]:
        await runner.accept(QUERY)
    with pytest.raises(TooManyTurns):
        await runners[2].accept(QUERY)
    assert await sessions.registry.running(sessions.session("s2").key) is None
    await run(runners[0], "m1")
    assert await runners[0].run_accepted("m1") is None, "it is answered, and counts no more"
    await runners[2].accept(QUERY)


async def test_what_waits_is_deleted_with_its_session() -> None:
    sessions = Sessions()
    runner = sessions.runner(ScriptedModel())
    await runner.accept(QUERY)
    assert await runner.erase_session()
    assert await runner.run_accepted("m1") is None
    assert await sessions.session().head() is None


async def test_a_session_that_is_being_deleted_takes_nothing() -> None:
    sessions = Sessions()
    await sessions.runner(ScriptedModel("Hi.")).run("Hello")
    await sessions.session().mark_erased()
    with pytest.raises(SessionErased):
        await sessions.runner(ScriptedModel()).accept(QUERY)


async def test_a_dead_turn_is_continued_before_it() -> None:
    """The dead process has claimed the session and stored its question, and no more."""
    sessions, model = Sessions(), ScriptedModel("One.", "Two.")
    session = sessions.session()
    stream = await sessions.runner(ScriptedModel([Gate()])).start(Query("First", "m0"))
    head = await session.head()
    assert head is not None
    assert head.active_turn_id is not None
    await sessions.registry.seize(Claim(session.key, head.active_turn_id, "m0", owner="dead"))
    await stream.ended()
    sessions.registry.clock = lambda: 10_000_000.0
    await sessions.runner(model).accept(QUERY)
    assert await run(sessions.runner(model), "m1") == "One."
    assert await run(sessions.runner(model), "m1") == "Two."


async def test_a_session_is_made_once_on_mongodb_with_its_user(conversation: Conversation) -> None:
    session: SessionManager = conversation.session
    session.category = "gold"
    await asyncio.gather(*(session.create() for _ in range(3)))
    assert (conversation.document["latest_turn_number"], conversation.document["active_turn_id"]) == (0, None)
    address = await conversation.store.address_of(session.key)
    assert address is not None
    assert (address.user, address.category) == (conversation.user, "gold")
    await session.mark_erased()
    with pytest.raises(SessionErased):
        await session.create()


async def test_in_memory_a_deleted_user_makes_no_session() -> None:
    sessions = Sessions()
    session = InMemorySessionManager("ada", "chat", store=sessions.store, settings=QUICK)
    await session.create()
    await session.mark_user_erased()
    with pytest.raises(SessionErased):
        await sessions.session("other").create()
