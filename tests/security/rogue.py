"""A model that sends what a test makes up, and otherwise hands on to the honest one."""

import json

import httpx

from tests.fixtures.http_server import HttpServer, Received


class RogueModel(HttpServer):
    """Answers each request with the next of `lies`, as bytes after the HTTP head; without one it asks the honest model.

    With a `key` it refuses any other, and tells what it was given, as careless servers do. The honest model holds
    every request against OpenAI's rules, so an answer of it says that the history was accepted.
    """

    content_type = "text/event-stream"

    def __init__(self, honest_url: str) -> None:
        super().__init__()
        self.lies: list[bytes] = []
        self.key: str | None = None
        self.base_url = f"{self.url}/v1"
        self._honest = httpx.Client(base_url=honest_url.removesuffix("/v1"), trust_env=False, timeout=60)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._honest.close()

    def answer(self, request: Received) -> tuple[int, bytes]:
        given = request.headers["authorization"].removeprefix("Bearer ")
        if self.key is not None and given != self.key:
            return 401, json.dumps({"error": {"message": f"Incorrect API key provided: {given}."}}).encode()
        return (200, self.lies.pop(0)) if self.lies else self._ask(request)

    def _ask(self, request: Received) -> tuple[int, bytes]:
        headers = {"content-type": "application/json", "authorization": "Bearer test"}
        answer = self._honest.post(request.path, content=request.body, headers=headers)
        return answer.status_code, answer.content
