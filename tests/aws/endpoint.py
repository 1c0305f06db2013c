"""An HTTP server that gives prepared answers and records what it was asked."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Endpoint:
    """`answers` are given in order, the last one for good."""

    url: str = ""
    answers: list[tuple[int, Any]] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)


def container_keys(name: str, *, seconds: float = 3600) -> dict[str, str]:
    """What the credentials endpoint of a container answers."""
    expires = datetime.now(UTC) + timedelta(seconds=seconds)
    return {
        "AccessKeyId": f"key-{name}",
        "SecretAccessKey": f"secret-{name}",
        "Token": f"token-{name}",
        "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


@contextmanager
def running_endpoint(*answers: tuple[int, Any]) -> Iterator[Endpoint]:
    endpoint = Endpoint(answers=list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            endpoint.requests.append({name.lower(): value for name, value in self.headers.items()})
            status, answer = endpoint.answers.pop(0) if len(endpoint.answers) > 1 else endpoint.answers[0]
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
