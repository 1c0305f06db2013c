"""What the tests of tokens and of the keys that sign them share."""

from typing import Any

import pytest

from omniagent.errors import Unauthenticated
from omniagent.http.tokens import TokenVerifier
from omniagent.settings import Settings
from tests.fixtures.issuer import AUDIENCE, Issuer


def settings(issuer: Issuer, **changes: Any) -> Settings:
    return Settings(**{"auth_mode": "jwt", "jwt_issuer": issuer.url, "jwt_audience": AUDIENCE, **changes})


async def subject(verifier: TokenVerifier, token: str) -> str:
    found: str = (await verifier.verify(f"Bearer {token}"))["sub"]
    return found


async def refusal(verifier: TokenVerifier, token: str) -> str:
    """Why a token is refused."""
    with pytest.raises(Unauthenticated) as refused:
        await verifier.verify(f"Bearer {token}")
    assert 'error="invalid_token"' in refused.value.challenge
    return refused.value.reason
