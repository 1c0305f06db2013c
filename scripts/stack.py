"""A deployed stack: what it says of itself, and the jobs that an operator gives to its functions by invoking them."""

import json
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from local.places import command
from local.template import ROOT
from scripts.caller import CannotCall

# Longer than the functions' own work. A second try would wait for the same work.
PATIENCE = Config(read_timeout=180, retries={"total_max_attempts": 1})


@dataclass(frozen=True)
class Stack:
    name: str
    status: str
    outputs: dict[str, str]
    parameters: dict[str, str]

    @classmethod
    def of_stage(cls, stage: str) -> "Stack":
        """Look up the stack of a stage."""
        config = tomllib.loads((ROOT / "samconfig.toml").read_text())
        stages = {"dev" if name == "default" else name: part for name, part in config.items() if name != "version"}
        if stage not in stages:
            raise CannotCall(f"samconfig.toml has no stage {stage}. There are: {', '.join(stages)}.")
        name: str = stages[stage]["deploy"]["parameters"]["stack_name"]
        try:
            [found] = boto3.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
        except (BotoCoreError, ClientError) as error:
            raise CannotCall(f"The stack {name} cannot be looked up: {error}") from None
        outputs = {item["OutputKey"]: item["OutputValue"] for item in found.get("Outputs", [])}
        parameters = {item["ParameterKey"]: item.get("ParameterValue", "") for item in found.get("Parameters", [])}
        return cls(name, found["StackStatus"], outputs, parameters)

    def output(self, name: str) -> str:
        if name not in self.outputs:
            advice = f"Deploy it first: {command('deploy')}."
            raise CannotCall(f"The stack {self.name} is {self.status} and has no {name}. {advice}")
        return self.outputs[name]

    def invoke(self, output: str, job: dict[str, Any]) -> dict[str, Any]:
        """Have a job done by the function with this output, and return what the function says."""
        client = boto3.client("lambda", config=PATIENCE)
        answer = client.invoke(FunctionName=self.output(output), Payload=json.dumps(job))
        result: dict[str, Any] = json.loads(answer["Payload"].read())
        if "FunctionError" in answer:
            raise CannotCall(f"The function failed: {result.get('errorMessage', result)}")
        return result


def exit_code(work: Callable[[], int]) -> int:
    """Do the work of a command and return its exit code. What is missing or fails is said."""
    try:
        return work()
    except (CannotCall, BotoCoreError, ClientError) as error:
        print(error, file=sys.stderr)
        return 1
