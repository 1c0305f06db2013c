"""Secrets, tokens and what people say stay where they belong: everything that the stack writes is searched for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from pymongo import MongoClient

from local.aws import Aws
from local.model import OfflineModel
from omniagent.session.ids import new_id
from omniagent.tracing.redaction import hide, redact, redact_text
from tests.fixtures.http_server import HttpServer, Received
from tests.fixtures.issuer import AUDIENCE, Issuer
from tests.fixtures.product import Product, running_product

Json = dict[str, Any]

PASSWORD = "the-password-of-mongodb"
SAID = "Our merger with Initech is on Tuesday"
ANSWERED = "I will tell nobody about Initech"
IN_A_TOOL = "initech_shares"
IN_A_BAD_BODY = "Said in a body that was refused"
NO_TOKEN = f"{SAID}.{SAID}"


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
    """A running product, and everything that it has written."""

    product: Product
    issuer: Issuer
    collector: Collector
    bodies: list[str] = field(default_factory=list)

    async def call(self, method: str, path: str, *, token: str | None = None, **options: Any) -> httpx.Response:
        function = "chat" if path.startswith("/chat") else "sessions"
        token = self.issuer.token() if token is None else token
        if token != NO_TOKEN:
            self.product.secrets += [part for part in token.split(".") if len(part) > 16]
        headers, url = {"authorization": f"Bearer {token}"}, self.product.emulator.url_of(function) + path
        response = await self.product.http.request(method, url, headers=headers, **options)
        self.bodies.append(f"{response.headers}\n{response.text}")
        return response

    @property
    def places(self) -> dict[str, str]:
        """What is written where. Environments are those of the functions' processes, where the system tells them."""
        files = [Path(f"/proc/{process.pid}/environ") for process in self.product.emulator.processes()]
        return {
            "log": "\n".join(line for _, line in self.product.lines),
            "spans": b"\n".join(self.collector.received).decode("utf-8", "replace"),
            "bodies": "\n".join(self.bodies),
            "environments": "\n".join(file.read_text(errors="replace") for file in files if file.exists()),
        }


@asynccontextmanager
async def watched(mongod: str, aws: Aws, model: OfflineModel) -> AsyncIterator[Watched]:
    user = f"user-{new_id()[:8]}"
    with MongoClient[Json](mongod) as client, Collector() as collector, Issuer() as issuer:
        client.admin.command("createUser", user, pwd=PASSWORD, roles=["root"])
        uri = mongod.replace("://", f"://{user}:{PASSWORD}@") + "&authSource=admin"
        parameters = {"JwtIssuer": issuer.url, "JwtAudience": AUDIENCE, "OtlpEndpoint": collector.url}
        async with running_product(
            uri, aws, model, auth="jwt", functions=("chat", "sessions"), parameters=parameters
        ) as product:
            product.secrets.append(PASSWORD)
            yield Watched(product, issuer, collector)
        client.admin.command("dropUser", user)


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
    for flawed in (stack.issuer.token(exp=1), stack.issuer.token(kid="unknown"), "a.b.c", NO_TOKEN):
        for path in ("/sessions", "/chat/s/stream"):
            assert (await stack.call("GET", path, token=flawed)).status_code == 401
    await stack.product.emulator.settled()


async def test_nothing_that_is_written_tells_a_secret_or_what_was_said(
    mongod: str, aws: Aws, model: OfflineModel
) -> None:
    async with watched(mongod, aws, model) as stack:
        await use(stack)
        written = stack.places
        for place, text in written.items():
            assert not [secret for secret in stack.product.secrets if secret in text], f"{place} tell a secret"
        assert "turn ended" in written["log"]
        assert "mongodb.write" in written["spans"]
        for said in (SAID, ANSWERED, IN_A_TOOL, IN_A_BAD_BODY, "Initech"):
            for place in ("log", "spans"):
                assert said not in written[place], f"{place} tell {said!r}"
        assert IN_A_BAD_BODY not in written["bodies"]
