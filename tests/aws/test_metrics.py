"""The metrics of a turn, as CloudWatch reads them from the log."""

import json

import pytest

from omniagent import Agent, InMemorySessionManager, Query, Runner, RunResult, Settings, TurnHooks, tool
from omniagent.app.on_lambda import AwsPlatform
from omniagent.errors import BudgetExceeded, ModelRejected, ModelUnavailable, TooManyRequests
from omniagent.messages import Usage
from omniagent.providers import ModelFinish
from omniagent.testing import ScriptedModel, ToolCall


async def test_a_turn_that_waits_is_counted_as_waiting_and_once_as_a_turn(capsys: pytest.CaptureFixture[str]) -> None:
    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def on_end(result: RunResult) -> None:
        AwsPlatform(Settings()).emit_turn(result)

    model = ScriptedModel(["One moment. ", ToolCall("pay")], "Done.")
    session = InMemorySessionManager("ada", "chat")
    runner = Runner(Agent("shop", "", [pay]), session, provider=model, hooks=TurnHooks(on_end=on_end))
    asked = await runner.start("Pay")
    await asked.ended()
    await runner.reply((await asked.result()).requests[0].approve()).ended()
    waiting, ended = (json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line)
    assert [(each["Turns"], each["WaitingTurns"]) for each in (waiting, ended)] == [([1.0], [1.0]), ([0.0], [0.0])]
    assert ("TurnDuration" in waiting, "TurnDuration" in ended) == (False, True)
    assert ("TimeToFirstToken" in waiting, "TimeToFirstToken" in ended) == (True, False)


async def test_a_regeneration_that_showed_nothing_does_not_count_the_previous_answer_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def on_end(result: RunResult) -> None:
        AwsPlatform(Settings()).emit_turn(result)

    model = ScriptedModel("The first answer.", ModelUnavailable("down"))
    session = InMemorySessionManager("ada", "chat")
    runner = Runner(Agent("shop", ""), session, provider=model, hooks=TurnHooks(on_end=on_end))
    for query in (Query("Hello?", "m1"), Query("Hello?", "m1", regenerate=True)):
        await (await runner.start(query)).ended()
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line)
    assert (first["OutputTokens"], first["FailedTurns"]) == ([3.0], [0.0])
    assert (second["OutputTokens"], second["FailedTurns"]) == ([0.0], [1.0])


async def test_the_tokens_of_the_prompt_cache_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    async def on_end(result: RunResult) -> None:
        AwsPlatform(Settings()).emit_turn(result)

    usage = Usage(100, 5, cached_input_tokens=80, cache_write_tokens=20)
    model = ScriptedModel(["Hello.", ModelFinish("stop", usage)])
    runner = Runner(Agent("shop", ""), InMemorySessionManager("ada"), provider=model, hooks=TurnHooks(on_end=on_end))
    await (await runner.start("Hello?")).ended()
    [turn] = (json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line)
    assert (turn["CachedInputTokens"], turn["CacheWriteTokens"]) == ([80.0], [20.0])


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (ModelUnavailable("down"), (1.0, 0.0)),
        (ModelRejected("400"), (0.0, 1.0)),
        (BudgetExceeded(), (0.0, 0.0)),
        (TooManyRequests(), (0.0, 0.0)),
    ],
)
async def test_only_causes_of_ours_count_as_failed_turns(
    error: Exception, counted: tuple[float, float], capsys: pytest.CaptureFixture[str]
) -> None:
    async def on_end(result: RunResult) -> None:
        AwsPlatform(Settings()).emit_turn(result)

    session = InMemorySessionManager("ada", "chat")
    runner = Runner(Agent("shop", ""), session, provider=ScriptedModel(error), hooks=TurnHooks(on_end=on_end))
    await (await runner.start("Hello?")).ended()
    [line] = (json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line)
    assert (line["FailedTurns"], line["RejectedTurns"]) == ([counted[0]], [counted[1]])


async def test_a_session_deleted_while_it_answers_counts_as_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    async def on_end(result: RunResult) -> None:
        AwsPlatform(Settings()).emit_turn(result)

    @tool
    async def wait() -> str:
        """Wait for the deletion."""
        await runner.erase()
        return "deleted"

    session = InMemorySessionManager("ada", "chat")
    model = ScriptedModel(["One moment. ", ToolCall("wait")], "Done.")
    runner = Runner(Agent("shop", "", [wait]), session, provider=model, hooks=TurnHooks(on_end=on_end))
    await (await runner.start("Wait")).ended()
    [line] = (json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line)
    assert line["FailedTurns"] == [0.0]
