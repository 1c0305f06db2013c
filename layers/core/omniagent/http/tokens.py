"""Bearer tokens, checked with PyJWT against the issuer's published keys.

An issuer that cannot be reached (`IdentityUnavailable`) is kept apart from one that refuses to publish keys at the
configured address (`ConfigurationError`).
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from omniagent.errors import ConfigurationError, IdentityUnavailable, OmniAgentError, Unauthenticated
from omniagent.http.loopback import is_loopback

if TYPE_CHECKING:
    from jwt import PyJWKClient

logger = logging.getLogger(__name__)

# Asymmetric ones only: with a shared-secret algorithm the issuer's public key would be a forger's secret.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LEEWAY_SECONDS: Final = 30
KEYS_LIFE_SECONDS: Final = 600
# Tokens with invented key ids must not make every request ask the issuer.
REFRESH_INTERVAL_SECONDS: Final = 30
FETCH_TIMEOUT_SECONDS: Final = 5
MAX_SUBJECT_LENGTH: Final = 256
_WRONG_ADDRESS: Final = (400, 401, 403, 404, 405, 410)
_CHALLENGE: Final = 'Bearer realm="omniagent"'


class TokenVerifier:
    """Checks tokens of one issuer and one audience. The keys are cached, and read again for an unknown key id."""

    def __init__(
        self,
        issuer: str,
        audience: str,
        jwks_url: str = "",
        *,
        refresh_interval_seconds: float = REFRESH_INTERVAL_SECONDS,
    ) -> None:
        if not (issuer and audience):
            raise ConfigurationError("AUTH_MODE=jwt needs JWT_ISSUER and JWT_AUDIENCE")
        self._issuer = issuer
        self._audience = audience
        self._jwks_url = _checked(jwks_url or f"{issuer.rstrip('/')}/.well-known/jwks.json")
        self._refresh_interval_seconds = refresh_interval_seconds
        self._keys: PyJWKClient | None = None

    async def subject(self, authorization: str) -> str:
        """Return the `sub` of the token in an Authorization header. Anything but a valid token is refused."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated("Send a bearer token.", challenge=_CHALLENGE)
        # In a thread: the keys may have to be fetched, and the first call imports cryptography.
        return await asyncio.to_thread(self._verify, token.strip())

    def _verify(self, token: str) -> str:
        import jwt  # only this mode needs it, and it takes a while to import

        try:
            claims = self._decode(token)
        except jwt.ExpiredSignatureError:
            raise _refused("The token has expired.") from None
        except (jwt.PyJWKClientConnectionError, jwt.PyJWKSetError) as exc:
            raise _unreadable(self._jwks_url, exc) from exc
        except jwt.PyJWTError as exc:
            # The kind is enough for the log: messages may quote the token.
            logger.info("token refused", extra={"reason": type(exc).__name__})
            raise _refused("The token is not valid.") from None
        subject: str = claims["sub"]
        if not 0 < len(subject) <= MAX_SUBJECT_LENGTH or not subject.isprintable():
            raise _refused(f"The token's sub must have 1 to {MAX_SUBJECT_LENGTH} printable characters.")
        return subject

    def _decode(self, token: str) -> dict[str, Any]:
        import jwt

        header = jwt.get_unverified_header(token)
        if header.get("alg") not in ALGORITHMS or not isinstance(header.get("kid"), str):
            raise jwt.InvalidAlgorithmError
        return jwt.decode(
            token,
            self._key(header["kid"]),  # bound to the algorithm that the issuer published it for
            algorithms=ALGORITHMS,
            issuer=self._issuer,
            audience=self._audience,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iss", "aud", "sub"], "enforce_minimum_key_length": True},
        )

    def _key(self, key_id: str) -> Any:
        import jwt

        if self._keys is None:
            self._keys = jwt.PyJWKClient(
                self._jwks_url,
                lifespan=KEYS_LIFE_SECONDS,
                timeout=FETCH_TIMEOUT_SECONDS,
                cooldown_duration=self._refresh_interval_seconds,
            )
        try:
            return self._keys.get_signing_key(key_id)
        except ValueError as exc:
            raise IdentityUnavailable(f"{self._jwks_url}: not JSON") from exc


def _unreadable(url: str, exc: Exception) -> OmniAgentError:
    """Tell a wrong address from an issuer that cannot answer for the moment."""
    status = getattr(exc.__cause__ or exc.__context__, "code", None)
    if isinstance(status, int) and status in _WRONG_ADDRESS:
        return ConfigurationError(f"JWT_JWKS_URL or JWT_ISSUER: {url} answers {status}")
    return IdentityUnavailable(f"{url}: {exc}")


def _refused(detail: str) -> Unauthenticated:
    return Unauthenticated(detail, challenge=f'{_CHALLENGE}, error="invalid_token", error_description="{detail}"')


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        return url
    raise ConfigurationError(f"the issuer's keys must be read over https, not from {url}")
