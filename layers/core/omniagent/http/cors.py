"""CORS behind API Gateway, which leaves it to the function. A Function URL handles CORS itself."""

from typing import Final

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

# As template.yaml has them for the Function URLs.
ALLOWED_METHODS: Final = ("GET", "POST", "PATCH", "PUT", "DELETE")
ALLOWED_HEADERS: Final = (
    "authorization",
    "content-type",
    "last-event-id",
    "traceparent",
    "tracestate",
    "user-agent",  # AI SDK 5.0.43 until March 2026 sets it; Safari and Firefox then ask for it
    "x-ai-sdk",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-security-token",
)
EXPOSED_HEADERS: Final = (
    "retry-after",
    "x-session-id",
    "x-vercel-ai-ui-message-stream",
    "x-workflow-run-id",
    "x-workflow-stream-tail-index",
)
MAX_AGE_SECONDS: Final = 600


def add_cors(app: Starlette, origins: str) -> None:
    """Let pages of these comma-separated origins read every response, and answer their preflight requests."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=[origin.strip() for origin in origins.split(",")],
        allow_methods=ALLOWED_METHODS,
        allow_headers=ALLOWED_HEADERS,
        expose_headers=EXPOSED_HEADERS,
        max_age=MAX_AGE_SECONDS,
    )
