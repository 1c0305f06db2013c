"""`make migrate`: asks the deployed function until the indexes are there."""

import json
from collections.abc import Iterator

import boto3
import pytest

from local.aws import Aws
from scripts import migrate
from tests.fixtures.http_server import HttpServer, Received

ARN = "arn:aws:lambda:us-east-1:123456789012:function:summary:live"


class LambdaApi(HttpServer):
    """Answers invocations with what a test lists."""

    def __init__(self, *answers: dict[str, str]) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[str] = []

    def answer(self, request: Received) -> tuple[int, bytes]:
        self.asked.append(f"{request.path} {request.body.decode()}")
        answer = self.answers.pop(0)
        self.headers = {"x-amz-function-error": "Unhandled"} if "errorMessage" in answer else {}
        return 200, json.dumps(answer).encode()


@pytest.fixture(autouse=True)
def deployed(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in aws.environment.items():
        monkeypatch.setenv(name, value)
    outputs = {"SummaryFunction": {"Value": ARN}}
    template = {"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}, "Outputs": outputs}
    cloudformation = boto3.client("cloudformation")
    cloudformation.create_stack(StackName="omniagent-dev", TemplateBody=json.dumps(template))
    yield
    cloudformation.delete_stack(StackName="omniagent-dev")


def test_a_build_is_waited_for_until_it_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with LambdaApi({"status": "building"}, {"status": "building"}, {"status": "indexed"}) as api:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", api.url)
        assert migrate.main() == 0
    assert len(api.asked) == 3
    assert api.asked[0].endswith('/invocations {"indexes": true}')
    assert "summary%3Alive" in api.asked[0]
    assert capsys.readouterr().out.endswith("All indexes of dev are built.\n")


def test_a_build_that_fails_fails_the_deploy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with LambdaApi({"errorMessage": "StorageConflict: duplicate key"}) as api:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", api.url)
        assert migrate.main() == 1
    assert "StorageConflict: duplicate key" in capsys.readouterr().err
