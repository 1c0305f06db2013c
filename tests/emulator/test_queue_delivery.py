"""Queue delivery from the local AWS."""

import asyncio
from pathlib import Path

from local.aws import Aws
from local.template import QueueSource
from tests.emulator.conftest import Start, toy


def make_queues(aws: Aws, name: str) -> tuple[str, str]:
    """Make a queue that gives a message up after two tries."""
    dead = aws.sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    policy = f'{{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:{name}-dead", "maxReceiveCount": 2}}'
    attributes = {"VisibilityTimeout": "300", "RedrivePolicy": policy}
    queue = aws.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]
    return queue, dead


def waiting(aws: Aws, queue: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = aws.sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]  # type: ignore[arg-type]
    return sum(int(value) for value in attributes.values())


def receive(aws: Aws, queue: str) -> str:
    """Wait for a message."""
    while True:
        for message in aws.sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20).get("Messages", []):
            return message["Body"]


async def test_one_poisoned_message_does_not_block_the_others_and_ends_in_the_dead_letters(
    start: Start, aws: Aws, tmp_path: Path
) -> None:
    queue, dead = make_queues(aws, "poisoned")
    bodies = ["one", "poison", "two", "three"]
    for body in bodies:
        aws.sqs.send_message(QueueUrl=queue, MessageBody=body)
    taken = tmp_path / "taken"
    source = QueueSource("arn:aws:sqs:us-east-1:123456789012:poisoned", batch_size=5, reports_failures=True)
    worker = toy("worker", queues=(source,), environment={"TAKEN": str(taken)})
    emulator = await start(worker, sqs=aws.sqs, redelivery_seconds=0)
    letter = await asyncio.to_thread(receive, aws, dead)
    assert letter == "poison"
    await emulator.settled()
    assert sorted(taken.read_text().split()) == ["one", "three", "two"]
    assert waiting(aws, queue) == 0
