"""`make turns`: the turns of all users that run, wait or are in line, without their text. STOP=… stops one.

The stack's run function reads and stops them, because this machine may not reach MongoDB.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

from local.places import command
from scripts.stack import Stack, exit_code

STOPPED = {
    "stopped": "It stops.",
    "nothing": "There is nothing to stop: it has ended.",
    "not_found": "There is no such turn.",
}


def lines_of(turns: list[dict[str, Any]]) -> Iterator[str]:
    """Yield one line for each turn, the longest running first."""
    for turn in sorted(turns, key=lambda each: (each["since"] is None, each["since"] or "")):
        since = (turn["since"] or "-").partition(".")[0]
        yield f"{turn['state']:<8} {since:<20} {turn['attempt']:>8}  {turn['category'] or '-':<10} {turn['id']}"


def listed_or_stopped() -> int:
    stack, turn_id = Stack.of_stage(os.environ.get("STAGE", "dev")), os.environ.get("STOP", "")
    if turn_id:
        status = stack.invoke("RunFunction", {"kind": "stop", "id": turn_id})["status"]
        print(STOPPED[status])
        return 0 if status == "stopped" else 1
    turns = stack.invoke("RunFunction", {"kind": "turns"})["turns"]
    if turns:
        print(f"{'state':<8} {'since (UTC)':<20} {'restarts':>8}  {'category':<10} id")
    for line in lines_of(turns):
        print(line)
    stop = command("turns STOP=<id>")
    print(f"{len(turns)} turns. To stop one: {stop}. All of a session: STOP=<id up to the slash>.")
    return 0


def main() -> int:
    return exit_code(listed_or_stopped)


if __name__ == "__main__":
    sys.exit(main())
