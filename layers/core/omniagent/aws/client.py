"""Signed calls to AWS: credentials, connections, Signature Version 4, and a client of its JSON APIs, without boto3.

boto3 and its service models would slow down every cold start and use a thread per call. DynamoDB, Secrets Manager and
SQS take one signed POST; tests compare the signatures with AWS's own. Lambda sets keys in the environment, SnapStart
serves them from a local endpoint, and on a laptop botocore finds them in a profile.
"""

import asyncio
import hashlib
import hmac
import json
import math
import os
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from omniagent.tls import is_this_machine

if TYPE_CHECKING:
    import httpcore2

# Credentials are replaced this long before they expire, so that no call is signed with expired ones.
REFRESH_BEFORE_SECONDS: Final = 300.0
# Botocore refreshes its credentials itself; the cache only avoids asking it at every call.
PROFILE_LIFE_SECONDS: Final = 300.0
ENDPOINT_TIMEOUT_SECONDS: Final = 3.0
# The credential agents of ECS and EKS. Over plain HTTP, the token goes only to them and to loopback.
_AGENTS: Final = ("169.254.170.2", "169.254.170.23", "fd00:ec2::23")
_SIGNED_HEADERS = ("content-type", "host", "x-amz-date", "x-amz-security-token", "x-amz-target")
ALGORITHM: Final = "AWS4-HMAC-SHA256"
FIRST_RETRY_SECONDS: Final = 0.1
LONGEST_RETRY_SECONDS: Final = 1.0
_TRANSIENT: Final = re.compile(
    "Throttl|TooManyRequests|LimitExceeded|ThroughputExceeded|Timeout|Unavailable|InternalServerError|SlowDown"
    "|PriorRequestNotComplete|TransactionInProgress|Conflict"
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException"})


class AwsUnreachable(Exception):
    """The service did not answer, or cannot serve the call now. A retry may help."""


class AwsRefused(Exception):
    """The service refused the call. `code` is AWS's name for the reason, `answer` the whole response."""

    def __init__(self, code: str, answer: Mapping[str, Any]) -> None:
        super().__init__(f"{code}: {answer.get('message') or answer.get('Message') or 'no message'}")
        self.code = code
        self.answer = answer


def own_region() -> str:
    """Return the region of this process."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def timeouts(seconds: float) -> dict[str, dict[str, float]]:
    return {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), seconds)}


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


class CredentialCache:
    """The credentials of one process. Concurrent callers share one read."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._cached: Credentials | None = None
        self._refresh_at = 0.0
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def get(self) -> Credentials:
        """Return valid credentials. Raises `AwsUnreachable`, or `AwsRefused` when there are none."""
        keys = self._environment.get("AWS_ACCESS_KEY_ID"), self._environment.get("AWS_SECRET_ACCESS_KEY")
        if keys[0] and keys[1]:
            return Credentials(keys[0], keys[1], self._environment.get("AWS_SESSION_TOKEN"))
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            if self._cached is None or time.time() >= self._refresh_at:
                self._cached, self._refresh_at = await self._read()
            return self._cached

    def forget(self) -> None:
        """Read the credentials again at the next call: AWS refused them, or the process was restored."""
        self._cached = None

    async def renew(self, refused: Credentials) -> bool:
        """Read the credentials again, because AWS refused these. Returns whether there are others now."""
        self.forget()
        return await self.get() != refused

    async def _read(self) -> tuple[Credentials, float]:
        """Return credentials and the `time.time()` at which to read them again."""
        if uri := self._environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
            return await _from_endpoint(uri, _endpoint_token(self._environment))
        return await asyncio.to_thread(_from_profile), time.time() + PROFILE_LIFE_SECONDS


process_credentials = CredentialCache()
"""Shared by every AWS client of the process."""


def _endpoint_token(environment: Mapping[str, str]) -> str:
    if path := environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
        try:
            return Path(path).read_text().strip()
        except OSError as exc:
            raise AwsUnreachable(f"the credentials endpoint's token cannot be read: {type(exc).__name__}") from exc
    return environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")


async def _from_endpoint(uri: str, token: str) -> tuple[Credentials, float]:
    from omniagent.network import open_pool

    parts = urlsplit(uri)
    host = parts.hostname or ""
    if not (parts.scheme == "https" or host in _AGENTS or is_this_machine(host)):
        raise AwsRefused("UntrustedCredentialsEndpoint", {"message": "it is neither local nor https"})
    headers = [("authorization", token)] if token else []
    try:
        async with open_pool() as http:
            response = await http.request("GET", uri, headers=headers, extensions=timeouts(ENDPOINT_TIMEOUT_SECONDS))
        answer = json.loads(response.content)
        # An error response lacks the keys and raises KeyError.
        expires_at = datetime.fromisoformat(answer["Expiration"]).timestamp()
        credentials = Credentials(answer["AccessKeyId"], answer["SecretAccessKey"], answer.get("Token"))
    except Exception as exc:
        # Only the error's type: its message could quote the response, which contains the keys.
        raise AwsUnreachable(f"the credentials endpoint: {type(exc).__name__}") from exc
    # Short-lived credentials are replaced at half of their life, not at every call.
    return credentials, expires_at - min(REFRESH_BEFORE_SECONDS, (expires_at - time.time()) / 2)


def _from_profile() -> Credentials:
    """Ask botocore, which supports profiles, single sign-on and assumed roles."""
    try:
        from botocore.session import Session  # only on a laptop
    except ModuleNotFoundError:
        advice = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or install boto3 to use a profile"
        raise AwsRefused("NoCredentials", {"message": advice}) from None
    try:
        found = Session().get_credentials()
        frozen = found and found.get_frozen_credentials()
    except Exception as exc:
        raise AwsUnreachable(f"AWS credentials: {type(exc).__name__}") from exc
    if not frozen:
        raise AwsRefused("NoCredentials", {"message": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"})
    return Credentials(frozen.access_key or "", frozen.secret_key or "", frozen.token)


def sign(
    headers: dict[str, str],
    body: bytes,
    *,
    service: str,
    region: str,
    credentials: Credentials,
    now: datetime,
    path: str = "/",
) -> dict[str, str]:
    """Return the headers of a POST with the signature added."""
    stamp, scope = f"{now:%Y%m%dT%H%M%SZ}", f"{now:%Y%m%d}/{region}/{service}/aws4_request"
    headers = {**headers, "x-amz-date": stamp}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = [name for name in _SIGNED_HEADERS if name in headers]
    listed = "".join(f"{name}:{headers[name]}\n" for name in names)
    digest = hashlib.sha256(body).hexdigest()
    request = "\n".join(["POST", quote(path, safe="/~"), "", listed, ";".join(names), digest])
    headers["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={';'.join(names)}, Signature={signature(request, stamp, scope, credentials)}"
    )
    return headers


def signature(request: str, stamp: str, scope: str, credentials: Credentials) -> str:
    """Return the signature of a canonical request."""
    text = "\n".join([ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


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
    ) -> None:
        self._protocol = protocol
        self._region = region or own_region()
        suffix = "amazonaws.com.cn" if self._region.startswith("cn-") else "amazonaws.com"
        address = (
            endpoint or endpoint_override(protocol.service) or f"https://{protocol.service}.{self._region}.{suffix}"
        )
        self._endpoint = address.rstrip("/") + "/"
        self._headers = {"content-type": protocol.content_type, "host": urlsplit(self._endpoint).netloc}
        self._credentials = credentials
        self._timeouts = timeouts(timeout_seconds)
        self._http: httpcore2.AsyncConnectionPool | None = None

    async def call(
        self, operation: str, *, attempts: float = 3, seconds: float = math.inf, **arguments: Any
    ) -> dict[str, Any]:
        """Call an operation. Transient failures are retried: so many `attempts`, all within so many `seconds`.

        One attempt is for a write that must not happen twice: AWS may have done what a lost reply was about. Every
        failure is an `AwsUnreachable` or an `AwsRefused`.
        """
        body = json.dumps(arguments).encode()
        left, end, pause = attempts, time.monotonic() + seconds, FIRST_RETRY_SECONDS
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
            from omniagent.network import open_pool  # with httpcore: loaded for the first call

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


def endpoint_override(service: str) -> str | None:
    """Return the address of a service in boto3's endpoint variables, which the local stack sets."""
    name = "SECRETS_MANAGER" if service == "secretsmanager" else service.upper()
    return os.environ.get(f"AWS_ENDPOINT_URL_{name}") or os.environ.get("AWS_ENDPOINT_URL") or None
