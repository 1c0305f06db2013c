"""A conversation with tools from a script, without any AWS: streamed to the terminal, stored in MongoDB.

    .venv/bin/python examples/chat.py "My name is Ada."
    .venv/bin/python examples/chat.py "What is my name?"     # a second run remembers the first
    .venv/bin/python examples/chat.py "Multiply 17 by 23, and what is today's date?"

MONGODB_URI, OPENAI_API_KEY and OPENAI_BASE_URL are used when they are set. What is not is started here: a real MongoDB
with its data in .local/example, and the offline model.
"""

import asyncio
import os
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from omniagent import Agent, MongoBackendAdapter, MongoSessionManager, Runner, get_llm_provider, tool
from omniagent.protocol.events import TextDelta, ToolInputAvailable, ToolOutputAvailable

ROOT = Path(__file__).resolve().parents[1]


@tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


@tool
async def today() -> str:
    """Tell today's date."""
    return datetime.now(UTC).strftime("%A, %d %B %Y")


async def main(question: str, mongodb_uri: str, base_url: str | None) -> None:
    adapter = MongoBackendAdapter(mongodb_uri, "example")
    provider = get_llm_provider("gpt-4.1-mini", api_key=os.environ.get("OPENAI_API_KEY"), base_url=base_url)
    agent = Agent("example", "You are a helpful assistant. Be brief.", [multiply, today])
    try:
        session = MongoSessionManager(await adapter.initialize(), user="you", session_id="example")
        async for event in Runner(agent, session, provider=provider).run_stream(question):
            match event:
                case TextDelta():
                    print(event.delta, end="", flush=True)
                case ToolInputAvailable():
                    print(f"[calling {event.tool_name} with {event.input}]")
                case ToolOutputAvailable():
                    print(f"[it answered {event.output}]")
        print()
    finally:
        await provider.aclose()
        await adapter.shutdown()


if __name__ == "__main__":
    question = " ".join(sys.argv[1:]) or "Multiply 17 by 23, and what is today's date?"
    sys.path.insert(0, str(ROOT))  # the local stack is not part of the package
    base_url = os.environ.get("OPENAI_BASE_URL")
    with ExitStack() as services:
        uri = os.environ.get("MONGODB_URI")
        if not uri:
            from local.mongod import Mongod

            uri = services.enter_context(Mongod(ROOT / ".local/example")).uri
        if not base_url and not os.environ.get("OPENAI_API_KEY"):
            from local.model import OfflineModel

            base_url = services.enter_context(OfflineModel()).base_url
        asyncio.run(main(question, uri, base_url))
