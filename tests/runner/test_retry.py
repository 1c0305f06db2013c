"""A message that is known: joined, replayed, answered again, edited, or where another begins."""

import asyncio

import pytest

from omniagent import Query
from omniagent.ai.operator import TurnOperator
from omniagent.errors import InvalidRequest, TurnInProgress
from omniagent.testing import ScriptedModel
from tests.fixtures.conversation import events_of
from tests.fixtures.stream import check_order, joined
from tests.runner.sessions import Sessions, ask, texts_of


async def texts(runner: TurnOperator, branch: str | None = None) -> list[str]:
    return [message.text for message in await runner.history(branch=branch)]


async def test_ten_at_once_make_one_turn_and_one_model_request_and_later_it_is_replayed(sessions: Sessions) -> None:
    model = ScriptedModel("Only once.")

    async def sent() -> list[dict[str, object]]:
        return await events_of(await sessions.runner(model).start(ask("m1")))

    streams = [*await asyncio.gather(*(sent() for _ in range(10))), await sent()]
    for stream in streams:
        check_order(stream)
    assert {str([*joined(stream)][1:-2]) for stream in streams} == {str([*joined(streams[0])][1:-2])}
    assert len({stream[0]["messageId"] for stream in streams}) == 1
    assert (await sessions.runner(model).run(ask("m1"))).text == "Only once."
    assert (len(model.requests), len(sessions.messages)) == (1, 2)


async def test_a_message_follows_the_one_that_it_names(sessions: Sessions) -> None:
    """So an edit arrives from a page that gives the edited message a new id."""
    runner = sessions.runner(ScriptedModel("One.", "Two.", "Three.", "Four.", "Five."))
    first = (await runner.run(ask("m1"))).message_id
    await runner.run(Query("m2?", "m2", parent=first))
    for query in (Query("m3?", "m3", parent=first), Query("m4?", "m4", parent="")):
        await runner.run(query)
        await runner.run(query)
    assert await texts(runner) == ["m4?", "Four."]
    await runner.switch(first)
    assert await texts(runner) == ["m1?", "One.", "m3?", "Three."]
    unknown = await runner.run(Query("m5?", "m5", parent="the-clients-own"))
    assert unknown.message.turn_number == 3, "it follows the latest"


async def test_a_message_of_another_branch_is_replayed_without_its_parent(sessions: Sessions) -> None:
    runner = sessions.runner(ScriptedModel("One.", "Two.", "Three."))
    first = await runner.run(ask("m1"))
    second = await runner.run(ask("m2"))
    await runner.run(Query("m3?", "m3", parent=first.message_id))
    assert (await runner.run(ask("m2"))).message_id == second.message_id
    assert (await texts(runner))[::2] == ["m1?", "m3?"], "nothing is switched"


async def test_every_refusal_of_run_stream_comes_before_the_first_event(sessions: Sessions) -> None:
    stream = sessions.runner(ScriptedModel()).run_stream("  ")
    with pytest.raises(InvalidRequest):
        await anext(aiter(stream))
    with pytest.raises(InvalidRequest):
        await stream


# Another answer, beside those that there are


async def test_a_regenerated_answer_is_a_sibling_and_the_same_wish_again_replays_it(sessions: Sessions) -> None:
    runner = sessions.runner(ScriptedModel("Old.", "New."))
    old = (await runner.run(ask("m1"))).message_id
    query = Query(regenerate=True, replaces=old)
    events = await events_of(await runner.start(query))
    check_order(events)
    new, number = events[0]["messageId"], events[0]["messageMetadata"]["turnNumber"]
    assert (new != old, number, (await sessions.head()).tip.turn_number) == (True, 1, 1)
    _, shown = await runner.history()
    assert (shown.id, shown.siblings, shown.metadata["replaces"]) == (new, (old, new), old)
    assert (await runner.run(query)).message_id == new


@pytest.mark.parametrize("names_answer", [True, False])
async def test_an_older_answer_is_regenerated_and_what_followed_it_kept(sessions: Sessions, names_answer: bool) -> None:
    model = ScriptedModel("One.", "Two.", "New.", "Newest.")
    runner = sessions.runner(model)
    old = (await runner.run(ask("m1"))).message_id
    last = (await runner.run(ask("m2"))).message_id
    new = (await runner.run(Query(regenerate=True, replaces=old if names_answer else "m1"))).message_id
    assert len(model.requests[-1].messages) == 1, "the path to the message, and nothing after it"
    assert await texts(runner) == ["m1?", "New."]
    assert await texts(runner, last) == ["m1?", "One.", "m2?", "Two."]
    await runner.switch(old)
    assert await texts(runner) == ["m1?", "One.", "m2?", "Two."]
    again = (await runner.run(Query(regenerate=True, replaces=old))).message_id
    assert (await runner.history())[-1].siblings == (old, new, again), "a new wish, not a retry"


@pytest.mark.parametrize("replaces", [None, "the answer", "m1"])
async def test_regenerating_a_message_with_other_parts_edits_it(sessions: Sessions, replaces: str | None) -> None:
    runner = sessions.runner(ScriptedModel("Hello.", "Bye."))
    old = (await runner.run(ask("m1"))).message_id
    await runner.run(Query("edit", "m1", regenerate=True, replaces=old if replaces == "the answer" else replaces))
    question, answer = await runner.history()
    assert (question.text, answer.text, len(question.siblings)) == ("edit", "Bye.", 2)


async def test_an_edit_of_a_running_message_waits_for_its_end_or_interrupts_it(sessions: Sessions) -> None:
    model, first, _ = await sessions.answering("Else.")
    with pytest.raises(TurnInProgress, match="Stop it before you edit it"):
        await sessions.runner(model).start(Query("edit", "m1", busy="queue"))
    edited = await sessions.runner(model).start(Query("edit", "m1", busy="interrupt"))
    assert await texts_of(first, edited) == ["One", "Else."]
    assert await texts(sessions.runner(model)) == ["edit", "Else."]
