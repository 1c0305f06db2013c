"""A model that sends what a test makes up, and otherwise hands on to the honest one."""

import http.server
import json
import threading
from typing import Self

import httpx


class RogueModel:
    """Answers each request with the next of `lies`, as bytes after the HTTP head; without one it asks the honest model.

    With a `key` it refuses any other, and tells what it was given, as careless servers do. The honest model holds
    every request against OpenAI's rules, so an answer of it says that the history was accepted.
    """

    def __init__(self, honest_url: str) -> None:
        self.lies: list[bytes] = []
        self.key: str | None = None
        self._honest = httpx.Client(base_url=honest_url.removesuffix("/v1"), trust_env=False, timeout=30)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._honest.close()

    def _handler(rogue) -> type[http.server.BaseHTTPRequestHandler]:  # noqa: N805 - `self` is the handler's
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = self.rfile.read(int(self.headers["content-length"]))
                status, body = self._answer(sent)
                self.send_response(status)
                self.send_header("content-type", "text/event-stream" if status == 200 else "application/json")
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(body)

            def _answer(self, sent: bytes) -> tuple[int, bytes]:
                given = self.headers["authorization"].removeprefix("Bearer ")
                if rogue.key is not None and given != rogue.key:
                    return 401, json.dumps({"error": {"message": f"Incorrect API key provided: {given}."}}).encode()
                return (200, rogue.lies.pop(0)) if rogue.lies else self._asked(sent)

            def _asked(self, sent: bytes) -> tuple[int, bytes]:
                headers = {"content-type": "application/json", "authorization": "Bearer test"}
                answer = rogue._honest.post(self.path, content=sent, headers=headers)
                return answer.status_code, answer.content

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Stay quiet."""

        return Handler
