"""A client for AWS's JSON APIs (DynamoDB, Secrets Manager, SQS), without boto3.

boto3 and its service models would slow down every cold start and use a thread per call. The protocol is one signed
POST; a test compares the signature with botocore's.
"""

import asyncio
import json
import math
import os
import random
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpcore2
from omniagent.aws.signing import (
    AwsRefused,
    AwsUnreachable,
    CredentialCache,
    open_pool,
    own_region,
    process_credentials,
    sign,
    timeouts,
)

FIRST_RETRY_SECONDS: Final = 0.1
LONGEST_RETRY_SECONDS: Final = 1.0
_TRANSIENT: Final = re.compile(
    "Throttl|TooManyRequests|LimitExceeded|ThroughputExceeded|Timeout|Unavailable|InternalServerError|SlowDown"
    "|PriorRequestNotComplete|TransactionInProgress|Conflict"
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException"})


@dataclass(frozen=True, slots=True)
class Protocol:
    """How one service is addressed."""

    service: str
    target: str
    content_type: str


DYNAMODB = Protocol("dynamodb", "DynamoDB_20120810", "application/x-amz-json-1.0")
SECRETS_MANAGER = Protocol("secretsmanager", "secretsmanager", "application/x-amz-json-1.1")
SQS = Protocol("sqs", "AmazonSQS", "application/x-amz-json-1.0")


class AwsJson:
    """Client of one service in one region. Created once per process; its connections belong to one event loop."""

    def __init__(
        self,
        protocol: Protocol,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        credentials: CredentialCache = process_credentials,
        timeout_seconds: float = 3.0,
        attempts: float = 3,
    ) -> None:
        self._protocol = protocol
        self._region = region or own_region()
        self._endpoint = (endpoint or endpoint_of(protocol.service, self._region)).rstrip("/") + "/"
        self._headers = {"content-type": protocol.content_type, "host": urlsplit(self._endpoint).netloc}
        self._credentials = credentials
        self._timeouts = timeouts(timeout_seconds)
        self._attempts = attempts
        self._http: httpcore2.AsyncConnectionPool | None = None

    async def call(
        self, operation: str, *, attempts: float | None = None, seconds: float = math.inf, **arguments: Any
    ) -> dict[str, Any]:
        """Call an operation. Transient failures are retried: so many `attempts`, all within so many `seconds`.

        One attempt is for a write that must not happen twice: AWS may have done what a lost reply was about. Every
        failure is an `AwsUnreachable` or an `AwsRefused`.
        """
        body = json.dumps(arguments).encode()
        left, end, pause = attempts or self._attempts, time.monotonic() + seconds, FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._send(operation, body)
            except AwsUnreachable:
                left -= 1
                if left <= 0 or time.monotonic() + pause >= end:
                    raise
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads retries, hides nothing
                pause = min(pause * 2, LONGEST_RETRY_SECONDS)

    async def aclose(self) -> None:
        """Close the connections. The next call opens new ones."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def _send(self, operation: str, body: bytes, *, is_renewed: bool = False) -> dict[str, Any]:
        credentials = await self._credentials.get()
        headers = {**self._headers, "x-amz-target": f"{self._protocol.target}.{operation}"}
        service, region, now = self._protocol.service, self._region, datetime.now(UTC)
        signed = sign(headers, body, service=service, region=region, credentials=credentials, now=now)
        if self._http is None:
            self._http = open_pool()
        try:
            response = await self._http.request(
                "POST", self._endpoint, content=body, headers=[*signed.items()], extensions=self._timeouts
            )
        except Exception as exc:  # not only the HTTP client, but also TLS, sockets and anyio raise their own
            raise AwsUnreachable(f"{operation}: {type(exc).__name__} {exc}".rstrip()) from exc
        try:
            answer: dict[str, Any] = json.loads(response.content or b"{}")
        except ValueError as exc:
            raise AwsUnreachable(f"{operation}: HTTP {response.status} without JSON") from exc
        if response.status < HTTPStatus.MULTIPLE_CHOICES:
            return answer
        code = str(answer.get("__type", "")).rpartition("#")[2] or f"HTTP {response.status}"
        if response.status >= 500 or response.status == HTTPStatus.TOO_MANY_REQUESTS or _TRANSIENT.search(code):
            raise AwsUnreachable(f"{operation}: {code}")
        if code in _EXPIRED and not is_renewed and await self._credentials.renew(credentials):
            return await self._send(operation, body, is_renewed=True)
        raise AwsRefused(code, answer)


def endpoint_of(service: str, region: str) -> str:
    """Return the address of a service. boto3's endpoint variables, which the local stack sets, override it."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return endpoint_override(service) or f"https://{service}.{region}.{suffix}"


def endpoint_override(service: str) -> str | None:
    name = "SECRETS_MANAGER" if service == "secretsmanager" else service.upper()
    return os.environ.get(f"AWS_ENDPOINT_URL_{name}") or os.environ.get("AWS_ENDPOINT_URL") or None
