"""`python -m local invoke FUNCTION EVENT`: one invocation, printed as `sam local invoke` prints it."""

import argparse
import asyncio
import sys
from pathlib import Path

from local.cloudformation import ACCOUNT
from local.processes import ServiceError
from local.stack import DATA, StackOptions, local_stack
from local.template import TEMPLATE


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser("invoke", help="invoke one function with an event and print its answer")
    parser.add_argument("function", help="chat, sessions, summary or run")
    parser.add_argument("event", help="a JSON file, - for standard input")
    parser.add_argument("--data", type=Path, default=DATA / "invoke", help="where MongoDB keeps its data")
    parser.add_argument(
        "--template", type=Path, default=TEMPLATE, help="another template, such as .build/here/template.yaml"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    options = StackOptions.from_environment(
        template=arguments.template,
        folder=arguments.data,
        functions=(arguments.function,),
        environment={
            # As under `sam local`: the answer is buffered.
            "AWS_SAM_LOCAL": "true",
            # The signer of the sample events.
            "TRUSTED_PRINCIPALS": f"arn:aws:iam::{ACCOUNT}:role/web-backend",
        },
        emulator={
            # No queue is polled: this command runs one invocation.
            "sqs": None,
            "on_line": lambda _, line: print(line, file=sys.stderr),
        },
    )
    return asyncio.run(invoke(options, arguments.function, _read(arguments.event)))


async def invoke(options: StackOptions, function: str, event: bytes) -> int:
    """Invoke `function` once. Its log goes to standard error, its answer to standard output."""
    async with local_stack(options) as stack:
        result = await stack.emulator.invoke(function, event)
        await stack.emulator.settled()
    sys.stdout.write(result.payload.decode(errors="replace") + "\n")
    return 1 if result.error_type else 0


def _read(event: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if event == "-" else Path(event).read_bytes()
    except OSError as error:
        raise ServiceError(f"The event {event} cannot be read: {error.strerror}.") from None
