"""Tokens as Cognito, Auth0 and Clerk make them, with the parameters that docs/deploy.md gives for each."""

import time
from typing import Any

import pytest

from omniagent.errors import Unauthenticated
from omniagent.http.auth import Authenticator
from omniagent.settings import Settings
from tests.fixtures.issuer import Issuer

NOW = int(time.time())
# What each provider puts into the token that the page says to send, and into the one that it says not to.
SHAPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "cognito": (
        "7h1c2l1entid",
        {
            "sub": "d4a5e6f0-1111-4222-8333-944445555666",
            "aud": "7h1c2l1entid",
            "token_use": "id",
            "auth_time": NOW,
            "iat": NOW,
            "cognito:username": "ada",
            "email": "ada@mycompany.io",
            "event_id": "e1",
            "jti": "j1",
            "origin_jti": "o1",
        },
        {
            "sub": "d4a5e6f0",
            "aud": None,
            "client_id": "7h1c2l1entid",
            "token_use": "access",
            "scope": "openid",
            "iat": NOW,
        },
    ),
    "auth0": (
        "https://chat.mycompany.io",
        {
            "sub": "auth0|6523a1b2c3d4e5f6a7b8c9d0",
            "aud": ["https://chat.mycompany.io", "https://tenant.auth0.com/userinfo"],
            "azp": "spaClientId",
            "scope": "openid profile email",
            "iat": NOW,
        },
        {"sub": "auth0|6523a1b2c3d4e5f6a7b8c9d0", "aud": "spaClientId", "nonce": "n", "iat": NOW},
    ),
    "clerk": (
        "omniagent",
        {
            "sub": "user_2abCdEfGhIjKlMnOp",
            "aud": "omniagent",
            "azp": "https://app.mycompany.io",
            "iat": NOW,
            "nbf": NOW - 10,
            "jti": "a1b2c3",
        },
        {"sub": "user_2abCdEfGhIjKlMnOp", "aud": None, "azp": "https://app.mycompany.io", "sid": "sess_1", "iat": NOW},
    ),
}


def request(token: str) -> dict[str, Any]:
    return {"type": "http", "headers": [(b"authorization", f"Bearer {token}".encode())], "client": ("203.0.113.7", 0)}


@pytest.mark.parametrize("provider", SHAPES)
async def test_the_token_that_the_page_names_is_taken_and_the_other_is_not(provider: str) -> None:
    audience, good, other = SHAPES[provider]
    with Issuer() as issuer:
        authenticator = Authenticator(Settings(auth_mode="jwt", jwt_issuer=issuer.url, jwt_audience=audience))
        caller = await authenticator.authenticate(request(issuer.token(**good)))
        assert caller.client_id.startswith("jwt:")
        assert caller.client_id.endswith(good["sub"])
        with pytest.raises(Unauthenticated):
            await authenticator.authenticate(request(issuer.token(**other)))
