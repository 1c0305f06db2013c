"""`make stop-all` and `make start-all`, on a stack in the local AWS."""

from collections.abc import Iterator

import boto3
import pytest

from local.aws import Aws
from scripts import stop_all
from tests.docs.conftest import deployed_stack

ROLE = {
    "Type": "AWS::IAM::Role",
    "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []}},
}
FUNCTION = {
    "Type": "AWS::Lambda::Function",
    "Properties": {
        "Runtime": "python3.13",
        "Handler": "index.handler",
        "Role": {"Fn::GetAtt": ["Role", "Arn"]},
        "Code": {"ZipFile": "def handler(event, context): ..."},
    },
}
FUNCTIONS = ("ChatFunction", "SessionsFunction", "RunFunction")


@pytest.fixture(autouse=True)
def deployed(local_aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("STAGE", "prod")
    given = {"ChatConcurrency": "50", "SessionsConcurrency": "0"}
    template = {
        "Parameters": {name: {"Type": "Number"} for name in given},
        "Resources": {"Role": ROLE, **dict.fromkeys(FUNCTIONS, FUNCTION)},
    }
    parameters = [{"ParameterKey": name, "ParameterValue": value} for name, value in given.items()]
    with deployed_stack("omniagent", template, Parameters=parameters, Capabilities=["CAPABILITY_IAM"]):
        yield


def reserved() -> dict[str, int | None]:
    names = stop_all.functions_of("omniagent")
    found = {key: boto3.client("lambda").get_function_concurrency(FunctionName=name) for key, name in names.items()}
    return {key: answer.get("ReservedConcurrentExecutions") for key, answer in found.items()}


def test_every_function_is_stopped_and_started_as_its_parameters_say() -> None:
    assert stop_all.main(["stop"]) == 0
    assert reserved() == dict.fromkeys(FUNCTIONS, 0)
    assert stop_all.main(["start"]) == 0
    assert reserved() == {"ChatFunction": 50, "SessionsFunction": None, "RunFunction": None}


def test_a_function_that_cannot_be_stopped_keeps_no_other_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    functions = {"Gone": "gone"} | stop_all.functions_of("omniagent")
    monkeypatch.setattr(stop_all, "functions_of", lambda _: functions)
    assert stop_all.main(["stop"]) == 1
    said = capsys.readouterr()
    assert said.out.count("is stopped.") == len(FUNCTIONS)
    assert "gone is NOT stopped" in said.err
