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
from omniagent import (
    Agent,
    AnswerStream,
    MongoBackendAdapter,
    MongoSessionManager,
    Runner,
    RunResult,
    StreamEvent,
    TextDelta,
    ToolInputAvailable,
    ToolOutputAvailable,
    ToolReply,
    ToolRequest,
    ask_user,
    tool,
)


@tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


@tool
async def today() -> str:
    """Tell today's date."""
    return datetime.now(UTC).strftime("%A, %d %B %Y")


@tool(approval=True)
async def forget_everything() -> str:
    """Forget everything that the user said."""
    return "This is an example: nothing was forgotten."


agent = Agent("example", "You are a helpful assistant. Be brief.", [multiply, today, forget_everything, ask_user])


def asked(request: ToolRequest) -> ToolReply:
    """Ask the person at the terminal what the turn waits for."""
    if request.kind == "approval":
        verdict = input(f"May {request.tool} run with {request.input}? [y/N] ")
        return request.approve() if verdict.strip().lower() == "y" else request.deny(verdict.strip() or None)
    choices = request.input.get("choices")
    reply = input(f"{request.input['question']} {choices or ''} ").strip()
    return request.reply(reply) if reply and (not choices or reply in choices) else request.fail("No answer was given.")


async def shown(runner: Runner, stream: AnswerStream) -> RunResult:
    """Show the answer as it comes."""
    await stream  # it has begun. Ctrl-C before that asks nothing
    try:
        async for event in stream:
            show(event)
        return await stream.result()
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
                    result = loop.run(shown(runner, runner.run_stream(question)))
                    while result.status == "waiting":  # nothing runs meanwhile: the turn is stored
                        answers = [asked(request) for request in result.requests]
                        result = loop.run(shown(runner, runner.reply(*answers)))
                    print()
                except (EOFError, KeyboardInterrupt):
                    print("\n[stopped]")
        finally:
            loop.run(adapter.shutdown())


if __name__ == "__main__":
    with local_services():
        main()
