"""`make migrate`, and the last step of `make deploy`: builds the indexes of a new release, however long it takes.

The stack's summary function builds them, because this machine may not reach MongoDB. Requests are served meanwhile.
"""

import os
import sys

from scripts.stack import Stack, exit_code


def build() -> int:
    """Invoke the function until the indexes are there."""
    stage = os.environ.get("STAGE", "dev")
    stack = Stack.of_stage(stage)
    while stack.invoke("SummaryFunction", {"indexes": True})["status"] != "indexed":
        print("MongoDB is still building indexes ...", flush=True)
    print(f"All indexes of {stage} are built.")
    return 0


def main() -> int:
    return exit_code(build)


if __name__ == "__main__":
    sys.exit(main())
