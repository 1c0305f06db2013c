"""Every failure of the OpenAI SDK and its transport, translated at one boundary.

`str(error)` is for the log: what kind of failure, the API's code for it and the request's id. The API's own text may
quote the prompt, so it is kept beside it in `error.api_text`, which only traces with content and local mode show.
"""

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from omniagent.ai.providers.openai.lean_openai import httpx2, openai
from omniagent.ai.providers.sse_decoder import Json
from omniagent.errors import (
    ModelAuthError,
    ModelError,
    ModelRejected,
    ModelStreamBroken,
    ModelUnavailable,
)

TRANSLATIONS: dict[type[Exception], type[ModelError]] = {
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
    # The SDK wraps what its transport raises before the first byte, not what it raises in the middle of a stream.
    httpx2.TimeoutException: ModelUnavailable,
    httpx2.RequestError: ModelStreamBroken,
    TimeoutError: ModelUnavailable,
    OSError: ModelStreamBroken,
    ssl.SSLError: ModelStreamBroken,
    EndOfStream: ModelStreamBroken,
    BrokenResourceError: ModelStreamBroken,
    ClosedResourceError: ModelStreamBroken,
}

_CODE = re.compile(r"[\w.:\[\]-]{1,80}")
_UNAVAILABLE = frozenset(
    {
        "internal_error",
        "internal_server_error",
        "overloaded_error",
        "rate_limit_error",
        "rate_limit_exceeded",
        "server_error",
        "service_unavailable",
        "timeout",
        "vector_store_timeout",
    }
)
_REFUSED_KEY = frozenset({"authentication_error", "invalid_api_key", "permission_error"})


@contextmanager
def translated() -> Iterator[None]:
    """Raise the package's own error for any failure of the model's API."""
    try:
        yield
    except tuple(TRANSLATIONS) as exc:
        error = translate(exc)
        # A traceback in the log would show the text of the SDK's error.
        raise error from (None if error.api_text else exc)


def translate(exc: Exception) -> ModelError:
    """Return our error for one of the SDK's: that of its class, or of the nearest class above it."""
    kind = next(TRANSLATIONS[base] for base in type(exc).__mro__ if base in TRANSLATIONS)
    if isinstance(exc, openai.APIStatusError):
        facts = {name: getattr(exc, name, None) for name in ("status_code", "code", "type", "param", "request_id")}
        return _error(kind, type(exc).__name__, facts, str(getattr(exc, "message", exc)))
    if isinstance(exc, TimeoutError | openai.APITimeoutError | httpx2.TimeoutException):
        return kind(f"{type(exc).__name__}: the model's API was silent for too long")
    return kind(f"{type(exc).__name__}: {exc}")


def reported(error: object) -> ModelError:
    """Return the error for a failure that the API reports inside an answer."""
    if not isinstance(error, dict):
        return _error(ModelUnavailable, "the model's API reported a failure", {}, str(error))
    facts = {name: error.get(name) for name in ("code", "type", "param")}
    return _error(_kind_of(error), "the model's API reported a failure", facts, str(error.get("message") or ""))


def _error(kind: type[ModelError], what: str, facts: Mapping[str, object], api_text: str) -> ModelError:
    known = [f"{name} {_short(value)}" for name, value in facts.items() if value is not None]
    if api_text:
        known.append(f"{len(api_text)} characters of text")
    return kind(f"{what} ({', '.join(known)})" if known else what, api_text=api_text)


def _short(value: object) -> str:
    """Codes are names. A server that puts a sentence there does not get it into the log."""
    text = str(value)
    return text if _CODE.fullmatch(text) else f"of {len(text)} characters"


def _kind_of(error: Json) -> type[ModelError]:
    names = {error.get("code"), error.get("type")}
    if status := next((name for name in names if isinstance(name, int)), None):
        return _kind_of_status(status)
    if names & _REFUSED_KEY:
        return ModelAuthError
    if names & _UNAVAILABLE or names <= {None, "error"}:
        return ModelUnavailable
    return ModelRejected


def _kind_of_status(status: int) -> type[ModelError]:
    if status in {401, 403}:
        return ModelAuthError
    return ModelUnavailable if status in {408, 409, 429} or status >= 500 else ModelRejected
