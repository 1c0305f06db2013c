"""Secrets Manager: values are read once per process and again after a rotation.

Values appear in no error message and no environment variable, and logs mask them. If the service is unreachable,
`SecretsUnavailable` is raised (retry); if it refuses, `ConfigurationError` (fix the deployment).
"""

import asyncio
import json
import math
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from omniagent.aws.client import SECRETS_MANAGER, AwsJson, AwsRefused, AwsUnreachable
from omniagent.errors import ConfigurationError, SecretsUnavailable
from omniagent.invocation import time_left
from omniagent.tracing.redaction import hide

READ_TIMEOUT_SECONDS: Final = 60.0
"""Maximum time of all attempts together; on Lambda, also limited by the invocation's remaining time."""
CALL_TIMEOUT_SECONDS: Final = 4.0
# A wrong password must not turn every request into a call to Secrets Manager.
REFRESH_INTERVAL_SECONDS: Final = 30.0


@dataclass(slots=True)
class _Entry:
    """One secret. The lock makes concurrent callers share one read."""

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

    async def get(self, arn: str, *keys: str, refresh: bool = False) -> str:
        """Return the secret, cached after the first read.

        A plain string is the value. In a JSON object, the value is under the first of `keys` that it has. With
        `refresh`, it is read again, for example after an authentication failure, unless that was tried just before.
        """
        entry = self._entries[arn]
        async with entry.lock:
            is_due = refresh and time.monotonic() - entry.tried_at >= self._refresh_interval
            if entry.value is None or is_due:
                entry.value = await self._read(arn, entry)
            return pick_value(arn, entry.value, keys)

    async def _read(self, arn: str, entry: _Entry) -> str:
        entry.tried_at = time.monotonic()
        seconds = max(0.0, min(self._timeout, time_left()))
        call_timeout = min(CALL_TIMEOUT_SECONDS, max(seconds / 2, 0.1))
        api = AwsJson(SECRETS_MANAGER, region=_region(arn), timeout_seconds=call_timeout)
        try:
            answer = await api.call("GetSecretValue", attempts=math.inf, seconds=seconds, SecretId=arn)
        except AwsUnreachable as exc:
            raise SecretsUnavailable(f"Secret {arn}: {exc}") from exc
        except AwsRefused as exc:
            raise ConfigurationError(
                f"Secret {arn}: {exc.code}. Check the ARN and that the role may call secretsmanager:GetSecretValue"
            ) from exc
        finally:
            await api.aclose()  # reads are too rare to keep a connection open
        value: str = answer.get("SecretString", "").strip()
        if not value:
            raise ConfigurationError(f"Secret {arn}: it is empty or binary; store a string or a JSON object")
        for text in (value, *(_json_object(value) or {}).values()):
            hide(str(text))
        return value


def _region(arn: str) -> str | None:
    """Return the region in an ARN. None for a bare name: the environment's region is used."""
    parts = arn.split(":")
    return parts[3] or None if len(parts) > 3 and parts[0] == "arn" else None


def pick_value(arn: str, value: str, keys: tuple[str, ...]) -> str:
    """Return the value, or in a JSON object the value under the first of `keys` that it has."""
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
    """Return the text's JSON object, or None. The decoder's error is dropped, because it contains the text."""
    try:
        decoded = json.loads(value)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None
