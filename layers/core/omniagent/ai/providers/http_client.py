"""A client for a model's HTTP API on httpcore alone: an SDK would multiply the import time of a cold start."""

import asyncio
import json
import math
import random
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2

from omniagent.ai.providers.api_errors import (
    MAX_API_TEXT,
    TRANSPORT_FAILURES,
    api_error,
    kind_of_status,
    transport_error,
)
from omniagent.ai.providers.llm_provider import Json, KeySource
from omniagent.ai.providers.silence import peer_timeout
from omniagent.ai.providers.stream_reader import read_events
from omniagent.errors import ConfigurationError, ModelAuthError, ModelError, ModelUnavailable
from omniagent.network import AsyncioBackend, tls_context

CONNECT_SECONDS: Final = 5.0
SHORTEST_BACKOFF_SECONDS: Final = 0.5
LONGEST_BACKOFF_SECONDS: Final = 8.0
Headers = Mapping[str, str]
"""Headers of a response, by their names in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """The options that all providers with an HTTP API have."""

    auth: "Authorizer | None" = None
    """Signs requests, instead of a key."""
    api_key: str | KeySource | None = field(default=None, repr=False)
    """The key, or an async function that returns it and is called before each request."""
    refresh_key: KeySource | None = field(default=None, repr=False)
    """Called once if the key is refused; the request is repeated with the key that it returns."""
    base_url: str | None = None
    """A compatible server. It may need no key."""
    timeout_seconds: float = 60.0
    """Maximum silence: before the first byte, all retries included, and between any two bytes after it."""
    max_retries: int = 2
    """Retries of a request that failed before its first byte, within the timeout."""
    max_wait_seconds: float = math.inf
    """The longest pause before a retry. If the API asks for a longer one, the failure is raised."""
    max_connections: int = 100
    keepalive_seconds: float = 30.0
    """How long an idle connection is kept: long enough for the next step or turn to save the handshake."""
    temperature: float | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    """None leaves it to the API, whose default is to allow them; some models refuse the parameter."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the request, such as `{"reasoning": {"effort": "low"}}`."""
    verbose_errors: bool = False
    """Put the API's error text, which may quote the prompt, into error messages, and so into logs."""
    on_refused_field: Callable[[str], None] | None = None
    """Called with the name of a field that the API refused and that was left out."""


class Authorizer(Protocol):
    """Adds to a request what its server demands."""

    async def headers(self, url: str, content: bytes) -> Mapping[str, str]:
        """Return the headers that authorize this request."""

    async def renew(self) -> bool:
        """Get new credentials, because the server refused these. Returns whether the request may be repeated."""


@dataclass(slots=True, repr=False)
class KeyHeader:
    """A key in a header, and what comes before it there."""

    name: str
    key: str | KeySource
    refresh: KeySource | None = None
    prefix: str = ""

    async def headers(self, url: str, content: bytes) -> Mapping[str, str]:  # noqa: ARG002 - a key fits every request
        key = (self.key if isinstance(self.key, str) else await self.key()).strip()
        if not key or not key.isascii() or not key.isprintable():  # the transport's own error would show it
            raise ConfigurationError("The key for the model's API is empty or has characters that no key has")
        return {self.name: f"{self.prefix}{key}"}

    async def renew(self) -> bool:
        if self.refresh is None:
            return False
        self.key = await self.refresh()
        return True


class HttpClient:
    """One connection pool per event loop: connections are bound to a loop. Reads only proxies from the environment."""

    def __init__(self, base_url: str, options: ApiOptions, auth: Authorizer, headers: Mapping[str, str]) -> None:
        self._base_url = urlsplit(base_url)
        self._options = options
        self._auth = auth
        self._headers = {"content-type": "application/json", "user-agent": "omniagent", **headers}
        self._pools: dict[asyncio.AbstractEventLoop, httpcore2.AsyncConnectionPool] = {}

    async def open(self, path: str, body: Json) -> AsyncGenerator[Iterator[Json], None]:
        """Send a request. Returns the answer's events once it is accepted."""
        first_byte_by = asyncio.get_running_loop().time() + self._options.timeout_seconds
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=str)
        content = text.encode("utf-8", "replace")  # a tool's output may have a lone surrogate
        response, headers = await self._send("POST", path, content, first_byte_by)
        is_compressed = "content-encoding" in headers  # by a proxy: nobody asked for it
        return read_events(
            _decompressed(response) if is_compressed else response.aiter_stream(),
            response.aclose,
            content_type=headers.get("content-type", ""),
            first_byte_by=first_byte_by,
        )

    async def get(self, path: str) -> Any:
        """Return the JSON at a path, or None if the answer is something else."""
        by = asyncio.get_running_loop().time() + self._options.timeout_seconds
        response, _ = await self._send("GET", path, b"", by)
        try:
            return json.loads(await response.aread())
        except TRANSPORT_FAILURES as exc:
            raise transport_error(exc) from exc
        except ValueError:
            return None
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        if (pool := self._pools.pop(asyncio.get_running_loop(), None)) is not None:
            await pool.aclose()

    async def _send(self, method: str, path: str, content: bytes, by: float) -> tuple[httpcore2.Response, Headers]:
        """Send the request until it is accepted or refused for good, or the time is over."""
        url = self._base_url._replace(path=self._base_url.path.rstrip("/") + path).geturl()
        retries, pause, may_renew = self._options.max_retries, SHORTEST_BACKOFF_SECONDS, True
        try:
            async with peer_timeout(by):
                while True:
                    wait = pause * random.uniform(0.75, 1)  # noqa: S311 - spreads retries, hides nothing
                    try:
                        response = await self._request(method, url, content)
                        headers = {
                            name.decode("latin-1").lower(): text.decode("latin-1") for name, text in response.headers
                        }
                        if response.status < 300:
                            return response, headers
                        error = await _refusal(response, headers)
                        if isinstance(error, ModelAuthError) and may_renew and await self._auth.renew():
                            may_renew = False
                            continue
                    except TRANSPORT_FAILURES as exc:
                        error = transport_error(exc, ModelUnavailable)
                    else:
                        advice = headers.get("x-should-retry")
                        may_retry = isinstance(error, ModelUnavailable) if advice is None else advice == "true"
                        if not may_retry:
                            raise error
                        wait = _retry_after(headers) or wait
                    is_too_late = asyncio.get_running_loop().time() + wait >= by
                    if retries <= 0 or wait > self._options.max_wait_seconds or is_too_late:
                        raise error
                    await asyncio.sleep(wait)
                    retries, pause = retries - 1, min(pause * 2, LONGEST_BACKOFF_SECONDS)
        except TimeoutError as exc:  # the time is over
            raise transport_error(exc) from exc

    async def _request(self, method: str, url: str, content: bytes) -> httpcore2.Response:
        seconds = self._options.timeout_seconds
        timeout = {"connect": min(seconds, CONNECT_SECONDS), "read": seconds, "write": seconds, "pool": seconds}
        authorization = await self._auth.headers(url, content)
        own = {"host": urlsplit(url).netloc} | ({"content-length": str(len(content))} if content else {})
        request = httpcore2.Request(
            method,
            url,
            headers=[*{**own, **self._headers, **authorization}.items()],
            content=content,
            extensions={"timeout": timeout},
        )
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            for closed in [each for each in self._pools if each.is_closed()]:
                del self._pools[closed]
            self._pools[loop] = _new_pool(self._base_url.geturl(), self._options)
        return await self._pools[loop].handle_async_request(request)


def _new_pool(url: str, options: ApiOptions) -> httpcore2.AsyncConnectionPool:
    parts = urlsplit(url)
    proxies = {} if proxy_bypass(parts.hostname or "") else getproxies()
    proxy = urlsplit(proxies.get(parts.scheme) or proxies.get("all") or "")
    login = (unquote(proxy.username), unquote(proxy.password or "")) if proxy.username else None
    return httpcore2.AsyncConnectionPool(
        ssl_context=tls_context(),
        proxy=httpcore2.Proxy(proxy.geturl(), login) if proxy.hostname else None,
        max_connections=options.max_connections,
        max_keepalive_connections=options.max_connections,
        keepalive_expiry=options.keepalive_seconds,
        network_backend=AsyncioBackend(),
    )


async def _decompressed(response: httpcore2.Response) -> AsyncGenerator[bytes, None]:
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib
    async with aclosing(response.aiter_stream()) as chunks:
        async for chunk in chunks:
            yield decoder.decompress(chunk)


async def _refusal(response: httpcore2.Response, headers: Headers) -> ModelError:
    """Return the error of a response that is none of the model's. Its connection is free again."""
    try:
        content = await response.aread()
    finally:
        await response.aclose()
    text = content.decode("utf-8", "replace")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    answer = answer if isinstance(answer, dict) else {}
    error = answer["error"] if isinstance(answer.get("error"), dict) else answer
    ids = (headers.get(name) for name in ("request-id", "x-request-id", "x-amzn-requestid"))
    request_id = answer.get("request_id") or next(filter(None, ids), None)
    kind = error.get("type") or headers.get("x-amzn-errortype", "").partition(":")[0] or None
    facts = {"status_code": response.status, "code": error.get("code"), "type": kind, "param": error.get("param")}
    facts["request_id"] = request_id
    message = error.get("message") or error.get("Message")
    api_text = (message if isinstance(message, str) else text)[:MAX_API_TEXT]
    return api_error(kind_of_status(response.status), "the model's API refused the request", facts, api_text)


def _retry_after(headers: Headers) -> float:
    """Return how many seconds the API asks to wait."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(ValueError):  # a date
            if (seconds := float(headers.get(name) or 0) * unit) > 0:
                return seconds
    return 0.0
