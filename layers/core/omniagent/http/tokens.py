"""Bearer tokens (JWT), checked with PyJWT: signature, issuer, audience, client, times, and the token's use.

The issuer's published keys (JWKS) are cached, and fetched no more often than its health allows. A refresh is due when
the keys are old or a token names an unknown one. After a success, the next refresh waits `REFRESH_SECONDS`; after a
failure, it backs off exponentially from `FIRST_BACKOFF_SECONDS`. Tokens with invented key ids therefore cannot cause a
flood of requests to the issuer. While the issuer fails, keys that are not older than `KEYS_KEPT_SECONDS` stay valid.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from omniagent.errors import ConfigurationError, IdentityUnavailable, OmniAgentError, Unauthenticated
from omniagent.settings import Settings, TokenUse
from omniagent.tls import is_http_address, is_loopback

if TYPE_CHECKING:
    from jwt import PyJWK

logger = logging.getLogger(__name__)

LEEWAY_SECONDS: Final = 30
MAX_TOKEN_LENGTH: Final = 16_384
MAX_SUBJECT_LENGTH: Final = 256
_CHALLENGE: Final = 'Bearer realm="omniagent"'
# The header's `typ`. Others are for other purposes: DPoP proofs, logout tokens, security events.
_TYPES: Final = {"access": frozenset({"jwt", "at+jwt"}), "id": frozenset({"jwt"})}
# Values of Keycloak's claim `typ` that a token for each use must not have.
_OTHER_KINDS: Final = {
    "access": frozenset({"id", "refresh", "offline", "logout"}),
    "id": frozenset({"bearer", "dpop", "refresh", "offline", "logout"}),
}
# Only ID tokens have these (OpenID Connect Core).
_ID_CLAIMS: Final = ("at_hash", "c_hash")
_REASONS: Final = {
    "ExpiredSignatureError": "expired",
    "ImmatureSignatureError": "not valid yet",
    "InvalidAlgorithmError": "algorithm not allowed",
    "InvalidAudienceError": "wrong audience",
    "InvalidIssuerError": "wrong issuer",
    "InvalidSignatureError": "wrong signature",
    "MissingRequiredClaimError": "a required claim is missing",
}
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


class TokenVerifier:
    """Checks the tokens of one issuer."""

    def __init__(self, settings: Settings, keys: "SigningKeys | None" = None) -> None:
        issuer = settings.jwt_issuer
        self._clients = frozenset(filter(None, (name.strip() for name in settings.jwt_client_ids.split(","))))
        if not issuer or not (settings.jwt_audience or self._clients):
            raise ConfigurationError("AUTH_MODE=jwt needs JWT_ISSUER, and JWT_AUDIENCE or JWT_CLIENT_IDS")
        if any(character.isspace() for character in issuer):
            raise ConfigurationError("JWT_ISSUER must be one address without spaces")
        self._issuer = issuer
        self._audience = settings.jwt_audience or None
        self._use: TokenUse = settings.jwt_token_use
        self._keys = keys or SigningKeys(settings.jwt_jwks_url or f"{issuer.rstrip('/')}/.well-known/jwks.json")

    async def verify(self, authorization: str) -> dict[str, Any]:
        """Return the claims of the token in an Authorization header. Anything but a valid token is refused.

        `iss` and `sub` are texts, and together they identify the caller.
        """
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated("Send a bearer token.", challenge=_CHALLENGE, reason="no token")
        if len(token) > MAX_TOKEN_LENGTH:
            raise _invalid("too long")
        if "jwt" not in sys.modules:
            # In a thread, because it imports cryptography, which takes a while.
            await asyncio.to_thread(import_module, "jwt")
        key = await self._keys.find(self._key_id(token))
        if key is None:
            raise _invalid("unknown key")
        claims = self._decode(token, key)
        self._check_use(claims)
        self._check_client(claims)
        subject = claims["sub"]
        if not 0 < len(subject) <= MAX_SUBJECT_LENGTH or not subject.isprintable():
            detail = f"The token's sub must have 1 to {MAX_SUBJECT_LENGTH} printable characters."
            raise _refused(detail, "unusable subject")
        return claims

    def _key_id(self, token: str) -> str:
        """Return the key's id. The rest of the header must be valid before a key is looked up.

        Keys, and addresses of keys, in the token itself (`jwk`, `jku`, `x5c`, `x5u`) are ignored.
        """
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError):
            raise _invalid("unreadable") from None
        kind = header.get("typ", "JWT")
        if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in _TYPES[self._use]:
            raise self._wrong_use("wrong type")
        if header.get("alg") not in ALGORITHMS:
            raise _invalid("algorithm not allowed")
        key_id = header.get("kid")
        if not isinstance(key_id, str):
            raise _invalid("no key id")
        return key_id

    def _decode(self, token: str, key: "PyJWK") -> dict[str, Any]:
        import jwt

        required = ["exp", "iss", "sub", *(["aud"] if self._audience else [])]
        try:
            return jwt.decode(
                token,
                key,  # bound to the algorithm that the issuer published it for
                algorithms=ALGORITHMS,
                issuer=self._issuer,
                audience=self._audience,  # None: a token with an audience is for another API
                leeway=LEEWAY_SECONDS,
                options={"require": required, "enforce_minimum_key_length": True},
            )
        except jwt.ExpiredSignatureError:
            raise _refused("The token has expired.", "expired") from None
        except (jwt.PyJWTError, ArithmeticError, TypeError, ValueError) as exc:
            # Log the kind only: messages may quote the token.
            name = type(exc).__name__
            raise _invalid(_REASONS.get(name, name)) from None

    def _check_use(self, claims: Mapping[str, Any]) -> None:
        if claims.get("token_use", self._use) != self._use:  # Cognito
            raise self._wrong_use("wrong token_use")
        if str(claims.get("typ", "")).lower() in _OTHER_KINDS[self._use]:
            raise self._wrong_use("wrong typ claim")
        if self._use == "access" and any(name in claims for name in _ID_CLAIMS):
            raise self._wrong_use("an ID token")
        if "events" in claims:  # a logout token or another security event: about a user, not from one
            raise self._wrong_use("a security event")

    def _check_client(self, claims: Mapping[str, Any]) -> None:
        """Every client that the token names must be one of ours: `azp` in OpenID Connect, `client_id` in OAuth."""
        if not self._clients:
            return
        named = [claims[name] for name in ("azp", "client_id") if name in claims]
        if not named or not all(isinstance(name, str) and name in self._clients for name in named):
            raise _invalid("wrong client")

    def _wrong_use(self, reason: str) -> Unauthenticated:
        return _refused(f"The token is not an {'ID' if self._use == 'id' else 'access'} token.", reason)


def _invalid(reason: str) -> Unauthenticated:
    return _refused("The token is not valid.", reason)


def _refused(detail: str, reason: str) -> Unauthenticated:
    challenge = f'{_CHALLENGE}, error="invalid_token", error_description="{detail}"'
    return Unauthenticated(detail, challenge=challenge, reason=f"token: {reason}")


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
        from omniagent.network import open_pool  # with httpcore, which a cold start skips

        answer = bytearray()
        headers = [("accept", "application/json"), ("accept-encoding", "identity")]
        async with open_pool() as http, http.stream("GET", self._url, headers=headers) as response:
            if response.status == 200:
                async for piece in response.aiter_stream():
                    answer += piece
                    if len(answer) > MAX_ANSWER_BYTES:
                        return 200, b""
            return response.status, bytes(answer)


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
    if is_http_address(url):
        parts = urlsplit(url)
        if parts.scheme == "https" or is_loopback(parts.hostname or ""):
            return url
    raise ConfigurationError(f"JWT_JWKS_URL or JWT_ISSUER: {url!r} is not an address to read keys from over https")
