"""Errors of a model's API: what it reported becomes one of the package's errors, without its text in the log."""

import re
import ssl
import zlib
from collections.abc import Mapping

import httpcore2

from omniagent.ai.providers.llm_provider import Json
from omniagent.errors import ModelAuthError, ModelError, ModelRejected, ModelStreamBroken, ModelUnavailable

MAX_API_TEXT = 2_000
TRANSPORT_ERRORS: dict[type[Exception], type[ModelError]] = {
    httpcore2.TimeoutException: ModelUnavailable,
    httpcore2.NetworkError: ModelStreamBroken,
    httpcore2.ProtocolError: ModelStreamBroken,
    TimeoutError: ModelUnavailable,
    OSError: ModelStreamBroken,
    ssl.SSLError: ModelStreamBroken,
    zlib.error: ModelStreamBroken,
}
TRANSPORT_FAILURES = tuple(TRANSPORT_ERRORS)
_CODE = re.compile(r"[\w.:/\[\]-]{1,80}")
_STATUS = re.compile(r"[1-5]\d\d")  # a number, or its text as LiteLLM sends it
_UNAVAILABLE = re.compile(
    "(?:api|internal|internal_server|overloaded|rate_limit|server|timeout)_error"
    "|rate_limit_exceeded|service_unavailable|(?:vector_store_)?timeout"
)
_REFUSED_KEY = frozenset({"authentication_error", "invalid_api_key", "permission_error"})
_AWS_EXCEPTIONS = {
    "UnknownOperation|NotFound": 404,
    "AccessDenied|ExpiredToken|UnrecognizedClient|InvalidSignature": 403,
    "Throttling|ServiceQuota": 429,
    "Unavailable|Internal|Timeout|NotReady|ModelError|ModelStreamError": 503,
}


def reported(error: object) -> ModelError:
    """Return the error for a failure that the API reports inside an answer."""
    if not isinstance(error, dict):
        return api_error(ModelUnavailable, "the model's API reported a failure", {}, str(error))
    facts = {name: error.get(name) for name in ("code", "type", "param")}
    return api_error(_kind_of(error), "the model's API reported a failure", facts, str(error.get("message") or ""))


def aws_exception(body: Json) -> ModelError | None:
    """Return the error that a body of AWS reports, such as `{"Output": {"__type": "…#UnknownOperationException"}}`."""
    holder = body["Output"] if isinstance(body.get("Output"), dict) else body
    kind = holder.get("__type")
    if not isinstance(kind, str):
        return None
    name = kind.rpartition("#")[2]
    status = next((status for words, status in _AWS_EXCEPTIONS.items() if re.search(words, name)), 400)
    facts = {"status_code": status, "type": name}
    text = str(holder.get("message") or holder.get("Message") or "")
    return api_error(kind_of_status(status), "the model's API answered with an exception", facts, text)


def api_error(kind: type[ModelError], what: str, facts: Mapping[str, object], api_text: str) -> ModelError:
    """Return an error of this kind. Its message names the facts that are codes, and the length of the API's text."""
    known = [f"{name} {short_code(value)}" for name, value in facts.items() if value is not None]
    if api_text:
        known.append(f"{len(api_text)} characters of text")
    status, param = facts.get("status_code"), facts.get("param")
    return kind(
        f"{what} ({', '.join(known)})" if known else what,
        api_text=api_text,
        api_status=status if isinstance(status, int) else None,
        param=param if isinstance(param, str) else "",
    )


def transport_error(exc: Exception, kind: type[ModelError] | None = None) -> ModelError:
    """Return the error for a failure of the transport, of its own kind unless another is given."""
    kind = kind or next(TRANSPORT_ERRORS[base] for base in type(exc).__mro__ if base in TRANSPORT_ERRORS)
    is_silent = isinstance(exc, TimeoutError | httpcore2.TimeoutException)
    text = "the model's API was silent for too long" if is_silent else str(exc)
    error = kind(f"{type(exc).__name__}: {text}")
    error.__cause__ = exc
    return error


def short_code(value: object) -> str:
    """Return a code that is a name. Other text is replaced with its length: it must not get into the log."""
    text = str(value)
    return text if _CODE.fullmatch(text) else f"of {len(text)} characters"


def _kind_of(error: Json) -> type[ModelError]:
    names = [str(name) for name in (error.get("code"), error.get("type")) if name is not None]
    if status := next(filter(_STATUS.fullmatch, names), None):
        return kind_of_status(int(status))
    if _REFUSED_KEY.intersection(names):
        return ModelAuthError
    is_unavailable = any(map(_UNAVAILABLE.fullmatch, names)) or set(names) <= {"error"}
    return ModelUnavailable if is_unavailable else ModelRejected


def kind_of_status(status: int) -> type[ModelError]:
    if status in {401, 403}:
        return ModelAuthError
    return ModelUnavailable if status in {408, 409, 429} or status >= 500 else ModelRejected
