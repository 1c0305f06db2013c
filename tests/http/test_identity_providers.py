"""Tokens as Cognito, Auth0 and Clerk make them, with the parameters that docs/deploy.md gives for each."""

import time
from dataclasses import replace
from typing import Any

import pytest

from omniagent.errors import Unauthenticated
from omniagent.http.auth import Authenticator
from omniagent.settings import Settings
from tests.fixtures.issuer import Issuer

NOW = int(time.time())
ORIGIN = "https://app.mycompany.io"
API = "https://chat.mycompany.io"
CLIENT = "7h1c2l1entid"
# The settings of each, what it puts into the token that the page says to send, and into another one that it makes.
SHAPES: dict[str, tuple[dict[str, str], dict[str, Any], dict[str, Any]]] = {
    "cognito": (
        {"jwt_client_ids": CLIENT},
        {
            "sub": "d4a5e6f0-1111-4222-8333-944445555666",
            "aud": None,
            "client_id": CLIENT,
            "token_use": "access",
            "scope": "aws.cognito.signin.user.admin",
            "auth_time": NOW,
            "iat": NOW,
            "username": "ada",
            "jti": "j1",
            "origin_jti": "origin-1",
        },
        {"sub": "d4a5e6f0", "aud": CLIENT, "token_use": "id", "cognito:username": "ada", "iat": NOW},
    ),
    "auth0": (
        {"jwt_audience": API},
        {
            "sub": "auth0|6523a1b2c3d4e5f6a7b8c9d0",
            "aud": [API, "https://tenant.auth0.com/userinfo"],
            "azp": "spaClientId",
            "scope": "openid profile email",
            "iat": NOW,
        },
        {"sub": "auth0|6523a1b2c3d4e5f6a7b8c9d0", "aud": "spaClientId", "nonce": "n", "iat": NOW},
    ),
    "clerk": (
        {"jwt_client_ids": ORIGIN},
        {
            "sub": "user_2abCdEfGhIjKlMnOp",
            "aud": None,
            "azp": ORIGIN,
            "sid": "sess_1",
            "sts": "active",
            "v": 2,
            "iat": NOW,
            "nbf": NOW - 10,
            "jti": "a1b2c3",
        },
        {"sub": "user_2abCdEfGhIjKlMnOp", "aud": None, "azp": "https://stranger.example", "iat": NOW},
    ),
}


def request(token: str) -> dict[str, Any]:
    return {"type": "http", "headers": [(b"authorization", f"Bearer {token}".encode())], "client": ("203.0.113.7", 0)}


@pytest.mark.parametrize("provider", SHAPES)
async def test_the_token_that_the_page_names_is_taken_and_the_other_is_not(provider: str) -> None:
    settings, good, other = SHAPES[provider]
    with Issuer() as issuer:
        chosen = replace(Settings(auth_mode="jwt", jwt_issuer=issuer.url), **settings)  # type: ignore[arg-type]
        authenticator = Authenticator(chosen)
        caller = await authenticator.authenticate(request(issuer.token(**good)))
        assert caller.client_id.startswith("jwt:")
        assert caller.client_id.endswith(good["sub"])
        with pytest.raises(Unauthenticated):
            await authenticator.authenticate(request(issuer.token(**other)))
