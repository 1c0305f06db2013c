"""A team's script: an agent with a tool that needs approval, first in memory, then with MongoDB and a model."""

import asyncio

from omniagent import Agent, InMemorySessionManager, MongoBackendAdapter, MongoSessionManager, Runner, tool
from omniagent.testing import ScriptedModel, ToolCall


@tool(approval=True)
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


agent = Agent("example", "You are a helpful assistant.", [multiply])


async def in_memory() -> None:
    model = ScriptedModel(ToolCall("multiply", {"a": 6, "b": 7}), "It is 42.")
    runner = Runner(agent, InMemorySessionManager("you", "s1"), provider=model)
    result = await runner.run("What is 6 * 7?")
    result = await runner.reply(result.requests[0].approve()).result()
    print("in memory:", result.status, result.text)


async def stored() -> None:
    adapter = MongoBackendAdapter()
    try:
        runner = Runner(agent, MongoSessionManager(await adapter.initialize(), user="you", session_id="s1"))
        await runner.run("Hello")
        print("stored:", [(message.role, message.status) for message in await runner.history()])
    finally:
        await adapter.shutdown()


asyncio.run(in_memory())
asyncio.run(stored())
