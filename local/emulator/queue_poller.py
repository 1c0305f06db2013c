"""Invokes a function with batches of SQS messages, as an event source mapping does."""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from local.cloudformation import REGION
from local.emulator.invocation import FunctionFailed, Invocation
from local.emulator.pool import Pool, Throttled
from local.template import QueueSource

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import DeleteMessageBatchRequestEntryTypeDef, MessageTypeDef

log = logging.getLogger(__name__)

WAIT_SECONDS = 1
RETRY_SECONDS = 1.0
THROTTLED_TRIES = 60


class QueuePoller:
    """Delivers the messages of a queue to a function.

    Handled messages are deleted. Failed ones are redelivered after the queue's visibility timeout or after
    `redelivery_seconds`, and move to the dead-letter queue by the queue's own policy.
    """

    def __init__(
        self, pool: Pool, source: QueueSource, sqs: "SQSClient", redelivery_seconds: int | None = None
    ) -> None:
        """Connect a queue to a function."""
        self._pool = pool
        self._source = source
        self._sqs = sqs
        self._redelivery_seconds = redelivery_seconds
        self._url = ""
        self._free = asyncio.Semaphore(source.max_concurrency)
        self._batches: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Deliver until cancelled. If the queue cannot be reached, try again."""
        try:
            while True:
                await self._free.acquire()
                messages = await self._receive()
                if not messages:
                    self._free.release()
                    continue
                batch = asyncio.create_task(self._deliver(messages))
                self._batches.add(batch)
                batch.add_done_callback(self._delivered)
        finally:
            for batch in list(self._batches):
                batch.cancel()
            await asyncio.gather(*self._batches, return_exceptions=True)

    def _delivered(self, batch: asyncio.Task[None]) -> None:
        self._batches.discard(batch)
        self._free.release()

    async def _receive(self) -> "list[MessageTypeDef]":
        try:
            # The client blocks, so it waits in a thread.
            return await asyncio.to_thread(self._receive_now)
        except (BotoCoreError, ClientError) as error:
            log.warning("%s cannot be read: %s", self._source.queue_arn, error)
            await asyncio.sleep(RETRY_SECONDS)
            return []

    def _receive_now(self) -> "list[MessageTypeDef]":
        if not self._url:
            name = self._source.queue_arn.rsplit(":", 1)[1]
            self._url = self._sqs.get_queue_url(QueueName=name)["QueueUrl"]
        answer = self._sqs.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=min(self._source.batch_size, 10),
            WaitTimeSeconds=WAIT_SECONDS,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return answer.get("Messages", [])

    async def _deliver(self, messages: "list[MessageTypeDef]") -> None:
        event = {"Records": [self._record(message) for message in messages]}
        try:
            invocation = await self._invoke(json.dumps(event).encode())
            answer = await (await invocation.answer()).read()
            failed = self._failed(answer, {message["MessageId"] for message in messages})
        except (FunctionFailed, Throttled) as error:
            log.warning("a batch for %s failed: %s", self._pool.function.name, error)
            failed = {message["MessageId"] for message in messages}
        try:
            await asyncio.to_thread(self._delete, [item for item in messages if item["MessageId"] not in failed])
            await asyncio.to_thread(self._redeliver, [item for item in messages if item["MessageId"] in failed])
        except (BotoCoreError, ClientError) as error:
            log.warning("%s cannot be written: %s", self._source.queue_arn, error)

    async def _invoke(self, event: bytes) -> Invocation:
        """Invoke the function. While all its processes are busy, try again, as Lambda's pollers do."""
        for _ in range(THROTTLED_TRIES):
            try:
                return await self._pool.invoke(event)
            except Throttled:
                await asyncio.sleep(RETRY_SECONDS)
        return await self._pool.invoke(event)

    def _failed(self, answer: bytes, ids: set[str]) -> set[str]:
        """Return the ids of the messages to redeliver: all of them if the function's report is invalid."""
        if not self._source.reports_failures:
            return set()
        try:
            report = json.loads(answer) or {}
            failed = {failure["itemIdentifier"] for failure in report.get("batchItemFailures") or ()}
        except (AttributeError, KeyError, TypeError, ValueError):
            return ids
        unknown = failed - ids
        return ids if unknown else failed

    def _delete(self, messages: "Iterable[MessageTypeDef]") -> None:
        entries: list[DeleteMessageBatchRequestEntryTypeDef] = [
            {"Id": str(n), "ReceiptHandle": item["ReceiptHandle"]} for n, item in enumerate(messages)
        ]
        if entries:
            self._sqs.delete_message_batch(QueueUrl=self._url, Entries=entries)

    def _redeliver(self, messages: "Iterable[MessageTypeDef]") -> None:
        if self._redelivery_seconds is None:
            return
        for message in messages:
            self._sqs.change_message_visibility(
                QueueUrl=self._url,
                ReceiptHandle=message["ReceiptHandle"],
                VisibilityTimeout=self._redelivery_seconds,
            )

    def _record(self, message: "MessageTypeDef") -> Mapping[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message.get("Attributes", {}),
            "messageAttributes": {
                name: _attribute(value) for name, value in message.get("MessageAttributes", {}).items()
            },
            "md5OfBody": message["MD5OfBody"],
            "eventSource": "aws:sqs",
            "eventSourceARN": self._source.queue_arn,
            "awsRegion": REGION,
        }


def _attribute(value: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an attribute to the spelling of events: `stringValue` for `StringValue`."""
    return {key[0].lower() + key[1:]: item for key, item in value.items()}
