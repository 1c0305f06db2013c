"""`python -m local COMMAND`: what the Makefile runs on a laptop."""

import argparse
import sys
from collections.abc import Sequence

from local import invoke, run
from local.chat import command as chat
from local.cloudformation import TemplateError
from local.processes import ServiceError

COMMANDS = (invoke, run, chat)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.register(commands)
    parsed = parser.parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except (ServiceError, TemplateError) as error:
        print(error, file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
