"""The metrics of a turn, as CloudWatch reads them from the log."""

import json
from typing import Any

import pytest

from omniagent import Agent, InMemorySessionManager, Query, Runner, RunResult, Settings, Tool, TurnHooks, tool
from omniagent.app.application import turn_metrics
from omniagent.app.on_lambda import AwsPlatform
from omniagent.errors import BudgetExceeded, ModelRejected, ModelUnavailable, TooManyRequests
from omniagent.messages import Usage
from omniagent.providers import ModelFinish
from omniagent.testing import ScriptedModel, ToolCall


def measured(model: ScriptedModel, *tools: Tool) -> Runner:
    """A runner whose turns print their metrics."""

    async def on_end(result: RunResult) -> None:
        AwsPlatform(Settings()).emit(*turn_metrics(result))

    session = InMemorySessionManager("ada", "chat")
    return Runner(Agent("shop", "", tools), session, provider=model, hooks=TurnHooks(on_end=on_end))


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]


async def test_a_turn_that_waits_is_counted_as_waiting_and_once_as_a_turn(capsys: pytest.CaptureFixture[str]) -> None:
    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    runner = measured(ScriptedModel(["One moment. ", ToolCall("pay")], "Done."), pay)
    asked = await runner.start("Pay")
    await asked.ended()
    await runner.reply((await asked.result()).requests[0].approve()).ended()
    waiting, ended = printed(capsys)
    assert [(each["Turns"], each["WaitingTurns"]) for each in (waiting, ended)] == [([1.0], [1.0]), ([0.0], [0.0])]
    assert ("TurnDuration" in waiting, "TurnDuration" in ended) == (False, True)
    assert ("TimeToFirstToken" in waiting, "TimeToFirstToken" in ended) == (True, False)


async def test_a_regeneration_that_showed_nothing_does_not_count_the_previous_answer_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runner = measured(ScriptedModel("The first answer.", ModelUnavailable("down")))
    for query in (Query("Hello?", "m1"), Query("Hello?", "m1", regenerate=True)):
        await (await runner.start(query)).ended()
    first, second = printed(capsys)
    assert (first["OutputTokens"], first["FailedTurns"]) == ([3.0], [0.0])
    assert (second["OutputTokens"], second["FailedTurns"]) == ([0.0], [1.0])


async def test_the_tokens_of_the_prompt_cache_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    usage = Usage(100, 5, cached_input_tokens=80, cache_write_tokens=20)
    await (await measured(ScriptedModel(["Hello.", ModelFinish("stop", usage)])).start("Hello?")).ended()
    [turn] = printed(capsys)
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
    await (await measured(ScriptedModel(error)).start("Hello?")).ended()
    [turn] = printed(capsys)
    assert (turn["FailedTurns"], turn["RejectedTurns"]) == ([counted[0]], [counted[1]])


async def test_a_session_deleted_while_it_answers_counts_as_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    @tool
    async def wait() -> str:
        """Wait for the deletion."""
        await runner.erase()
        return "deleted"

    runner = measured(ScriptedModel(["One moment. ", ToolCall("wait")], "Done."), wait)
    await (await runner.start("Wait")).ended()
    [turn] = printed(capsys)
    assert turn["FailedTurns"] == [0.0]
