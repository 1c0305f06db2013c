"""Who calls: signed requests, tokens of an issuer, and nobody at all."""

import time

from local.aws import Aws
from local.model import OfflineModel
from tests.fixtures.calls import User
from tests.fixtures.issuer import AUDIENCE, Issuer
from tests.fixtures.problems import check_problem
from tests.fixtures.product import Product, running_product


async def test_only_valid_tokens_get_in_and_each_subject_has_its_own_sessions(
    mongod: str, cloud: Aws, model: OfflineModel
) -> None:
    with Issuer() as issuer:
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
