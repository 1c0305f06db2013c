"""The issuer's published keys (JWKS), cached, and fetched no more often than its health allows.

A refresh is due when the keys are old or a token names an unknown one. After a success, the next refresh waits
`REFRESH_SECONDS`; after a failure, it backs off exponentially from `FIRST_BACKOFF_SECONDS`. Tokens with invented key
ids therefore cannot cause a flood of requests to the issuer. While the issuer fails, keys that are not older than
`KEYS_KEPT_SECONDS` stay valid.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from omniagent.errors import ConfigurationError, IdentityUnavailable, OmniAgentError
from omniagent.http.loopback import is_loopback
from omniagent.tls import tls_context

if TYPE_CHECKING:
    from jwt import PyJWK

logger = logging.getLogger(__name__)

# Asymmetric ones only: with a shared-secret algorithm the issuer's public key would be a forger's secret.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
KEYS_LIFE_SECONDS: Final = 600
KEYS_KEPT_SECONDS: Final = 3600
REFRESH_SECONDS: Final = 30.0
FIRST_BACKOFF_SECONDS: Final = 1.0
# The whole exchange, however slowly the response arrives.
FETCH_TIMEOUT_SECONDS: Final = 4.0
MAX_ANSWER_BYTES: Final = 512_000
MAX_KEYS: Final = 100


class SigningKeys:
    """The keys at one address. Concurrent callers share one fetch.

    Uses the wall clock, so that keys also age in a frozen process.
    """

    def __init__(
        self, url: str, *, clock: Callable[[], float] = time.time, timeout_seconds: float = FETCH_TIMEOUT_SECONDS
    ) -> None:
        self._url = _checked(url)
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._keys: dict[str, PyJWK] = {}
        self._fetched_at = float("-inf")
        self._next_fetch = float("-inf")
        self._pause = FIRST_BACKOFF_SECONDS
        self._failure: OmniAgentError | None = None
        self._fetching = asyncio.Lock()

    async def find(self, key_id: str) -> "PyJWK | None":
        """Return the key of this id, None if the issuer does not publish it.

        Raises `IdentityUnavailable` while that cannot be known, `ConfigurationError` if the address is wrong.
        """
        key = self._keys.get(key_id)
        if key is not None and self._age() < KEYS_LIFE_SECONDS:
            return key
        if key is None or self._age() >= KEYS_KEPT_SECONDS or not self._fetching.locked():
            await self._refresh()
            key = self._keys.get(key_id)
        if key is not None and self._age() < KEYS_KEPT_SECONDS:
            return key
        if (failure := self._failure) is not None:
            if isinstance(failure, IdentityUnavailable):
                failure.retry_after = max(1.0, self._next_fetch - self._clock())
            raise failure.with_traceback(None)
        return None

    def _age(self) -> float:
        return self._clock() - self._fetched_at

    async def _refresh(self) -> None:
        """Fetch the keys, unless it is too early. A failure is kept for callers that need a key meanwhile."""
        async with self._fetching:
            # A longer wait means that the clock was set back.
            if 0 < self._next_fetch - self._clock() <= REFRESH_SECONDS:
                return
            try:
                self._keys = await self._fetch()
            except (ConfigurationError, IdentityUnavailable) as exc:
                self._failure = exc
                self._next_fetch = self._clock() + self._pause
                self._pause = min(2 * self._pause, REFRESH_SECONDS)
                logger.warning("issuer's keys not fetched", extra={"reason": str(exc), "keys": len(self._keys)})
            else:
                self._failure, self._fetched_at = None, self._clock()
                self._next_fetch, self._pause = self._fetched_at + REFRESH_SECONDS, FIRST_BACKOFF_SECONDS

    async def _fetch(self) -> "dict[str, PyJWK]":
        try:
            async with asyncio.timeout(self._timeout_seconds):
                status, answer = await self._get()
        except Exception as exc:
            # Every Exception: not only the HTTP client, but also TLS, sockets and anyio raise their own.
            raise IdentityUnavailable(f"{self._url}: {type(exc).__name__}") from exc
        if status // 100 in (3, 4) and status != 429:  # not transient: there are no keys here, or they are elsewhere
            raise ConfigurationError(f"JWT_JWKS_URL or JWT_ISSUER: {self._url} answers {status}")
        if status != 200:
            raise IdentityUnavailable(f"{self._url} answers {status}")
        # In a thread: the first key imports cryptography.
        keys = await asyncio.to_thread(_read_keys, answer)
        if not keys:
            raise IdentityUnavailable(f"{self._url}: no usable keys")
        return keys

    async def _get(self) -> tuple[int, bytes]:
        """Redirects are not followed, and the response is not decompressed, against decompression bombs."""
        import httpx2  # shared with the clients of AWS and of the model, which load it anyway

        answer = bytearray()
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        async with (
            httpx2.AsyncClient(timeout=self._timeout_seconds, trust_env=False, verify=tls_context()) as http,
            http.stream("GET", self._url, headers=headers) as response,
        ):
            if response.status_code == 200:
                async for piece in response.aiter_raw():
                    answer += piece
                    if len(answer) > MAX_ANSWER_BYTES:
                        return 200, b""
            return response.status_code, bytes(answer)


def _read_keys(answer: bytes) -> "dict[str, PyJWK]":
    """Return the keys that can check a signature. Other entries are ignored."""
    import jwt  # only this mode needs it, and it takes a while to import

    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    found = document.get("keys") if isinstance(document, dict) else None
    keys: dict[str, PyJWK] = {}
    for item in found[:MAX_KEYS] if isinstance(found, list) else ():
        # PyJWT and cryptography raise many kinds of errors. One bad key must not affect the others.
        with suppress(Exception):
            key = jwt.PyJWK(item)
            # A published private key is compromised.
            is_usable = item.get("use") in (None, "sig") and "d" not in item and key.algorithm_name in ALGORITHMS
            if is_usable and isinstance(item.get("kid"), str):
                keys.setdefault(item["kid"], key)
    return keys


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise ConfigurationError(f"JWT_JWKS_URL or JWT_ISSUER: {url!r} is not an address") from None
    if host and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        return url
    raise ConfigurationError(f"the issuer's keys must be read over https, not from {url!r}")
