"""Every failure of the OpenAI SDK and its transport, translated at one boundary.

`str(error)` keeps what the API said, for the log. It is never public.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from anyio import EndOfStream

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
    ssl.SSLError: ModelStreamBroken,
    EndOfStream: ModelStreamBroken,
}

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
        raise translate(exc) from exc


def translate(exc: Exception) -> ModelError:
    """Return our error for one of the SDK's: that of its class, or of the nearest class above it."""
    kind = next(TRANSLATIONS[base] for base in type(exc).__mro__ if base in TRANSLATIONS)
    request_id = getattr(exc, "request_id", None)
    where = f" (request {request_id})" if request_id else ""
    return kind(f"{type(exc).__name__}: {exc}{where}")


def reported(error: object) -> ModelError:
    """Return the error for a failure that the API reports inside an answer."""
    if not isinstance(error, dict):
        return ModelUnavailable(f"the model's API reported: {error}")
    return _kind_of(error)(f"the model's API reported {error.get('code')}: {error.get('message')}")


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
