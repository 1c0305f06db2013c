"""AWS's JSON APIs, as DynamoDB and Secrets Manager speak them, without boto3.

boto3 and its service models would take 200 ms and 38 MB of every cold start, and a thread for each call. The protocol
is one signed POST; a test holds the signature against botocore's own. SQS, which is rarely called, still has boto3.
"""

import asyncio
import hashlib
import hmac
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from omniagent.tls import tls_context

if TYPE_CHECKING:
    import httpx2

_THROTTLED = frozenset({"ProvisionedThroughputExceededException", "RequestLimitExceeded", "ThrottlingException"})
_SIGNED_HEADERS = ("content-type", "host", "x-amz-date", "x-amz-security-token", "x-amz-target")


@dataclass(frozen=True, slots=True)
class Protocol:
    """How one service is addressed."""

    service: str
    target: str
    content_type: str


DYNAMODB = Protocol("dynamodb", "DynamoDB_20120810", "application/x-amz-json-1.0")
SECRETS_MANAGER = Protocol("secretsmanager", "secretsmanager", "application/x-amz-json-1.1")


class AwsUnreachable(Exception):
    """The service did not answer, or answered that it cannot now."""


class AwsRefused(Exception):
    """The service refused the call. `code` is AWS's name for the reason, `answer` all that it said."""

    def __init__(self, code: str, answer: dict[str, Any]) -> None:
        super().__init__(f"{code}: {answer.get('message') or answer.get('Message') or 'no message'}")
        self.code = code
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    @classmethod
    def find(cls) -> Self:
        """Take those of the environment, as Lambda sets them; elsewhere (SnapStart, a profile) botocore finds them."""
        access_key, secret_key = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
        if access_key and secret_key:
            return cls(access_key, secret_key, os.environ.get("AWS_SESSION_TOKEN"))
        from botocore.session import Session

        found = Session().get_credentials()
        if found is None:
            raise AwsUnreachable("no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile")
        frozen = found.get_frozen_credentials()
        return cls(frozen.access_key or "", frozen.secret_key or "", frozen.token)


class AwsJson:
    """One service in one region. Made once per process; its connections belong to one event loop."""

    def __init__(
        self,
        protocol: Protocol,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        credentials: Callable[[], Credentials] = Credentials.find,
        timeout_seconds: float = 3.0,
        attempts: int = 3,
    ) -> None:
        self._protocol = protocol
        self._region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        self._endpoint = (endpoint or _endpoint(protocol.service, self._region)).rstrip("/") + "/"
        self._credentials = credentials
        self._timeout_seconds = timeout_seconds
        self._attempts = attempts
        self._http: httpx2.AsyncClient | None = None

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation. What failed on the way, or for now, is tried again."""
        body = json.dumps(arguments).encode()
        attempt = 1
        while True:
            try:
                return await self._post(operation, body)
            except AwsUnreachable:
                if attempt == self._attempts:
                    raise
            await asyncio.sleep(0.05 * 2**attempt)
            attempt += 1

    async def aclose(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def _post(self, operation: str, body: bytes) -> dict[str, Any]:
        import httpx2  # shared with the model's client, which loads it anyway

        if self._http is None:
            self._http = httpx2.AsyncClient(timeout=self._timeout_seconds, trust_env=False, verify=tls_context())
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
            credentials=self._credentials(),
            now=datetime.now(UTC),
        )
        try:
            response = await self._http.post(self._endpoint, content=body, headers=signed)
        except httpx2.HTTPError as exc:
            raise AwsUnreachable(f"{operation}: {type(exc).__name__} {exc}".rstrip()) from exc
        return _read(operation, response.status_code, response.content)


def sign(
    headers: dict[str, str], body: bytes, *, service: str, region: str, credentials: Credentials, now: datetime
) -> dict[str, str]:
    """Return the headers of a POST to `/` with Signature Version 4 added."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    headers = {**headers, "x-amz-date": stamp}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = [name for name in _SIGNED_HEADERS if name in headers]
    listed = "".join(f"{name}:{headers[name]}\n" for name in names)
    request = "\n".join(["POST", "/", "", listed, ";".join(names), hashlib.sha256(body).hexdigest()])
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={';'.join(names)}, Signature={_hmac(key, text).hex()}"
    )
    return headers


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def _endpoint(service: str, region: str) -> str:
    """The address of a service. The variables that boto3 knows, and the local stack sets, override it."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return (
        os.environ.get(f"AWS_ENDPOINT_URL_{service.upper()}")
        or os.environ.get("AWS_ENDPOINT_URL")
        or f"https://{service}.{region}.{suffix}"
    )


def _read(operation: str, status: int, content: bytes) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(content or b"{}")
    except ValueError as exc:
        raise AwsUnreachable(f"{operation}: HTTP {status} without JSON") from exc
    if status < 300:
        return answer
    code = str(answer.get("__type", "")).rpartition("#")[2] or f"HTTP {status}"
    if status >= 500 or code in _THROTTLED:
        raise AwsUnreachable(f"{operation}: {code}")
    raise AwsRefused(code, answer)
