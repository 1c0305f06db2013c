"""`make migrate`, and the last step of `make deploy`: builds the indexes of a new release, however long it takes.

The stack's summary function builds them, because this machine may not reach MongoDB. Requests are served meanwhile.
"""

import json
import os
import sys
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from scripts.caller import CannotCall
from scripts.smoke import stack_of

# Longer than the function's timeout. A second try would wait for the same build.
PATIENCE = Config(read_timeout=180, retries={"total_max_attempts": 1})


def function_of(stack: str) -> str:
    """Return the ARN of the stack's summary function."""
    [found] = boto3.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    outputs = {item["OutputKey"]: item["OutputValue"] for item in found.get("Outputs", [])}
    if "SummaryFunction" not in outputs:
        raise CannotCall(f"The stack {stack} is {found['StackStatus']}. Deploy it first: make deploy.")
    return str(outputs["SummaryFunction"])


def build(function: str) -> None:
    """Invoke the function until the indexes are there."""
    functions = boto3.client("lambda", config=PATIENCE)
    while True:
        answer = functions.invoke(FunctionName=function, Payload=json.dumps({"indexes": True}))
        result: dict[str, Any] = json.loads(answer["Payload"].read())
        if "FunctionError" in answer:
            raise CannotCall(f"The indexes were not built: {result.get('errorMessage', result)}")
        if result["status"] == "indexed":
            return
        print("MongoDB is still building indexes ...", flush=True)


def main() -> int:
    stage = os.environ.get("STAGE", "dev")
    try:
        build(function_of(stack_of(stage)))
    except (CannotCall, BotoCoreError, ClientError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"All indexes of {stage} are built.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
