"""A client for AWS's JSON APIs (DynamoDB, Secrets Manager, SQS), without boto3.

boto3 and its service models would slow down every cold start and use a thread per call. The protocol is one signed
POST; a test compares the signature with botocore's.
"""

import asyncio
import json
import os
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpcore2
from omniagent.aio import is_cancelled
from omniagent.aws.credentials import CredentialCache, Credentials, process_credentials
from omniagent.aws.http_pool import AwsRefused, AwsUnreachable, open_pool, timeouts
from omniagent.aws.signature import sign

FIRST_RETRY_SECONDS: Final = 0.1
LONGEST_RETRY_SECONDS: Final = 1.0
_TRANSIENT = frozenset(
    {
        "InternalServerError",
        "KMSThrottlingException",
        "KmsThrottled",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)
_TOO_MANY_REQUESTS: Final = 429
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
        credentials: CredentialCache | Credentials = process_credentials,
        timeout_seconds: float = 3.0,
        attempts: int = 3,
    ) -> None:
        self._protocol = protocol
        self._region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        self._endpoint = (endpoint or endpoint_of(protocol.service, self._region)).rstrip("/") + "/"
        self._credentials = credentials
        self._timeout_seconds = timeout_seconds
        self._attempts = attempts
        self._http: httpcore2.AsyncConnectionPool | None = None

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation. Transient failures are retried a few times.

        Every failure is an `AwsUnreachable` or an `AwsRefused`.
        """
        body = json.dumps(arguments).encode()
        pause = FIRST_RETRY_SECONDS
        for _ in range(self._attempts - 1):
            try:
                return await self._attempt(operation, body)
            except AwsUnreachable:
                pause = await _pause(pause)
        return await self._attempt(operation, body)

    async def call_once(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Like `call`, without retries: AWS may have done what a lost reply was about."""
        return await self._attempt(operation, json.dumps(arguments).encode())

    async def call_patiently(self, seconds: float, operation: str, **arguments: Any) -> dict[str, Any]:
        """Like `call`, but transient failures are retried for `seconds`, without a limit on their number.

        For calls that a request cannot begin without: a burst of cold starts makes AWS throttle for a moment.
        """
        body = json.dumps(arguments).encode()
        pause = FIRST_RETRY_SECONDS
        end = time.monotonic() + seconds
        while True:
            try:
                return await self._attempt(operation, body)
            except AwsUnreachable:
                if time.monotonic() + pause >= end:
                    raise
                pause = await _pause(pause)

    async def aclose(self) -> None:
        """Close the connections. The next call opens new ones."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def _attempt(self, operation: str, body: bytes) -> dict[str, Any]:
        """Make the call. If AWS says that the credentials have expired, repeat it with new ones."""
        source = self._credentials
        if isinstance(source, Credentials):
            return await self._post(operation, body, source)
        credentials = await source.get()
        try:
            return await self._post(operation, body, credentials)
        except AwsRefused as refusal:
            if refusal.code not in _EXPIRED:
                raise
            source.forget()
            renewed = await source.get()
            if renewed == credentials:
                raise
            return await self._post(operation, body, renewed)

    async def _post(self, operation: str, body: bytes, credentials: Credentials) -> dict[str, Any]:
        headers = {
            "content-type": self._protocol.content_type,
            "host": urlsplit(self._endpoint).netloc,
            "x-amz-target": f"{self._protocol.target}.{operation}",
        }
        signed = sign(
            headers,
            body,
            service=self._protocol.service,
            region=self._region,
            credentials=credentials,
            now=datetime.now(UTC),
        )
        try:
            response = await self._connections().request(
                "POST",
                self._endpoint,
                content=body,
                headers=[*signed.items()],
                extensions=timeouts(self._timeout_seconds),
            )
        except (Exception, asyncio.CancelledError) as exc:
            # Every Exception: not only the HTTP client, but also TLS, sockets and anyio raise their own.
            if isinstance(exc, asyncio.CancelledError) and is_cancelled():
                raise
            raise AwsUnreachable(f"{operation}: {type(exc).__name__} {exc}".rstrip()) from exc
        return _read(operation, response.status, response.content)

    def _connections(self) -> "httpcore2.AsyncConnectionPool":
        if self._http is None:
            self._http = open_pool()
        return self._http


async def _pause(seconds: float) -> float:
    """Wait before a retry. Returns the pause before the next one."""
    await asyncio.sleep(seconds * random.uniform(0.5, 1))  # noqa: S311 - spreads retries, hides nothing
    return min(seconds * 2, LONGEST_RETRY_SECONDS)


_VARIABLE_NAMES = {"secretsmanager": "SECRETS_MANAGER"}


def endpoint_of(service: str, region: str) -> str:
    """Return the address of a service. boto3's endpoint variables, which the local stack sets, override it."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return endpoint_override(service) or f"https://{service}.{region}.{suffix}"


def endpoint_override(service: str) -> str | None:
    name = _VARIABLE_NAMES.get(service, service.upper())
    return os.environ.get(f"AWS_ENDPOINT_URL_{name}") or os.environ.get("AWS_ENDPOINT_URL") or None


def _read(operation: str, status: int, content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content or b"{}")
    except (ValueError, RecursionError, MemoryError) as exc:
        raise AwsUnreachable(f"{operation}: HTTP {status} without JSON") from exc
    if not isinstance(answer, dict):
        raise AwsUnreachable(f"{operation}: HTTP {status} without a JSON object")
    if status < 300:
        return answer
    code = str(answer.get("__type", "")).rpartition("#")[2] or f"HTTP {status}"
    if status >= 500 or status == _TOO_MANY_REQUESTS or code.rpartition(".")[2] in _TRANSIENT:
        raise AwsUnreachable(f"{operation}: {code}")
    raise AwsRefused(code, answer)
