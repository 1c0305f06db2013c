"""A turn that waits in MongoDB, and answers that come to many instances."""

import asyncio
from dataclasses import replace
from typing import Any

from omniagent import Agent, MongoTurnRegistry, RunContext, tool
from omniagent.ai.approvals import ToolReply
from omniagent.ai.operator import TurnOperator
from omniagent.errors import TooManyReaders
from omniagent.testing import ScriptedModel, ToolCall
from tests.fixtures.conversation import QUICK, Conversation, events_of

Json = dict[str, Any]
INSTANCES, ANSWERS = 5, 50
# Fifty readers that looked for news as often as a single one would keep the machine busy with nothing else.
SLOW = replace(QUICK, tick_seconds=0.5)


async def test_fifty_identical_answers_at_many_instances_run_the_tool_once(
    conversation: Conversation,
) -> None:
    refunds: list[str | None] = []

    @tool(approval=True)
    async def refund(order: str, context: RunContext) -> str:
        """Refund an order."""
        refunds.append(context.call_id)
        return f"refunded {order}"

    model = ScriptedModel(["Hm. ", ToolCall("refund", {"order": "42"})], "Done.")
    agent = Agent("shop", "", [refund])
    # MongoDB serves fifty readers faster than the stand-in for DynamoDB does; registries have a contract test.
    registries = [MongoTurnRegistry(conversation.store) for _ in range(INSTANCES)]
    shop = conversation.but(agent=agent, provider=model, settings=SLOW)
    runners = [shop.but(registry=registry).runner() for registry in registries]  # each with a session of its own
    request = (await runners[0].run("Refund 42")).requests[0]
    responses = await asyncio.gather(*(answered(runners[n % INSTANCES], request.approve()) for n in range(ANSWERS)))
    assert (refunds, len(model.requests)) == ([request.call_id], 2)
    assert {"".join(event.get("delta", "") for event in events) for events in responses} == {"Done."}
    assert {events[0]["messageId"] for events in responses} == {request.message_id}
    assert [message["status"] for message in conversation.messages] == ["complete", "complete"]
    assert conversation.document["turn"] is None
    await asyncio.gather(*(registry.aclose() for registry in registries))


async def answered(runner: TurnOperator, answer: ToolReply) -> list[Json]:
    """Answer, and again when told to come back later: nothing else may go wrong."""
    async with asyncio.timeout(300):
        while True:
            try:
                return await events_of(await runner.reply(answer))
            except TooManyReaders:
                await asyncio.sleep(0.5)
