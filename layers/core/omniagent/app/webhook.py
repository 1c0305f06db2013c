"""The webhook: reports how turns ended to the operator's server, signed according to Standard Webhooks.

The chat function imports it only if WEBHOOK_URL is set.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from omniagent.errors import ConfigurationError, WebhookFailed
from omniagent.messages import RequestKind, Status
from omniagent.session.live import SessionMessage

DELIVERY_SECONDS: Final = 10.0
"""How long the server may take to answer. It should answer before it does any work."""
EVENT_TYPES: Final[Mapping[Status, str]] = {
    "complete": "turn.finished",
    "failed": "turn.failed",
    "waiting": "turn.waiting",
    "cancelled": "turn.cancelled",
    "interrupted": "turn.interrupted",
}
_PREFIX: Final = "whsec_"


class AskedCall(BaseModel):
    """A request of a waiting turn."""

    id: str
    kind: RequestKind
    tool: str


class TurnEvent(BaseModel):
    """How a run of a turn ended. Contains no message text.

    A job may come from a newer version during a canary: fields that this one does not know are ignored.
    """

    model_config = ConfigDict(serialize_by_alias=False, validate_by_name=True, alias_generator=to_camel)

    id: str = Field(max_length=64)
    """The delivery id, always the same for the same end of the same turn."""
    status: Status
    message_id: str = Field(max_length=256)
    turn_number: int
    finish_reason: str | None = None
    error_code: str | None = None
    usage: dict[str, int] = Field(default_factory=dict)
    requests: list[AskedCall] = Field(default_factory=list)
    occurred_at: datetime

    @classmethod
    def of(cls, key: str, answer: SessionMessage) -> "TurnEvent":
        """Describe the end of a turn of the session with this key."""
        requests = [
            AskedCall(id=part.request.id, kind=part.request.kind, tool=part.name)
            for part in answer.pending
            if part.request is not None
        ]
        parts = [key, answer.id, answer.status, *sorted(request.id for request in requests)]
        return cls(
            id=f"evt_{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}",
            status=answer.status,
            message_id=answer.id,
            turn_number=answer.turn_number,
            finish_reason=answer.metadata.get("finishReason"),
            error_code=answer.metadata.get("errorCode"),
            usage=answer.usage.to_dict(),
            requests=requests,
            occurred_at=datetime.now(UTC),
        )

    def body(self, *, user: str, session_id: str) -> bytes:
        """Return the JSON that is sent."""
        what = self.model_dump(by_alias=True, exclude={"id", "occurred_at"})
        data = {"user": user, "sessionId": session_id, **what}
        event = {"type": EVENT_TYPES[self.status], "timestamp": self.occurred_at.isoformat(), "data": data}
        return json.dumps(event, separators=(",", ":")).encode()


async def deliver(
    url: str, event_id: str, body: bytes, secret: str, *, timeout_seconds: float = DELIVERY_SECONDS
) -> None:
    """Send an event. Raises `WebhookFailed` unless the server answers 2xx in time. Redirects are not followed."""
    import httpx2  # kept out of cold starts

    from omniagent.network import tls_context

    headers = {"content-type": "application/json", **signed_headers(secret, event_id, body)}
    client = httpx2.AsyncClient(verify=tls_context(), timeout=timeout_seconds, trust_env=False)
    try:
        # The client's own timeout applies to each read, so a server that trickles bytes would never exceed it.
        async with (
            asyncio.timeout(timeout_seconds),
            client,
            client.stream("POST", url, content=body, headers=headers) as response,
        ):
            status = response.status_code  # the body is not read
    except Exception as exc:
        # Every Exception: a redirect to an address that is none raises InvalidURL, which is not an HTTPError.
        raise WebhookFailed(f"the webhook's server did not answer: {type(exc).__name__}") from exc
    if not 200 <= status < 300:
        raise WebhookFailed(f"the webhook's server answered {status}")


def signed_headers(secret: str, event_id: str, body: bytes, timestamp: int | None = None) -> dict[str, str]:
    """Return the headers of a delivery, with one signature per space-separated secret (for rotation)."""
    sent_at = str(int(time.time()) if timestamp is None else timestamp)
    content = f"{event_id}.{sent_at}.".encode() + body
    if not secret.strip():
        raise ConfigurationError("the webhook's secret is empty")
    digests = [hmac.new(_key(each), content, hashlib.sha256).digest() for each in secret.split()]
    signatures = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return {"webhook-id": event_id, "webhook-timestamp": sent_at, "webhook-signature": signatures}


def _key(secret: str) -> bytes:
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        raise ConfigurationError("the webhook's secret begins with whsec_ and is not base64 then") from None
    if not key:
        raise ConfigurationError("the webhook's secret is whsec_ and nothing else")
    return key
