"""Jobs that an operator gives to a function of a deployed stack, by invoking it."""

import json
from typing import Any

import boto3
from botocore.config import Config

from local.places import command
from scripts.caller import CannotCall

# Longer than the functions' own work. A second try would wait for the same work.
PATIENCE = Config(read_timeout=180, retries={"total_max_attempts": 1})


class DeployedFunction:
    """A function of a stack, found by the stack's output."""

    def __init__(self, stack: str, output: str) -> None:
        [found] = boto3.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
        outputs = {item["OutputKey"]: item["OutputValue"] for item in found.get("Outputs", [])}
        if output not in outputs:
            raise CannotCall(f"The stack {stack} is {found['StackStatus']}. Deploy it first: {command('deploy')}.")
        self._arn = outputs[output]
        self._lambda = boto3.client("lambda", config=PATIENCE)

    def invoke(self, job: dict[str, Any]) -> dict[str, Any]:
        """Have a job done, and return what the function says."""
        answer = self._lambda.invoke(FunctionName=self._arn, Payload=json.dumps(job))
        result: dict[str, Any] = json.loads(answer["Payload"].read())
        if "FunctionError" in answer:
            raise CannotCall(f"The function failed: {result.get('errorMessage', result)}")
        return result
