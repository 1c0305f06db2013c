"""Bearer tokens (JWT), checked with PyJWT: signature, issuer, audience, client, times, and the token's use."""

import asyncio
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from omniagent.errors import ConfigurationError, Unauthenticated
from omniagent.http.signing_keys import ALGORITHMS, SigningKeys
from omniagent.settings import Settings, TokenUse

if TYPE_CHECKING:
    from jwt import PyJWK

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


class TokenVerifier:
    """Checks the tokens of one issuer."""

    def __init__(self, settings: Settings, keys: SigningKeys | None = None) -> None:
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
