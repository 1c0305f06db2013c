"""A conversation with tools in a terminal, without any AWS: streamed as it comes, stored in MongoDB.

    .venv/bin/python -m examples.chat                        # asks for one message after the other
    .venv/bin/python -m examples.chat "What is my name?"     # one message; the next run remembers it

Ctrl-C stops the answer, and what was shown of it is stored. At the prompt it ends the conversation.
MONGODB_URI, OPENAI_API_KEY and OPENAI_BASE_URL are used when they are set; `local_services` starts what is not.
"""

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

from examples.local_services import local_services
from omniagent import Agent, MongoBackendAdapter, MongoSessionManager, Runner, tool
from omniagent.protocol.events import StreamEvent, TextDelta, ToolInputAvailable, ToolOutputAvailable


@tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


@tool
async def today() -> str:
    """Tell today's date."""
    return datetime.now(UTC).strftime("%A, %d %B %Y")


agent = Agent("example", "You are a helpful assistant. Be brief.", [multiply, today])


async def answer(runner: Runner, question: str) -> None:
    """Show the answer as it comes."""
    stream = runner.run_stream(question)
    try:
        async for event in stream:
            show(event)
    except asyncio.CancelledError:  # Ctrl-C
        await runner.stop()
        await stream.result()  # stored
        raise


def show(event: StreamEvent) -> None:
    match event:
        case TextDelta():
            print(event.delta, end="", flush=True)
        case ToolInputAvailable():
            print(f"[calling {event.tool_name} with {event.input}]")
        case ToolOutputAvailable():
            print(f"[it answered {event.output}]")


def questions() -> Iterator[str]:
    """The message on the command line, or one after the other from the prompt."""
    if len(sys.argv) > 1:
        yield " ".join(sys.argv[1:])
        return
    try:
        while question := input("> ").strip():
            yield question
    except (EOFError, KeyboardInterrupt):
        print()


def main() -> None:
    with asyncio.Runner() as loop:
        adapter = MongoBackendAdapter()
        try:
            session = MongoSessionManager(loop.run(adapter.initialize()), user="you", session_id="example")
            runner = Runner(agent, session)
            for question in questions():
                try:
                    loop.run(answer(runner, question))
                    print()
                except KeyboardInterrupt:
                    print("\n[stopped]")
        finally:
            loop.run(adapter.shutdown())


if __name__ == "__main__":
    with local_services():
        main()
