"""Who calls: signed requests, tokens of an issuer, and nobody at all."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from local.aws import Aws
from local.model import OfflineModel
from tests.fixtures.calls import User
from tests.fixtures.problems import check_problem
from tests.fixtures.product import Product, running_product

AUDIENCE = "omniagent"


class Issuer:
    """Signs tokens, and publishes its key."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        self._keys = json.dumps({"keys": [{**public, "kid": "k1", "use": "sig", "alg": "ES256"}]}).encode()
        self.url = ""

    def token(self, **claims: Any) -> str:
        now = int(time.time())
        told = {"iss": self.url, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 600} | claims
        return jwt.encode(told, self._key, algorithm="ES256", headers={"kid": "k1"})

    async def publish(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(self._keys)}\r\n"
        writer.write(f"{head}connection: close\r\n\r\n".encode() + self._keys)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def issuer_running() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    async with await asyncio.start_server(issuer.publish, "127.0.0.1", 0) as server:
        issuer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield issuer


async def test_only_valid_tokens_get_in_and_each_subject_has_its_own_sessions(
    mongod: str, cloud: Aws, model: OfflineModel
) -> None:
    async with issuer_running() as issuer:
        parameters = {"JwtIssuer": issuer.url, "JwtAudience": AUDIENCE}
        functions = ("chat", "sessions")
        async with running_product(
            mongod, cloud, model, auth="jwt", parameters=parameters, functions=functions
        ) as product:
            ada, bob = (bearer(product, issuer.token(sub=name)) for name in ("ada", "bob"))
            assert (await ada.ask("Hello"))[-1]["data"]["status"] == "complete"
            assert len(await ada.messages()) == 2
            bob = User(bob.emulator, bob.http, bob.headers, ada.session)
            check_problem(await bob.call("GET", "/sessions/{}"), 404, "not_found")
            await check_refused(product, issuer)


async def check_refused(product: Product, issuer: Issuer) -> None:
    expired = issuer.token(exp=int(time.time()) - 60)
    refused = [
        User(product.emulator, product.http, {"x-user-id": "ada"}),
        bearer(product, expired),
        bearer(product, issuer.token(aud="another")),
        bearer(product, issuer.token()[:-4] + "AAAA"),
    ]
    for user in refused:
        for method, path, options in [("POST", "/chat", {"json": {"query": "Hello"}}), ("GET", "/sessions", {})]:
            response = await user.call(method, path, **options)
            check_problem(response, 401, "unauthenticated")
            # A Function URL keeps the name of this header for itself.
            assert response.headers["x-amzn-remapped-www-authenticate"].startswith("Bearer ")


def bearer(product: Product, token: str) -> User:
    product.secrets.append(token)
    return User(product.emulator, product.http, {"authorization": f"Bearer {token}"})


async def test_an_unsigned_request_does_not_reach_a_function(product: Product) -> None:
    stranger = User(product.emulator, product.http, {"x-user-id": "ada"})
    assert (await stranger.call("GET", "/sessions")).status_code == 403
    assert (await stranger.call("POST", "/chat", json={"query": "Hello"})).status_code == 403


async def test_a_signer_that_is_not_trusted_is_the_user_itself_and_speaks_for_nobody(
    product: Product, user: User
) -> None:
    headers = {"authorization": user.headers["authorization"].replace("web-backend", f"robot-{user.session}")}
    robot = User(product.emulator, product.http, headers, user.session)
    await robot.ask("Hello")
    assert len(await robot.messages()) == 2
    named = User(product.emulator, product.http, {**headers, "x-user-id": f"robot-{user.session}"}, user.session)
    check_problem(await named.call("GET", "/sessions/{}"), 403, "forbidden")
