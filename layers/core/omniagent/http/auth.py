"""Authentication in one of three modes, chosen at deploy time.

`iam`   Lambda or API Gateway has checked an AWS signature. The signer is the user, unless the operator trusts it to
        name its end user in `x-user-id` (TRUSTED_PRINCIPALS).
`jwt`   The Function URL is open; every request carries a token of the configured issuer. The user is its `iss` and
        `sub`.
`none`  A laptop: requests from this machine to this machine, nothing else.

A user's `client_id` starts with how it was proven (`user:`, `iam:`, `jwt:`, `local:`). A name sent in a header can
therefore never equal a principal's or a subject's, even after a deployment changes its mode.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from omniagent.errors import ConfigurationError, Forbidden, InvalidRequest, RequestError, Unauthenticated
from omniagent.http.tokens import TokenVerifier
from omniagent.session.ids import is_id, user_id_of
from omniagent.settings import Settings
from omniagent.tls import is_loopback, is_loopback_origin
from omniagent.tracing import bind_request

Scope = Mapping[str, Any]

logger = logging.getLogger(__name__)

USER_HEADER: Final = "x-user-id"
CATEGORY_HEADER: Final = "x-user-category"
MAX_USER_NAME_LENGTH: Final = 256

# IAM allows commas in names as well; such a name cannot be in a list.
_NAME: Final = r"[\w+=.@-]+"
_ROLE: Final = re.compile(rf"arn:(aws[a-z-]*):iam::(\d{{12}}):role/(?:{_NAME}/)*({_NAME})", re.ASCII)
_ALL_SESSIONS: Final = re.compile(rf"arn:(aws[a-z-]*):sts::(\d{{12}}):assumed-role/({_NAME})/\*", re.ASCII)
_ONE_PRINCIPAL: Final = re.compile(
    rf"arn:aws[a-z-]*:(?:iam::\d{{12}}:user/(?:{_NAME}/)*{_NAME}"
    rf"|sts::\d{{12}}:(?:assumed-role/{_NAME}/{_NAME}|federated-user/{_NAME}))",
    re.ASCII,
)
_NOTHING: Final = "(?!)"
# All users of a Cognito identity pool sign with the role session of this name.
_SHARED_SESSION: Final = "CognitoIdentityCredentials"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated user. `claims` are verified: a token's claims, or a signer's ARN."""

    client_id: str
    category: str | None = None
    claims: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


Authenticate = Callable[[Request], Awaitable[Caller]]
"""Returns the caller of a request. Raises `Unauthenticated` or `Forbidden`."""


def trusted_principals(listed: str) -> re.Pattern[str]:
    """Return what the ARNs of principals that may name their end user match as a whole.

    An entry is a role (all its sessions; `assumed-role/NAME/*` is equivalent), one session of a role, a user or a
    federated user. There are no other wildcards. A session that many people share must be listed itself.
    """
    patterns = []
    for entry in filter(None, (part.strip() for part in listed.split(","))):
        if role := _ROLE.fullmatch(entry) or _ALL_SESSIONS.fullmatch(entry):
            # Without the role's path, which an assumed role's ARN does not have. Names are unique without it.
            partition, account, name = map(re.escape, role.groups())
            patterns.append(rf"arn:{partition}:sts::{account}:assumed-role/{name}/(?!{_SHARED_SESSION}$)[^/\s]+")
        elif _ONE_PRINCIPAL.fullmatch(entry):
            patterns.append(re.escape(entry))
        else:
            raise ConfigurationError(
                f"TRUSTED_PRINCIPALS: {entry!r} is not the ARN of a role, a user or an assumed role; "
                "accounts, account roots and patterns are not taken"
            )
    return re.compile("|".join(patterns) or _NOTHING, re.ASCII)


def authenticator(settings: Settings, *, local: bool = False) -> "Callable[[Scope], Awaitable[Caller]]":
    """Return what finds the caller of an ASGI request, as the setting AUTH_MODE says, or refuses it.

    `local` says that this process was started on a laptop (OMNIAGENT_LOCAL=1); the mode `none` needs it. A wrong
    setting refuses every request: it is a problem response, not a function that cannot start.
    """
    try:
        if settings.auth_mode == "iam":
            return partial(_signer, trusted_principals(settings.trusted_principals))
        if settings.auth_mode == "jwt":
            return partial(_bearer, TokenVerifier(settings))
    except ConfigurationError as error:
        return partial(_misconfigured, error)
    if local:
        return _local_caller
    needs = "AUTH_MODE=none is for a laptop only: it also needs OMNIAGENT_LOCAL=1"
    return partial(_misconfigured, ConfigurationError(needs))


async def find_caller(request: Request) -> Caller:
    """Authenticate a request to one of our apps, and bind the caller's hash to logs and spans.

    Raises `Unauthenticated`, or `Forbidden` for a caller that may not act for others.
    """
    caller: Caller = await request.app.state.authenticate(request)
    if not isinstance(caller, Caller) or not caller.client_id:
        raise ConfigurationError(f"authenticate must return a Caller with the user's name, not {type(caller).__name__}")
    bind_request(user_id=user_id_of(caller.client_id))
    if (session_id := request.path_params.get("session_id")) and is_id(session_id):
        bind_request(session_id=session_id)
    if (mode := request.app.state.auth_mode) != "none":
        signer = {"signer": user_id_of(f"iam:{caller.claims['userArn']}")} if mode == "iam" else {}
        logger.info("caller authenticated", extra={"auth_mode": mode, **signer})
    return caller


async def _misconfigured(error: ConfigurationError, _: Scope) -> Caller:
    raise error.with_traceback(None)


async def _signer(trusted: re.Pattern[str], scope: Scope) -> Caller:
    """Return the user that the principal acts for: the one it names, or itself."""
    match scope.get("aws.event"):
        # Payload 2.0, then 1.0. AWS writes both fields; a caller can set neither.
        case {
            "requestContext": {"authorizer": {"iam": {"userArn": str(principal)}}}
            | {"identity": {"userArn": str(principal)}}
        } if principal:
            signer = f"iam:{principal}"
        case _:
            raise Unauthenticated(
                "Sign the request with AWS credentials.", challenge="AWS4-HMAC-SHA256", reason="no AWS signature"
            )
    try:
        sent = [header for header in (USER_HEADER, CATEGORY_HEADER) if _header(scope, header) is not None]
        if sent and not trusted.fullmatch(principal):
            raise Forbidden(
                f"You may not send {sent[0]}. Only principals that the operator trusts may act for other users.",
                reason="principal not trusted",
            )
        named = _named(scope, USER_HEADER)
        if named is None and principal.endswith(f"/{_SHARED_SESSION}"):
            raise Forbidden(
                "All users of a Cognito identity pool sign with the same ARN, so they cannot be distinguished. "
                "Call through a back end, or send a token to a deployment in jwt mode.",
                reason="principal shared by many",
            )
        client_id = signer if named is None else f"user:{named}"
        return Caller(client_id, _named(scope, CATEGORY_HEADER), claims={"userArn": principal})
    except RequestError:
        bind_request(user_id=user_id_of(signer))  # the refusal is logged with it
        raise


async def _bearer(verifier: TokenVerifier, scope: Scope) -> Caller:
    claims = await verifier.verify(_header(scope, "authorization") or "")
    # An issuer has no space, so no other pair gives the same text.
    return Caller(f"jwt:{claims['iss']} {claims['sub']}", claims=claims)


async def _local_caller(scope: Scope) -> Caller:
    """Loopback only. Also checks Host, against DNS rebinding, and Origin: other web pages must not post here.

    On Lambda no request passes: Lambda itself writes the source address and the domain name into the event.
    """
    address = (scope.get("client") or ("", 0))[0] or ""
    context = (scope.get("aws.event") or {}).get("requestContext") or {}
    hosts = [_header(scope, "host") or "", context.get("domainName") or "localhost"]
    origin = _header(scope, "origin")
    is_from_here = all(is_loopback(name) for name in (address, *hosts)) and (not origin or is_loopback_origin(origin))
    if not is_from_here:
        raise Unauthenticated(
            "Without authentication, only this machine may call.", challenge="Loopback", reason="not from this machine"
        )
    return Caller(f"local:{_named(scope, USER_HEADER) or 'me'}", _named(scope, CATEGORY_HEADER))


def _header(scope: Scope, name: str) -> str | None:
    wanted = name.encode()
    values = [bytes(value) for key, value in scope["headers"] if bytes(key).lower() == wanted]
    return b",".join(values).decode("utf-8", "replace") if values else None


def _named(scope: Scope, header: str) -> str | None:
    """Return a name that a trusted caller sent. A comma is refused: two headers are joined with one.

    An empty name is also refused: a back end that lost its user's name must not act as itself.
    """
    name = _header(scope, header)
    if name is None:
        return None
    plain = name.isprintable() and name == name.strip() and "," not in name and "\ufffd" not in name
    if not 0 < len(name) <= MAX_USER_NAME_LENGTH or not plain:
        raise InvalidRequest(f"{header} must be 1 to {MAX_USER_NAME_LENGTH} printable characters without a comma")
    return name
