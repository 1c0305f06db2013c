"""`make turns`: the turns of all users that run, wait or are in line, without their text. STOP=… stops one.

The stack's run function reads and stops them, because this machine may not reach MongoDB.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from local.places import command
from scripts.caller import CannotCall
from scripts.job import DeployedFunction
from scripts.smoke import stack_of

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


def main() -> int:
    stop = os.environ.get("STOP", "")
    try:
        function = DeployedFunction(stack_of(os.environ.get("STAGE", "dev")), "RunFunction")
        if stop:
            status = function.invoke({"kind": "stop", "id": stop})["status"]
            print(STOPPED[status])
            return 0 if status == "stopped" else 1
        turns = function.invoke({"kind": "turns"})["turns"]
    except (CannotCall, BotoCoreError, ClientError) as error:
        print(error, file=sys.stderr)
        return 1
    if turns:
        print(f"{'state':<8} {'since (UTC)':<20} {'restarts':>8}  {'category':<10} id")
    for line in lines_of(turns):
        print(line)
    stop = command("turns STOP=<id>")
    print(f"{len(turns)} turns. To stop one: {stop}. All of a session: STOP=<id up to the slash>.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
