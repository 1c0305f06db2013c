"""Who calls: three modes, chosen at deploy time.

`iam`   Lambda has checked an AWS signature. The signer is trusted: it names its end user in `x-user-id`, or is the
        user itself.
`jwt`   The Function URL is open; every request carries a token of the configured issuer. The user is its `sub`.
`none`  A laptop: requests from this machine to this machine, nothing else.

A user's `client_id` starts with how it was proven (`user:`, `iam:`, `jwt:`, `local:`). A name sent in a header can
therefore never equal a principal's or a subject's, even after a deployment changes its mode.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from omniagent.errors import ConfigurationError, InvalidRequest, Unauthenticated
from omniagent.http.loopback import is_loopback, is_loopback_origin
from omniagent.http.tokens import TokenVerifier
from omniagent.session.manager import user_id_of
from omniagent.settings import Settings
from omniagent.tracing import bind_user

Scope = Mapping[str, Any]

USER_HEADER: Final = "x-user-id"
CATEGORY_HEADER: Final = "x-user-category"
MAX_NAME_LENGTH: Final = 256


@dataclass(frozen=True, slots=True)
class Caller:
    """A user whose identity was proven."""

    client_id: str
    category: str | None = None


class Authenticator:
    """Finds the caller of a request, or refuses it.

    `local` says that this process was started on a laptop (OMNIAGENT_LOCAL=1); the mode `none` needs it.
    """

    def __init__(self, settings: Settings, *, local: bool = False) -> None:
        self._find: Callable[[Scope], Awaitable[Caller]]
        match settings.auth_mode:
            case "iam":
                self._find = _signer
            case "jwt":
                verifier = TokenVerifier(settings.jwt_issuer, settings.jwt_audience, settings.jwt_jwks_url)
                self._find = partial(_bearer, verifier)
            case "none":
                if not local:
                    raise ConfigurationError("AUTH_MODE=none is for a laptop only: it also needs OMNIAGENT_LOCAL=1")
                self._find = _local_caller

    async def authenticate(self, scope: Scope) -> Caller:
        """Return the caller of an ASGI request, and bind its hash to logs and spans. Raises `Unauthenticated`."""
        caller = await self._find(scope)
        bind_user(user_id_of(caller.client_id))
        return caller


def lazy_authenticator(settings: Settings, *, local: bool) -> Callable[[Scope], Awaitable[Caller]]:
    """Return `authenticate` of an `Authenticator` that is made by the first request.

    A wrong setting is then a problem response and a log line instead of a function that cannot start.
    """

    @cache
    def authenticator() -> Authenticator:
        return Authenticator(settings, local=local)

    async def authenticate(scope: Scope) -> Caller:
        return await authenticator().authenticate(scope)

    return authenticate


async def _signer(scope: Scope) -> Caller:
    match _request_context(scope):
        case {"authorizer": {"iam": {"userArn": str(principal)}}} if principal:
            named = _named(scope, USER_HEADER)
            return Caller(f"user:{named}" if named else f"iam:{principal}", _named(scope, CATEGORY_HEADER))
    raise Unauthenticated("Sign the request with AWS credentials.", challenge="AWS4-HMAC-SHA256")


async def _bearer(verifier: TokenVerifier, scope: Scope) -> Caller:
    return Caller(f"jwt:{await verifier.subject(_header(scope, 'authorization'))}")


async def _local_caller(scope: Scope) -> Caller:
    """Loopback only. Also checks Host, against DNS rebinding, and Origin: other web pages must not post here.

    On Lambda no request passes: Lambda itself writes the source address and the domain name into the event.
    """
    address = (scope.get("client") or ("", 0))[0] or ""
    hosts = [_header(scope, "host"), _request_context(scope).get("domainName") or "localhost"]
    origin = _header(scope, "origin")
    is_from_here = all(is_loopback(name) for name in (address, *hosts)) and (not origin or is_loopback_origin(origin))
    if not is_from_here:
        raise Unauthenticated("Without authentication only this machine may call.", challenge="Loopback")
    return Caller(f"local:{_named(scope, USER_HEADER) or 'me'}", _named(scope, CATEGORY_HEADER))


def _request_context(scope: Scope) -> Mapping[str, Any]:
    event: Mapping[str, Any] = scope.get("aws.event") or {}
    return event.get("requestContext") or {}


def _header(scope: Scope, name: str) -> str:
    wanted = name.encode()
    values = [bytes(value) for key, value in scope["headers"] if bytes(key).lower() == wanted]
    return b",".join(values).decode("utf-8", "replace")


def _named(scope: Scope, header: str) -> str | None:
    """Return a name that a trusted caller sent. A comma is refused: it is how two headers are joined to one."""
    name = _header(scope, header)
    if not name:
        return None
    if len(name) > MAX_NAME_LENGTH or not name.isprintable() or "," in name or "\ufffd" in name:
        raise InvalidRequest(f"{header} must be 1 to {MAX_NAME_LENGTH} printable characters without a comma")
    return name
