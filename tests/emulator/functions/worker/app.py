"""A queue's function: takes everything but poison, and appends what it took to the file TAKEN."""

import os
from pathlib import Path
from typing import Any


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    failures = []
    with Path(os.environ["TAKEN"]).open("a") as taken:
        for record in event["Records"]:
            if record["body"] == "poison":
                failures.append({"itemIdentifier": record["messageId"]})
            else:
                taken.write(record["body"] + "\n")
    return {"batchItemFailures": failures}
