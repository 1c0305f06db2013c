"""`make migrate`, and the last step of `make deploy`: builds the indexes of a new release, however long it takes.

The stack's summary function builds them, because this machine may not reach MongoDB. Requests are served meanwhile.
"""

import os
import sys

from botocore.exceptions import BotoCoreError, ClientError

from scripts.caller import CannotCall
from scripts.job import DeployedFunction
from scripts.smoke import stack_of


def build(function: DeployedFunction) -> None:
    """Invoke the function until the indexes are there."""
    while function.invoke({"indexes": True})["status"] != "indexed":
        print("MongoDB is still building indexes ...", flush=True)


def main() -> int:
    stage = os.environ.get("STAGE", "dev")
    try:
        build(DeployedFunction(stack_of(stage), "SummaryFunction"))
    except (CannotCall, BotoCoreError, ClientError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"All indexes of {stage} are built.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
