"""The connection to an OpenAI API: the SDK's client for transport, keys and retries; everything else is raw JSON."""

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast
from urllib.request import getproxies

import httpcore2
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from omniagent.ai.providers.api_errors import MAX_API_TEXT, TRANSPORT_ERRORS, api_error, mapped
from omniagent.ai.providers.api_provider import CONNECT_SECONDS, ApiOptions, encoded, usable_key
from omniagent.ai.providers.api_stream import read_events
from omniagent.ai.providers.http_client import Authorizer
from omniagent.ai.providers.llm_provider import KeySource
from omniagent.ai.providers.openai.lean_openai import httpx2, openai
from omniagent.ai.providers.openai.think_tags import ThinkTagsMode
from omniagent.ai.providers.stream_reader import Json
from omniagent.errors import (
    ConfigurationError,
    ModelAuthError,
    ModelError,
    ModelRejected,
    ModelStreamBroken,
    ModelUnavailable,
)
from omniagent.network import AsyncioBackend, PeerTimeout
from omniagent.tls import is_http_address, tls_context

MODEL_ERRORS: dict[type[Exception], type[ModelError]] = {
    openai.OpenAIError: ModelError,
    openai.APIError: ModelError,
    openai.APIConnectionError: ModelUnavailable,
    openai.APITimeoutError: ModelUnavailable,
    openai.APIResponseValidationError: ModelStreamBroken,
    openai.APIStatusError: ModelRejected,
    openai.BadRequestError: ModelRejected,
    openai.AuthenticationError: ModelAuthError,
    openai.OAuthError: ModelAuthError,
    openai.PermissionDeniedError: ModelAuthError,
    openai.NotFoundError: ModelRejected,
    openai.ConflictError: ModelUnavailable,
    openai.UnprocessableEntityError: ModelRejected,
    openai.RateLimitError: ModelUnavailable,
    openai.InternalServerError: ModelUnavailable,
    # The SDK wraps its transport's errors before the first byte, but not those in the middle of a stream.
    httpx2.TimeoutException: ModelUnavailable,
    httpx2.RequestError: ModelStreamBroken,
    **TRANSPORT_ERRORS,
    EndOfStream: ModelStreamBroken,
    BrokenResourceError: ModelStreamBroken,
    ClosedResourceError: ModelStreamBroken,
}


@contextmanager
def translated() -> Iterator[None]:
    """Raise any failure of the model's API as one of the package's errors."""
    try:
        yield
    except tuple(MODEL_ERRORS) as exc:
        error = translate(exc)
        # As the cause, the SDK's error would put its text into the log's traceback.
        raise error from (None if error.api_text else exc)


def translate(exc: Exception) -> ModelError:
    """Return our error for one of the SDK's."""
    kind = mapped(exc, MODEL_ERRORS)
    if isinstance(exc, openai.APIStatusError):
        facts = {name: getattr(exc, name, None) for name in ("status_code", "code", "type", "param", "request_id")}
        return api_error(kind, type(exc).__name__, facts, _api_text(exc))
    if isinstance(exc, TimeoutError | openai.APITimeoutError | httpx2.TimeoutException | httpcore2.TimeoutException):
        return kind(f"{type(exc).__name__}: the model's API was silent for too long")
    return kind(f"{type(exc).__name__}: {exc}")


def _api_text(exc: openai.APIStatusError) -> str:
    """Return the API's message, or its whole body: the SDK finds the message only where OpenAI puts it."""
    message, body = str(getattr(exc, "message", exc)), getattr(exc, "body", None)
    if not body or not re.fullmatch(r"Error code: \d+", message):
        return message
    return f"{message} - {body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)}"[:MAX_API_TEXT]


OPENAI_URL = "https://api.openai.com/v1"
_WITH_KEY: Final[openai.RequestOptions] = {"security": {"bearer_auth": True}}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIOptions(ApiOptions):
    """The options of an OpenAI provider."""

    organization: str | None = None
    project: str | None = None
    auth: Authorizer | None = None
    """Signs requests, instead of a key."""
    identifiers: bool | None = None
    """Send `prompt_cache_key` and `safety_identifier`. None: only to OpenAI itself, where no `base_url` is set."""
    think_tags: ThinkTagsMode | None = None
    """Chat Completions: read `<think>` tags at the beginning of the text as reasoning."""

    @property
    def send_identifiers(self) -> bool:
        return not self.base_url if self.identifiers is None else self.identifiers


class OpenAIClient:
    """One connection pool per event loop: connections are bound to a loop.

    From the environment it reads only proxies and OPENAI_CUSTOM_HEADERS.
    """

    def __init__(self, options: OpenAIOptions) -> None:
        if not options.api_key and not options.base_url:
            raise ConfigurationError(
                "No key for the model's API: set OPENAI_API_KEY or OPENAI_SECRET_ARN, "
                "or OPENAI_BASE_URL for a compatible server that needs none"
            )
        self._key: str | KeySource = options.api_key or "unused"
        self._refresh_key = options.refresh_key
        self._timeout_seconds = options.timeout_seconds
        self.options = options
        # The first is made here, where its options are checked, for the loop of the first request.
        self._sdks: dict[asyncio.AbstractEventLoop | None, openai.AsyncOpenAI] = {
            None: _make_sdk(options, self._current_key)
        }

    async def open(self, path: str, body: Json) -> AsyncGenerator[Iterator[Json], None]:
        """Send a request. Returns the answer's events once it is accepted."""
        first_byte_by = asyncio.get_running_loop().time() + self._timeout_seconds
        response = await self._answered(first_byte_by, partial(self._post, path, encoded(body)))
        return read_events(
            response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw(),
            response.aclose,
            content_type=response.headers.get("content-type"),
            first_byte_by=first_byte_by,
            translated=translated,
        )

    async def get(self, path: str) -> Any:
        """Return the JSON at a path, or None if the answer is something else."""
        by = asyncio.get_running_loop().time() + self._timeout_seconds
        response = await self._answered(by, lambda: self._sdk().get(path, cast_to=httpx2.Response, options=_WITH_KEY))
        try:
            return response.json()
        except ValueError:
            return None

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        if (sdk := self._sdks.pop(asyncio.get_running_loop(), None)) is not None:
            await sdk.close()

    def _sdk(self) -> openai.AsyncOpenAI:
        loop = asyncio.get_running_loop()
        if loop not in self._sdks:
            for closed in [each for each in list(self._sdks) if each is not None and each.is_closed()]:
                self._sdks.pop(closed, None)
            first = self._sdks.pop(None, None)
            self._sdks[loop] = first or _make_sdk(self.options, self._current_key)
        return self._sdks[loop]

    async def _answered(self, by: float, send: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
        """Send a request, and once more with the current key if the key is refused."""
        _retry_by.set(by)
        with translated():
            async with PeerTimeout(by):
                try:
                    return await send()
                except (openai.AuthenticationError, openai.PermissionDeniedError) as exc:
                    if not await self._renewed(exc):
                        raise
                return await send()

    async def _renewed(self, refusal: openai.APIStatusError) -> bool:
        """Get a new key or new credentials, if that may help. AWS refuses expired ones as forbidden."""
        if self.options.auth is not None:
            return await self.options.auth.renew()
        if self._refresh_key is None or not isinstance(refusal, openai.AuthenticationError):
            return False
        self._key = await self._refresh_key()
        return True

    async def _post(self, path: str, content: bytes) -> httpx2.Response:
        response = await self._sdk().post(
            path,
            cast_to=httpx2.Response,
            content=content,
            options=_WITH_KEY,
            stream=True,
            stream_cls=openai.AsyncStream[Any],
        )
        return cast("httpx2.Response", response)

    async def _current_key(self) -> str:
        return await usable_key(self._key)


_retry_by: ContextVar[float] = ContextVar("retry_by", default=math.inf)


class _Signing(httpx2.Auth):
    """An authorizer as the SDK takes it. It replaces the header with the key."""

    requires_request_body = True

    def __init__(self, auth: Authorizer) -> None:
        self._auth = auth

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        request.headers.update(await self._auth.headers(str(request.url), request.content))
        yield request


class _Sdk(openai.AsyncOpenAI):
    """Retries within the timeout: an error whose Retry-After leads beyond it is raised at once.

    After the timeout it only waits for what has arrived while the process was held up (`PeerTimeout`).
    """

    signing: _Signing | None = None
    max_wait_seconds = math.inf

    @property
    def custom_auth(self) -> httpx2.Auth | None:
        return self.signing

    def _should_retry(self, response: httpx2.Response) -> bool:
        wait = self._parse_retry_after_header(response.headers) or 0.0
        is_in_time = asyncio.get_running_loop().time() + wait < _retry_by.get() and wait <= self.max_wait_seconds
        return is_in_time and super()._should_retry(response)

    async def _sleep_for_retry(self, **attempt: Any) -> None:
        if asyncio.get_running_loop().time() >= _retry_by.get():
            raise TimeoutError
        await super()._sleep_for_retry(**attempt)


def _make_sdk(options: OpenAIOptions, key: KeySource) -> openai.AsyncOpenAI:
    timeout = httpx2.Timeout(options.timeout_seconds, connect=min(options.timeout_seconds, CONNECT_SECONDS))
    limits = httpx2.Limits(
        max_connections=options.max_connections,
        max_keepalive_connections=options.max_connections,
        keepalive_expiry=options.keepalive_seconds,
    )
    if options.base_url and not is_http_address(options.base_url):
        raise ConfigurationError(
            f"OPENAI_BASE_URL is not an address: {options.base_url!r}. Write it like http://127.0.0.1:11434/v1"
        )
    try:
        url = httpx2.URL(options.base_url or OPENAI_URL)
        sdk = _Sdk(
            api_key=key,
            base_url=url.copy_with(query=None),  # the SDK would append the path to it
            default_query=dict(url.params),
            timeout=timeout,
            max_retries=options.max_retries,
            http_client=openai.DefaultAsyncHttpxClient(
                timeout=timeout,
                limits=limits,
                verify=tls_context(),
                transport=_transport(limits),
                follow_redirects=False,  # a redirect could send the conversation elsewhere, or without TLS
            ),
        )
    except httpx2.InvalidURL as exc:
        raise ConfigurationError(f"OPENAI_BASE_URL is not an address: {options.base_url!r}") from exc
    sdk.signing = None if options.auth is None else _Signing(options.auth)
    sdk.max_wait_seconds = options.max_wait_seconds
    # The SDK's constructor replaces None with the environment's value.
    sdk.organization, sdk.project = options.organization, options.project
    return sdk


def _transport(limits: httpx2.Limits) -> httpx2.AsyncBaseTransport | None:
    """Return the transport on asyncio's sockets, or None if a proxy is configured: the SDK's own supports proxies."""
    return None if getproxies() else _PoolTransport(limits)


class _PoolTransport(httpx2.AsyncBaseTransport):
    """httpx's transport on asyncio's sockets. Errors within a body stay httpcore's, which `translate` maps as well."""

    def __init__(self, limits: httpx2.Limits) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls_context(),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=AsyncioBackend(),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        wire_request = httpcore2.Request(
            request.method,
            httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=cast("AsyncIterable[bytes]", request.stream),
            extensions=request.extensions,
        )
        try:
            response = await self._pool.handle_async_request(wire_request)
        except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError) as exc:
            # Both libraries use the same names for their errors; the SDK knows only httpx's.
            kind: type[httpx2.TransportError] = getattr(httpx2, type(exc).__name__, httpx2.TransportError)
            raise kind(str(exc)) from exc
        body = _Body(cast("AsyncIterable[bytes]", response.stream))
        return httpx2.Response(response.status, headers=response.headers, stream=body, extensions=response.extensions)

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        if (close := getattr(self._stream, "aclose", None)) is not None:
            await close()
