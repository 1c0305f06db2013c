"""Secrets, tokens and what people say stay where they belong: everything that the stack writes is searched for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from pymongo import MongoClient

from local.aws import Aws
from local.emulator import Emulator
from local.model import OfflineModel
from local.stack import StackOptions, local_stack
from omniagent.session.ids import new_id
from omniagent.tracing.redaction import hide, redact, redact_text
from tests.fixtures.http_server import HttpServer, Received
from tests.fixtures.issuer import AUDIENCE, Issuer
from tests.fixtures.zygote import forks

Json = dict[str, Any]

KEY = "the-key-of-the-model"
PASSWORD = "the-password-of-mongodb"
SAID = "Our merger with Initech is on Tuesday"
ANSWERED = "I will tell nobody about Initech"
IN_A_TOOL = "initech_shares"
IN_A_BAD_BODY = "Said in a body that was refused"


def test_a_secret_that_was_read_is_masked_in_every_line_whatever_it_looks_like() -> None:
    hide("correct horse battery")
    hide("mongodb+srv://ada:p%40ssw0rd-of-ada@one.example,two.example/db?a=b")
    assert redact_text("refused: correct horse battery!") == "refused: ***!"
    assert redact({"sent": "p%40ssw0rd-of-ada, p@ssw0rd-of-ada"}) == {"sent": "***, ***"}
    hide("short")
    assert redact_text("a short line") == "a short line"


class Collector(HttpServer):
    """Takes OTLP exports as they come. `received` holds their bytes, in which texts stand as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[bytes] = []

    def answer(self, request: Received) -> tuple[int, bytes]:
        self.received.append(request.body)
        return 200, b""


@dataclass
class Watched:
    """A running stack, and everything that it has written."""

    emulator: Emulator
    issuer: Issuer
    http: httpx.AsyncClient
    collector: Collector
    lines: list[str]
    bodies: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    async def call(self, method: str, path: str, *, token: str | None = None, **options: Any) -> httpx.Response:
        function = "chat" if path.startswith("/chat") else "sessions"
        token = self.issuer.token() if token is None else token
        self.tokens.append(token)
        headers = {"authorization": f"Bearer {token}"}
        response = await self.http.request(method, self.emulator.url_of(function) + path, headers=headers, **options)
        self.bodies.append(f"{response.headers}\n{response.text}")
        return response

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    @property
    def spans(self) -> str:
        return b"\n".join(self.collector.received).decode("utf-8", "replace")

    @property
    def environments(self) -> str:
        """The environments of the functions' processes, where the system tells them."""
        files = [Path(f"/proc/{process.pid}/environ") for process in self.emulator.processes()]
        return "\n".join(file.read_text(errors="replace") for file in files if file.exists())


@asynccontextmanager
async def watched(mongod: str, aws: Aws, model: OfflineModel) -> AsyncIterator[Watched]:
    name, user = f"test_{new_id()[:12]}", f"user-{new_id()[:8]}"
    with MongoClient[Json](mongod) as client:
        client.admin.command("createUser", user, pwd=PASSWORD, roles=["root"])
        lines: list[str] = []
        with Collector() as collector, Issuer() as issuer:
            options = StackOptions(
                mongodb_uri=mongod.replace("://", f"://{user}:{PASSWORD}@"),
                openai_api_key=KEY,
                openai_base_url=model.base_url,
                aws=aws,
                auth="jwt",
                functions=("chat", "sessions"),
                parameters={
                    "MongoDatabase": name,
                    "JwtIssuer": issuer.url,
                    "JwtAudience": AUDIENCE,
                    "OtlpEndpoint": collector.url,
                    "LogLevel": "DEBUG",
                },
                emulator={"launcher": forks(), "on_line": lambda _, line: lines.append(line)},
            )
            async with local_stack(options) as stack, httpx.AsyncClient(timeout=60, trust_env=False) as http:
                yield Watched(stack.emulator, issuer, http, collector, lines)
        client.admin.command("dropUser", user)
        client.drop_database(name)


async def use(stack: Watched) -> None:
    """Do everything that could make somebody tell too much."""
    ask = {"session_id": "s", "query": f"{SAID} [echo:{ANSWERED}]"}
    assert (await stack.call("POST", "/chat", json=ask)).status_code == 200
    for query in (
        f'[tool:calculator {{"expression": "{IN_A_TOOL}"}}] [then] [echo:{ANSWERED}] {SAID}',
        f"[bad-args:calculator] {SAID}",
        f"[fail:500] {SAID}",
        f"[break] {SAID} [echo:{ANSWERED}]",
    ):
        assert (await stack.call("POST", "/chat", json={"session_id": "s", "query": query})).status_code == 200
    await stack.call("POST", "/chat?stream=false", json=ask)
    await stack.call("POST", "/chat", json={"query": IN_A_BAD_BODY, "session_id": "a b"})
    await stack.call("POST", "/chat", json={"query": [IN_A_BAD_BODY]})
    await stack.call("POST", "/chat", content=f'{{"query": "{IN_A_BAD_BODY}'.encode())
    await stack.call("GET", f"/sessions?search={IN_A_BAD_BODY}&before={IN_A_BAD_BODY}")
    await stack.call("GET", "/chat/s/stream")
    await stack.call("GET", "/sessions/s/messages")
    await stack.call("PATCH", "/sessions/s", json={"name": SAID})
    await stack.call("POST", "/sessions/s/name")
    await stack.call("GET", "/sessions")
    for flawed in (stack.issuer.token(exp=1), stack.issuer.token(kid="unknown"), "a.b.c", f"{SAID}.{SAID}"):
        for path in ("/sessions", "/chat/s/stream"):
            assert (await stack.call("GET", path, token=flawed)).status_code == 401
    await stack.emulator.settled()


def check_secrets(stack: Watched) -> None:
    secrets = [KEY, PASSWORD, *(part for token in stack.tokens for part in token.split(".") if len(part) > 16)]
    everywhere = {
        "log": stack.log,
        "spans": stack.spans,
        "bodies": "\n".join(stack.bodies),
        "environments": stack.environments,
    }
    for place, text in everywhere.items():
        # A token that is no token at all is what somebody said.
        told = [secret for secret in secrets if secret in text and secret != SAID]
        assert not told, f"{place} tell {told}"


async def test_nothing_that_is_written_tells_a_secret_or_what_was_said(
    mongod: str, aws: Aws, model: OfflineModel
) -> None:
    async with watched(mongod, aws, model) as stack:
        await use(stack)
        check_secrets(stack)
        assert "turn ended" in stack.log
        assert "mongodb.write" in stack.spans
        for said in (SAID, ANSWERED, IN_A_TOOL, IN_A_BAD_BODY, "Initech"):
            for place, text in {"log": stack.log, "spans": stack.spans}.items():
                assert said not in text, f"{place} tell {said!r}"
        assert not any(IN_A_BAD_BODY in body for body in stack.bodies)
