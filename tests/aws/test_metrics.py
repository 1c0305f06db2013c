"""The metrics of a turn, as CloudWatch reads them from the log."""

import json

import pytest

from omniagent import Agent, InMemorySessionManager, Runner, RunResult, ScriptedModel, ToolCall, TurnHooks, tool
from omniagent.aws.metrics import emit_turn


async def test_a_turn_that_waits_is_counted_as_waiting_and_once_as_a_turn(capsys: pytest.CaptureFixture[str]) -> None:
    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def on_end(result: RunResult) -> None:
        emit_turn(result)

    model = ScriptedModel(["One moment. ", ToolCall("pay")], "Done.")
    session = InMemorySessionManager("ada", "chat")
    runner = Runner(Agent("shop", "", [pay]), session, provider=model, hooks=TurnHooks(on_end=on_end))
    asked = await runner.start("Pay")
    await asked.ended()
    await runner.answer((await asked.result()).requests[0].approve()).ended()
    waiting, ended = (json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line)
    assert [(each["Turns"], each["WaitingTurns"]) for each in (waiting, ended)] == [([1.0], [1.0]), ([0.0], [0.0])]
    assert ("TurnDuration" in waiting, "TurnDuration" in ended) == (False, True)
    assert ("TimeToFirstToken" in waiting, "TimeToFirstToken" in ended) == (True, False)
