"""What the functions print: one line of metrics a turn, and logs that tell nothing of what was said."""

import json
from functools import partial

from local.cloudformation import STACK, Document
from local.template import TEMPLATE
from tests.fixtures.calls import Json, User, eventually
from tests.fixtures.product import Product
from tests.sam.builds import OF_A_TURN, QUEUES


async def metrics_of(product: Product, request_id: str) -> Json:
    """The metrics of a turn."""
    [metrics] = await eventually(lambda: [line for line in _lines_since(product, request_id) if "_aws" in line])
    return metrics


def _lines_since(product: Product, request_id: str) -> list[Json]:
    """The JSON lines of the chat function since an invocation began. Some may come after the emulator wrote its end."""
    lines = [line for name, line in list(product.lines) if name == "chat"]
    begun = [number for number, line in enumerate(lines) if line.startswith(f"START RequestId: {request_id}")]
    return [json.loads(line) for line in lines[begun[0] :] if line.startswith("{")] if begun else []


async def test_a_turn_prints_the_metrics_of_the_alarms_and_a_line_with_its_request_id(
    product: Product, user: User
) -> None:
    async with user.asking('[tool:calculator {"expression": "6 * 7"}] Tell me') as answer:
        events = await answer.rest()
    metrics = await metrics_of(product, answer.response.headers["x-amzn-requestid"])
    [directive] = metrics["_aws"]["CloudWatchMetrics"]
    assert {metric["Name"] for metric in directive["Metrics"]} == OF_A_TURN
    counted = {name: value for [value], name in ((metrics[name], name) for name in OF_A_TURN)}
    usage = events[-1]["data"]["usage"]
    assert counted | {"Turns": 1, "ToolCalls": 1, "ToolErrors": 0, "FailedTurns": 0, "CancelledTurns": 0} == counted
    assert (counted["InputTokens"], counted["OutputTokens"]) == (usage["inputTokens"], usage["outputTokens"])
    assert counted["TurnDuration"] >= metrics["TimeToFirstToken"][0] > 0
    alarm = Document(TEMPLATE, attributes=QUEUES).section("Resources", "FailedTurns", "Properties", "Metrics")[1]
    alarm = alarm["MetricStat"]["Metric"]
    assert directive["Namespace"] == alarm["Namespace"]
    assert [[dimension["Name"] for dimension in alarm["Dimensions"]]] == directive["Dimensions"]
    assert metrics["service"] == alarm["Dimensions"][0]["Value"] == f"{STACK}-chat"

    request_id = answer.response.headers["x-request-id"]
    lines = partial(_lines_since, product, request_id)
    [ended] = await eventually(lambda: [line for line in lines() if line.get("message") == "turn ended"])
    assert (ended["request_id"], ended["service"], ended["level"]) == (request_id, f"{STACK}-chat", "INFO")
    assert (ended["status"], ended["turn_number"], ended["stored"]) == ("complete", 1, True)
