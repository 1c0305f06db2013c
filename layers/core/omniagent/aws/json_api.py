"""A client for AWS's JSON APIs (DynamoDB, Secrets Manager, SQS), without boto3.

boto3 and its service models would slow down every cold start and use a thread per call. The protocol is one signed
POST; a test compares the signature with botocore's. Credentials are cached per process: Lambda sets keys in the
environment, SnapStart serves them from a local endpoint, and on a laptop botocore finds them in a profile.
"""

import asyncio
import hashlib
import hmac
import json
import math
import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import httpcore2


class AwsUnreachable(Exception):
    """The service did not answer, or cannot serve the call now. A retry may help."""


class AwsRefused(Exception):
    """The service refused the call. `code` is AWS's name for the reason, `answer` the whole response."""

    def __init__(self, code: str, answer: Mapping[str, Any]) -> None:
        super().__init__(f"{code}: {answer.get('message') or answer.get('Message') or 'no message'}")
        self.code = code
        self.answer = answer


# Credentials are replaced this long before they expire, so that no call is signed with expired ones.
REFRESH_BEFORE_SECONDS: Final = 300.0
# Botocore refreshes its credentials itself; the cache only avoids asking it at every call.
PROFILE_LIFE_SECONDS: Final = 300.0
ENDPOINT_TIMEOUT_SECONDS: Final = 3.0
# The credential agents of ECS and EKS. Over plain HTTP, the token goes only to them and to loopback.
_AGENTS: Final = ("169.254.170.2", "169.254.170.23", "fd00:ec2::23")
_LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


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
        if found := _from_environment(self._environment):
            return found
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            if self._cached is None or time.time() >= self._refresh_at:
                self._cached, self._refresh_at = await self._read()
            return self._cached

    def forget(self) -> None:
        """Read the credentials again at the next call: AWS refused them, or the process was restored."""
        self._cached = None

    async def _read(self) -> tuple[Credentials, float]:
        """Return credentials and the `time.time()` at which to read them again."""
        if uri := self._environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
            return await _from_endpoint(uri, _endpoint_token(self._environment))
        return await asyncio.to_thread(_from_profile), time.time() + PROFILE_LIFE_SECONDS


process_credentials = CredentialCache()
"""Shared by every AWS client of the process."""


def _from_environment(environment: Mapping[str, str]) -> Credentials | None:
    access_key, secret_key = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not (access_key and secret_key):
        return None
    return Credentials(access_key, secret_key, environment.get("AWS_SESSION_TOKEN"))


def _endpoint_token(environment: Mapping[str, str]) -> str:
    if path := environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
        try:
            return Path(path).read_text().strip()
        except OSError as exc:
            raise AwsUnreachable(f"the credentials endpoint's token cannot be read: {type(exc).__name__}") from exc
    return environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")


async def _from_endpoint(uri: str, token: str) -> tuple[Credentials, float]:
    if not _is_trusted(uri):
        raise AwsRefused("UntrustedCredentialsEndpoint", {"message": "it is neither local nor https"})
    headers = [("authorization", token)] if token else []
    try:
        async with _pool() as http:
            response = await http.request("GET", uri, headers=headers, extensions=_timeouts(ENDPOINT_TIMEOUT_SECONDS))
        return _parsed(json.loads(response.content))  # an error response lacks the keys and raises KeyError
    except Exception as exc:
        # Only the error's type: its message could quote the response, which contains the keys.
        raise AwsUnreachable(f"the credentials endpoint: {type(exc).__name__}") from exc


def _parsed(answer: Mapping[str, Any]) -> tuple[Credentials, float]:
    expires_at = datetime.fromisoformat(answer["Expiration"]).timestamp()
    credentials = Credentials(answer["AccessKeyId"], answer["SecretAccessKey"], answer.get("Token"))
    # Short-lived credentials are replaced at half of their life, not at every call.
    left = expires_at - time.time()
    return credentials, expires_at - min(REFRESH_BEFORE_SECONDS, left / 2)


def _is_trusted(uri: str) -> bool:
    parts = urlsplit(uri)
    host = parts.hostname or ""
    if parts.scheme == "https" or host == "localhost" or host in _AGENTS:
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in _LOOPBACK)


def _from_profile() -> Credentials:
    """Ask botocore, which supports profiles, single sign-on and assumed roles."""
    from botocore.session import Session  # only on a laptop

    try:
        found = Session().get_credentials()
        frozen = found and found.get_frozen_credentials()
    except Exception as exc:
        raise AwsUnreachable(f"AWS credentials: {type(exc).__name__}") from exc
    if not frozen:
        raise AwsRefused("NoCredentials", {"message": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"})
    return Credentials(frozen.access_key or "", frozen.secret_key or "", frozen.token)


_SIGNED_HEADERS = ("content-type", "host", "x-amz-date", "x-amz-security-token", "x-amz-target")


def sign(
    headers: dict[str, str], body: bytes, *, service: str, region: str, credentials: Credentials, now: datetime
) -> dict[str, str]:
    """Return the headers of a POST to `/` with the signature added."""
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


FIRST_RETRY_SECONDS: Final = 0.1
LONGEST_RETRY_SECONDS: Final = 1.0
RESPONSE_SECONDS: Final = 3.0
"""Reserved at the end of an invocation for the response, however long calls are retried."""
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


_invocation_ends: ContextVar[float] = ContextVar("omniagent_invocation_ends", default=math.inf)


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Set when Lambda ends this invocation. Patient calls in it, and in tasks that it starts, give up before."""
    token = _invocation_ends.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _invocation_ends.reset(token)


def patience(most_seconds: float) -> float:
    """Return how long a call of this invocation may be retried: the time left, up to `most_seconds`."""
    return max(0.0, min(most_seconds, _invocation_ends.get() - RESPONSE_SECONDS - time.monotonic()))


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
                extensions=_timeouts(self._timeout_seconds),
            )
        except (Exception, asyncio.CancelledError) as exc:
            # Every Exception: not only the HTTP client, but also TLS, sockets and anyio raise their own.
            if isinstance(exc, asyncio.CancelledError) and _is_cancelled():
                raise
            raise AwsUnreachable(f"{operation}: {type(exc).__name__} {exc}".rstrip()) from exc
        return _read(operation, response.status, response.content)

    def _connections(self) -> "httpcore2.AsyncConnectionPool":
        if self._http is None:
            self._http = _pool()
        return self._http


def _is_cancelled() -> bool:
    """Whether this task was cancelled. If not, a CancelledError has escaped from a library's own tasks."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _pause(seconds: float) -> float:
    """Wait before a retry. Returns the pause before the next one."""
    await asyncio.sleep(seconds * random.uniform(0.5, 1))  # noqa: S311 - spreads retries, hides nothing
    return min(seconds * 2, LONGEST_RETRY_SECONDS)


_VARIABLE_NAMES = {"secretsmanager": "SECRETS_MANAGER"}


def _pool() -> "httpcore2.AsyncConnectionPool":
    import httpcore2  # shared with the model's client, which loads it anyway

    from omniagent.network import AsyncioBackend
    from omniagent.tls import tls_context

    return httpcore2.AsyncConnectionPool(ssl_context=tls_context(), network_backend=AsyncioBackend())


def _timeouts(seconds: float) -> dict[str, dict[str, float]]:
    return {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), seconds)}


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
