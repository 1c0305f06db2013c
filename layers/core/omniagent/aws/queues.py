"""The queue of summaries to regenerate."""

import asyncio
import json
from typing import TYPE_CHECKING, Final

from omniagent.errors import NoQueue, QueueUnavailable

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

TIMEOUT_SECONDS: Final = 3.0


class SummaryQueue:
    """Sends work to the summary function. Without an address nothing can be sent."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: SQSClient | None = None
        self._making = asyncio.Lock()

    async def send(self, key: str, *, rebuild: bool = False) -> None:
        """Queue the session with this key."""
        if not self._url:
            raise NoQueue
        # Here, not above: importing boto3 takes longer than all the rest.
        from botocore.exceptions import BotoCoreError, ClientError

        body = json.dumps({"session_id": key, "rebuild": rebuild})
        try:
            client = await self._connected()
            await asyncio.to_thread(client.send_message, QueueUrl=self._url, MessageBody=body)
        except (BotoCoreError, ClientError) as exc:
            raise QueueUnavailable(f"SQS: {exc}") from exc

    async def close(self) -> None:
        async with self._making:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    async def _connected(self) -> "SQSClient":
        async with self._making:
            if self._client is None:
                self._client = await asyncio.to_thread(_make_client)
            return self._client


def _make_client() -> "SQSClient":
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=TIMEOUT_SECONDS, read_timeout=TIMEOUT_SECONDS, retries={"total_max_attempts": 3})
    return boto3.Session().client("sqs", config=config)
