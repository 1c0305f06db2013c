"""Errors as the OpenAI API words them."""

from typing import Any

Json = dict[str, Any]


class ApiError(Exception):
    """An answer with an error status and OpenAI's error body."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: Json = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    @property
    def headers(self) -> dict[str, str]:
        """Ask for a quick retry. The SDK overrides a wait of zero with its own, so name the shortest one."""
        return {"retry-after": "0", "retry-after-ms": "1"} if self.status in {429, 500, 503} else {}


def planned(status: int) -> ApiError:
    """The failure that a prompt asked for."""
    match status:
        case 400:
            return ApiError(
                "Your input exceeds the context window of this model. Please adjust your input and try again.",
                param="input",
                code="context_length_exceeded",
            )
        case 401:
            return ApiError("Incorrect API key provided: sk-offline.", status=401, code="invalid_api_key")
        case 429:
            return ApiError(
                "Rate limit reached for requests. Please try again in 1ms.",
                status=429,
                kind="requests",
                code="rate_limit_exceeded",
            )
        case _:
            message = "The server had an error while processing your request. Sorry about that!"
            return ApiError(message, status=status, kind="server_error")
