"""`make stop-all` and `make start-all`: the emergency brake of a stack.

Stopped, no function of the stack is invoked any more: their reserved concurrency is 0. Started, each has the
concurrency that the stack's parameters give it.
"""

import os
import sys

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from scripts.caller import CannotCall
from scripts.smoke import stack_of

RESERVED_BY = {"ChatFunction": "ChatConcurrency", "SessionsFunction": "SessionsConcurrency"}


def functions_of(stack: str) -> dict[str, str]:
    """Return the functions of a stack, by logical id."""
    pages = boto3.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
    resources = [item for page in pages for item in page["StackResourceSummaries"]]
    return {
        item["LogicalResourceId"]: item["PhysicalResourceId"]
        for item in resources
        if item["ResourceType"] == "AWS::Lambda::Function"
    }


def reserved_of(stack: str) -> dict[str, int]:
    """Return the reserved concurrency that the parameters of a stack ask for. 0 means none."""
    [found] = boto3.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    given = {item["ParameterKey"]: item.get("ParameterValue", "0") for item in found.get("Parameters", [])}
    return {function: int(given.get(parameter, "0")) for function, parameter in RESERVED_BY.items()}


def stop(stack: str) -> None:
    """Stop every function. One that cannot be stopped keeps none of the others running."""
    client, failed = boto3.client("lambda"), []
    for name in functions_of(stack).values():
        try:
            client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
        except (BotoCoreError, ClientError) as error:
            failed.append(f"{name} is NOT stopped: {error}")
        else:
            print(f"{name} is stopped.", flush=True)
    if failed:
        raise CannotCall("\n".join(failed))


def start(stack: str) -> None:
    client, reserved = boto3.client("lambda"), reserved_of(stack)
    for logical_id, name in functions_of(stack).items():
        if units := reserved.get(logical_id, 0):
            client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=units)
        else:
            client.delete_function_concurrency(FunctionName=name)
        print(f"{name} runs again.", flush=True)


def main(arguments: list[str]) -> int:
    try:
        {"stop": stop, "start": start}[arguments[0]](stack_of(os.environ.get("STAGE", "dev")))
    except (CannotCall, BotoCoreError, ClientError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
