"""Secrets Manager: values read once per process and again after a rotation.

A value lives in this object only. It is never logged, never part of an error, never put into the environment.
"""

import asyncio
import json
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from omniagent.errors import ConfigurationError

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient

READ_TIMEOUT_SECONDS: Final = 5.0
# A wrong password must not turn every request into a call to Secrets Manager.
REFRESH_INTERVAL_SECONDS: Final = 30.0


@dataclass(slots=True)
class _Entry:
    """What is known of one secret. The lock makes concurrent callers share one read."""

    value: str | None = field(default=None, repr=False)
    tried_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class SecretStore:
    """Reads secrets by ARN. One per process; its methods belong to one event loop."""

    def __init__(
        self,
        *,
        timeout_seconds: float = READ_TIMEOUT_SECONDS,
        refresh_interval_seconds: float = REFRESH_INTERVAL_SECONDS,
    ) -> None:
        self._timeout = timeout_seconds
        self._refresh_interval = refresh_interval_seconds
        self._entries: defaultdict[str, _Entry] = defaultdict(_Entry)
        self._clients: dict[str | None, SecretsManagerClient] = {}
        self._clients_lock = threading.Lock()

    async def get(self, arn: str, *keys: str) -> str:
        """Return the secret, from memory after the first time.

        A plain string is the value. Of a JSON object, the value is that of the first of `keys` that it has.
        """
        entry = self._entries[arn]
        async with entry.lock:
            if entry.value is None:
                entry.value = await self._read(arn, entry)
            return _pick(arn, entry.value, keys)

    async def refresh(self, arn: str, *keys: str) -> str:
        """Read the secret again, as after an authentication failure, and return what it is now.

        Reads follow one another at a distance; in between the value in memory is returned.
        """
        entry = self._entries[arn]
        async with entry.lock:
            is_due = time.monotonic() - entry.tried_at >= self._refresh_interval
            if entry.value is None or is_due:
                entry.value = await self._read(arn, entry)
            return _pick(arn, entry.value, keys)

    async def _read(self, arn: str, entry: _Entry) -> str:
        entry.tried_at = time.monotonic()
        # Here, not above: importing boto3 takes longer than all the rest.
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            async with asyncio.timeout(self._timeout):
                value = await asyncio.to_thread(self._fetch, arn)
        except TimeoutError as exc:
            raise ConfigurationError(f"Secret {arn}: no answer within {self._timeout:g} seconds") from exc
        except ClientError as exc:
            code = exc.response["Error"]["Code"]
            raise ConfigurationError(
                f"Secret {arn}: {code}. Check the ARN and that the role may call secretsmanager:GetSecretValue"
            ) from exc
        except BotoCoreError as exc:
            raise ConfigurationError(f"Secret {arn}: {type(exc).__name__}. Check region and network") from exc
        if not value:
            raise ConfigurationError(f"Secret {arn}: it is empty or binary; store a string or a JSON object")
        return value

    def _fetch(self, arn: str) -> str:
        response = self._client(_region(arn)).get_secret_value(SecretId=arn)
        return response.get("SecretString", "").strip()

    def _client(self, region: str | None) -> "SecretsManagerClient":
        import boto3
        from botocore.config import Config

        # Threads may share a client but not a session, and may not make clients at the same time.
        with self._clients_lock:
            if region not in self._clients:
                config = Config(
                    connect_timeout=self._timeout / 2, read_timeout=self._timeout / 2, retries={"total_max_attempts": 2}
                )
                self._clients[region] = boto3.Session().client("secretsmanager", region_name=region, config=config)
            return self._clients[region]


def _region(arn: str) -> str | None:
    """Return the region that an ARN names; None, for a bare name, is the region of the environment."""
    parts = arn.split(":")
    return parts[3] or None if len(parts) > 3 and parts[0] == "arn" else None


def _pick(arn: str, value: str, keys: tuple[str, ...]) -> str:
    found = _json_object(value)
    if found is None:
        return value
    for key in keys:
        candidate = found.get(key)
        if isinstance(candidate, str) and candidate.strip():
            return candidate.strip()
    raise ConfigurationError(
        f"Secret {arn}: the JSON object has none of the keys {', '.join(keys) or '(none asked for)'}"
    )


def _json_object(value: str) -> dict[str, object] | None:
    """Return the object that the text is, or None. The decoder's error holds the text, so it ends here."""
    try:
        decoded = json.loads(value)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None
