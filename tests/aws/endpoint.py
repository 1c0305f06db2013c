"""An HTTP server that gives prepared answers and records what it was asked."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.fixtures.http_server import HttpServer, Received


class Endpoint(HttpServer):
    """`answers` are given in order, the last one for good. `requests` are the headers that came."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        super().__init__()
        self.answers = list(answers)
        self.requests: list[Mapping[str, str]] = []

    def answer(self, request: Received) -> tuple[int, bytes]:
        self.requests.append(request.headers)
        status, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return status, answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def container_keys(name: str, *, seconds: float = 3600) -> dict[str, str]:
    """What the credentials endpoint of a container answers."""
    expires = datetime.now(UTC) + timedelta(seconds=seconds)
    return {
        "AccessKeyId": f"key-{name}",
        "SecretAccessKey": f"secret-{name}",
        "Token": f"token-{name}",
        "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
