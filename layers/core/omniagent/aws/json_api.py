"""AWS's JSON APIs, as DynamoDB, Secrets Manager and SQS speak them, without boto3.

boto3 and its service models would take 200 ms and 38 MB of every cold start, and a thread for each call. The protocol
is one signed POST. Tests compare signature and requests with botocore's own.
"""

import asyncio
import json
import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from omniagent.aws.aws_errors import AwsRefused, AwsUnreachable
from omniagent.aws.credentials import CredentialCache, Credentials, process_credentials
from omniagent.aws.signature import sign
from omniagent.tls import tls_context

if TYPE_CHECKING:
    import httpx2

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 1.0
_THROTTLED = frozenset(
    {
        "InternalServerError",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
    }
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
    """One service in one region. Made once per process; its connections belong to one event loop."""

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
        self._http: httpx2.AsyncClient | None = None

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation. Transient failures are retried.

        Raises `AwsUnreachable` or `AwsRefused`, whatever went wrong.
        """
        body = json.dumps(arguments).encode()
        pause = FIRST_PAUSE_SECONDS
        for _ in range(self._attempts - 1):
            try:
                return await self._attempt(operation, body)
            except AwsUnreachable:
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads retries, hides nothing
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        return await self._attempt(operation, body)

    async def aclose(self) -> None:
        """Close the connections. The next call opens new ones."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def _attempt(self, operation: str, body: bytes) -> dict[str, Any]:
        """Make the call, and again with new credentials if AWS says that these have expired."""
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
            response = await self._client().post(self._endpoint, content=body, headers=signed)
        except Exception as exc:
            # Not only the client's own errors: TLS, sockets and anyio raise theirs.
            raise AwsUnreachable(f"{operation}: {type(exc).__name__} {exc}".rstrip()) from exc
        return _read(operation, response.status_code, response.content)

    def _client(self) -> "httpx2.AsyncClient":
        import httpx2  # shared with the model's client, which loads it anyway

        if self._http is None:
            self._http = httpx2.AsyncClient(timeout=self._timeout_seconds, trust_env=False, verify=tls_context())
        return self._http


def endpoint_of(service: str, region: str) -> str:
    """Return the address of a service. The variables that boto3 knows, and the local stack sets, override it."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return endpoint_override(service) or f"https://{service}.{region}.{suffix}"


def endpoint_override(service: str) -> str | None:
    return os.environ.get(f"AWS_ENDPOINT_URL_{service.upper()}") or os.environ.get("AWS_ENDPOINT_URL") or None


def _read(operation: str, status: int, content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content or b"{}")
    except ValueError as exc:
        raise AwsUnreachable(f"{operation}: HTTP {status} without JSON") from exc
    if not isinstance(answer, dict):
        raise AwsUnreachable(f"{operation}: HTTP {status} without a JSON object")
    if status < 300:
        return answer
    code = str(answer.get("__type", "")).rpartition("#")[2] or f"HTTP {status}"
    if status >= 500 or code in _THROTTLED:
        raise AwsUnreachable(f"{operation}: {code}")
    raise AwsRefused(code, answer)
