"""`python -m local COMMAND`: what the Makefile runs on a laptop."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from local.cloudformation import TemplateError
from local.places import IS_REPOSITORY
from local.processes import ServiceError

COMMANDS = {"chat": "local.chat.command", "invoke": "local.invoke", "run": "local.run"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m local" if IS_REPOSITORY else "omniagent", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    # Only the requested command: importing the others takes longer than a whole answer.
    for name in COMMANDS.keys() & set(arguments[:1]) or sorted(COMMANDS):
        import_module(COMMANDS[name]).register(commands)
    parsed = parser.parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except (ServiceError, TemplateError) as error:
        print(error, file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
