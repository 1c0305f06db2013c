"""Messages, stops and deaths that meet a branch other than the active one."""

import asyncio

import pytest

from omniagent import Query, tool
from omniagent.errors import InvalidRequest
from omniagent.testing import Gate, ScriptedModel, ToolCall
from tests.runner.sessions import Busily, ask


async def two_turns(sessions: Busily) -> list[str]:
    """Answer two messages, and return the nodes."""
    runner = sessions.runner(ScriptedModel("One.", "Two."))
    await runner.run(ask("m1"))
    await runner.run(ask("m2"))
    return [message.node for message in await runner.history()]


def texts(sessions: Busily) -> list[str]:
    """What the active path says."""
    return [text for _, text, _ in sessions.history]


@pytest.mark.parametrize(
    ("is_edit", "expected"), [(True, ["aside", "Aside."]), (False, ["m1?", "One.", "aside", "Aside."])]
)
async def test_a_message_of_another_branch_does_not_join_the_running_answer(
    sessions: Busily, is_edit: bool, expected: list[str]
) -> None:
    _, first, *_ = await two_turns(sessions)
    gate = Gate()
    model = ScriptedModel(["Three", gate, "."], "Aside.")
    third = await sessions.runner(model).start(ask("m3"))
    await gate.reached()
    query = Query("aside", "m1") if is_edit else Query("aside", "m4", parent=first)
    aside = await sessions.runner(model).start(query, busy="steer")
    await sessions.polled()
    gate.set()
    assert [(await stream.result()).text for stream in (third, aside)] == ["Three.", "Aside."]
    await asyncio.gather(third.ended(), aside.ended())
    assert texts(sessions) == expected


async def test_an_edit_of_a_message_that_joined_stops_nothing(sessions: Busily) -> None:
    gate, last = Gate(), Gate()

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait()
        return "worked"

    model = ScriptedModel(["Working. ", ToolCall("work")], ["Done", last, "."])
    runner = sessions.runner(model, work)
    stream = await runner.start(ask("m1"))
    steering = await runner.start(ask("m2", "steer"))
    await sessions.polled()
    gate.set()
    await last.reached()
    with pytest.raises(InvalidRequest):
        await runner.start(Query("edited", "m2", busy="interrupt"))
    last.set()
    assert (await stream.result()).status == "complete"
    await asyncio.gather(stream.ended(), steering.ended())


async def test_a_regeneration_does_not_stream_the_answer_of_a_dead_turn(sessions: Busily) -> None:
    _, first, *_ = await two_turns(sessions)
    await sessions.die_after_begin("m3")
    sessions.pass_by()
    runner = sessions.runner(ScriptedModel("Three.", "Again."))
    assert (await runner.run(Query(regenerate=True, replaces=first))).text == "Again."
    assert texts(sessions) == ["m1?", "Again."]
