"""Messages to SQS, compared with boto3's own request and received by it."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from local.aws import Aws
from omniagent.aws.client import SQS
from omniagent.aws.sqs import MAX_DELAY_SECONDS, SqsQueue
from omniagent.errors import ConfigurationError, QueueUnavailable
from tests.fixtures.http_server import Endpoint


@pytest.fixture
def queue_url(local_aws: Aws) -> Iterator[str]:
    url = local_aws.sqs.create_queue(QueueName="queue-of-tests")["QueueUrl"]
    yield url
    local_aws.sqs.delete_queue(QueueUrl=url)


def received(aws: Aws, url: str) -> list[Any]:
    messages = aws.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
    return [json.loads(message["Body"]) for message in messages]


async def test_a_message_arrives_and_its_delay_is_cut_to_what_sqs_allows(aws: Aws, queue_url: str) -> None:
    queue = SqsQueue(queue_url)
    await queue.send({"session_id": "user:session", "rebuild": True})
    await queue.send({}, delay_seconds=MAX_DELAY_SECONDS * 2)
    await queue.aclose()
    assert received(aws, queue_url) == [{"session_id": "user:session", "rebuild": True}]


@pytest.fixture
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.mark.usefixtures("_keys")
async def test_the_request_is_the_one_that_boto3_makes() -> None:
    with Endpoint((200, {"MessageId": "1"})) as endpoint:
        url = f"{endpoint.url}/123456789012/queue"
        client = boto3.client("sqs", region_name="us-east-1", endpoint_url=endpoint.url)
        theirs: list[Any] = []
        client.meta.events.register("before-send.sqs", lambda request, **_: theirs.append(request))
        client.send_message(QueueUrl=url, MessageBody='{"a": 1}', DelaySeconds=7)
        client.close()
        queue = SqsQueue(url)
        await queue.send({"a": 1}, delay_seconds=7)
        await queue.aclose()
    [request] = theirs
    assert request.url == f"{endpoint.url}/"
    assert json.loads(request.body) == {"QueueUrl": url, "MessageBody": '{"a": 1}', "DelaySeconds": 7}
    ours = endpoint.requests[-1]
    assert ours["x-amz-target"] == request.headers["X-Amz-Target"].decode() == f"{SQS.target}.SendMessage"
    assert ours["content-type"] == request.headers["Content-Type"].decode() == SQS.content_type


async def test_a_missing_queue_is_a_wrong_setting(queue_url: str) -> None:
    queue = SqsQueue(queue_url.replace("queue-of-tests", "missing"))
    with pytest.raises(ConfigurationError, match=r"missing.*QueueDoesNotExist"):
        await queue.send({})
    await queue.aclose()


@pytest.mark.usefixtures("_keys")
async def test_a_queue_that_cannot_be_reached_is_a_503() -> None:
    with Endpoint((503, b"")) as endpoint:
        queue = SqsQueue(f"{endpoint.url}/1/queue")
        with pytest.raises(QueueUnavailable):
            await queue.send({})
        await queue.aclose()
