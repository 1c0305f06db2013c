"""`make stop-all` and `make start-all`: the emergency brake of a stack.

Stopped, no function of the stack is invoked any more: their reserved concurrency is 0. Started, each has the
concurrency that the stack's parameters give it.
"""

import os
import sys

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from scripts.caller import CannotCall
from scripts.stack import Stack, exit_code

RESERVED_BY = {"ChatFunction": "ChatConcurrency", "SessionsFunction": "SessionsConcurrency"}
"""The parameters with the reserved concurrency of a function. 0 means none."""


def functions_of(stack: str) -> dict[str, str]:
    """Return the functions of a stack, by logical id."""
    pages = boto3.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
    resources = [item for page in pages for item in page["StackResourceSummaries"]]
    return {
        item["LogicalResourceId"]: item["PhysicalResourceId"]
        for item in resources
        if item["ResourceType"] == "AWS::Lambda::Function"
    }


def stop(stack: Stack) -> None:
    """Stop every function. One that cannot be stopped keeps none of the others running."""
    client, failed = boto3.client("lambda"), []
    for name in functions_of(stack.name).values():
        try:
            client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
        except (BotoCoreError, ClientError) as error:
            failed.append(f"{name} is NOT stopped: {error}")
        else:
            print(f"{name} is stopped.", flush=True)
    if failed:
        raise CannotCall("\n".join(failed))


def start(stack: Stack) -> None:
    client = boto3.client("lambda")
    for logical_id, name in functions_of(stack.name).items():
        if units := int(stack.parameters.get(RESERVED_BY.get(logical_id, ""), "0")):
            client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=units)
        else:
            client.delete_function_concurrency(FunctionName=name)
        print(f"{name} runs again.", flush=True)


def main(arguments: list[str]) -> int:
    def braked() -> int:
        {"stop": stop, "start": start}[arguments[0]](Stack.of_stage(os.environ.get("STAGE", "dev")))
        return 0

    return exit_code(braked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
