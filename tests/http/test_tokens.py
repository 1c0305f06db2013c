"""Who gets in by a token."""

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import RSAAlgorithm

from omniagent.errors import ConfigurationError, Unauthenticated
from omniagent.http.auth import Caller, authenticator
from omniagent.http.tokens import MAX_TOKEN_LENGTH, TokenVerifier
from omniagent.settings import Settings
from tests.fixtures.issuer import AUDIENCE, Issuer

Json = dict[str, Any]


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


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def verifier(issuer: Issuer) -> TokenVerifier:
    return TokenVerifier(settings(issuer))


class TestToken:
    async def test_the_user_is_issuer_and_subject_and_the_claims_come_along(self, issuer: Issuer) -> None:
        headers = {"authorization": f"Bearer {issuer.token(roles=['approver'])}", "x-user-id": "eve"}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        caller = await authenticator(settings(issuer))({"type": "http", "headers": raw})
        assert caller == Caller(f"jwt:{issuer.url} ada")
        assert caller.claims["roles"] == ["approver"]

    async def test_one_subject_of_two_issuers_is_two_users(self, issuer: Issuer) -> None:
        other = f"{issuer.url}/other"
        keys = f"{issuer.url}/.well-known/jwks.json"
        users = set()
        for name in (issuer.url, other):
            find = authenticator(settings(issuer, jwt_issuer=name, jwt_jwks_url=keys))
            raw = [(b"authorization", f"Bearer {issuer.token(iss=name)}".encode())]
            users.add((await find({"type": "http", "headers": raw})).client_id)
        assert len(users) == 2

    async def test_each_kind_of_published_key_is_taken(self, issuer: Issuer, verifier: TokenVerifier) -> None:
        for token in (
            issuer.token(),
            issuer.token(key=issuer.ec, algorithm="ES256", kid="ec"),
            issuer.token(key=issuer.ed, algorithm="EdDSA", kid="ed"),
            issuer.token(aud=["other", AUDIENCE]),
            issuer.token(exp=int(time.time()) - 20),
            issuer.token(nbf=int(time.time()) + 20, iat=int(time.time()) + 20),
        ):
            assert await subject(verifier, token) == "ada"

    async def test_the_longest_subject_is_taken(self, issuer: Issuer, verifier: TokenVerifier) -> None:
        longest = f"auth0|{'ä' * 250}"
        assert await subject(verifier, issuer.token(sub=longest)) == longest

    @pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic YTpi", "Token x"])
    async def test_without_a_token_nobody_gets_in(self, verifier: TokenVerifier, authorization: str) -> None:
        with pytest.raises(Unauthenticated, match="bearer") as refused:
            await verifier.verify(authorization)
        assert refused.value.challenge == 'Bearer realm="omniagent"'

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"exp": 1}, "expired"),
            ({"exp": None}, "a required claim is missing"),
            ({"exp": "soon"}, "DecodeError"),
            ({"exp": float("inf")}, "DecodeError"),
            ({"exp": float("nan")}, "DecodeError"),
            ({"iss": "https://evil.example"}, "wrong issuer"),
            ({"iss": None}, "a required claim is missing"),
            ({"aud": "another-app"}, "wrong audience"),
            ({"aud": None}, "a required claim is missing"),
            ({"aud": {AUDIENCE: 1}}, "wrong audience"),
            ({"sub": None}, "a required claim is missing"),
            ({"sub": ""}, "unusable subject"),
            ({"sub": "x" * 257}, "unusable subject"),
            *(({"sub": name}, "unusable subject") for name in ("a\0b", "a\nb", "\ud800", "\u202eada")),
            *(({"sub": name}, None) for name in (7, {"$gt": ""}, ["ada"])),
            ({"nbf": 9_999_999_999}, "not valid yet"),
            ({"iat": 9_999_999_999}, "not valid yet"),
            ({"kid": None}, "no key id"),
            ({"kid": "unknown"}, "unknown key"),
            ({"kid": "ec"}, "algorithm not allowed"),
            ({"kid": "rsa", "key": "other rsa"}, "wrong signature"),
            ({"kid": "ec", "key": "other ec", "algorithm": "ES256"}, "wrong signature"),
            ({"kid": "rsa", "algorithm": "PS256"}, "algorithm not allowed"),
            ({"kid": "rsa", "algorithm": "RS512"}, "algorithm not allowed"),
            ({"header": {"crit": ["exp"]}}, None),
            ({"header": {"typ": "dpop+jwt"}}, "wrong type"),
            ({"header": {"typ": "logout+jwt"}}, "wrong type"),
            ({"header": {"typ": 7}}, None),
        ],
        ids=str,
    )
    async def test_a_token_with_a_flaw_is_refused_and_the_log_says_why(
        self, issuer: Issuer, verifier: TokenVerifier, changes: dict[str, Any], reason: str | None
    ) -> None:
        others: dict[str, Callable[[], Any]] = {
            "other rsa": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "other ec": lambda: ec.generate_private_key(ec.SECP256R1()),
        }
        if "key" in changes:
            changes = {**changes, "key": others[changes["key"]]()}
        found = await refusal(verifier, issuer.token(**changes))
        assert reason is None or found == f"token: {reason}"

    async def test_a_forged_algorithm_is_refused_without_asking_for_keys(self, issuer: Issuer) -> None:
        before = issuer.fetches
        verifier = TokenVerifier(settings(issuer))
        deep = base64.urlsafe_b64encode(b'{"alg":"RS256","kid":' + b"[" * 5_000).decode()
        for token in (
            _forged({"alg": "none", "kid": "rsa"}, issuer) + ".",
            _forged({"alg": "None", "kid": "rsa"}, issuer) + ".",
            _hmac_signed({"alg": "HS256", "kid": "rsa"}, issuer),
            _forged({"kid": "rsa"}, issuer) + ".",
            _forged({"alg": ["RS256"], "kid": "rsa"}, issuer) + ".",
            "not.a.token",
            "a.b",
            "é.é.é",
            "\ud800.a.b",
            f"{deep}.e30.AA",
            f"a{'.' * 5_000}",
            issuer.token(padding="x" * MAX_TOKEN_LENGTH),
        ):
            await refusal(verifier, token)
        assert issuer.fetches == before

    async def test_keys_that_a_token_brings_along_are_not_looked_at(self, issuer: Issuer) -> None:
        with Issuer("evil") as evil:
            jwk = RSAAlgorithm.to_jwk(evil.rsa.public_key(), as_dict=True)
            address = f"{evil.url}/.well-known/jwks.json"
            verifier = TokenVerifier(settings(issuer))
            for header in ({"jku": address}, {"x5u": address}, {"jwk": jwk}, {"jku": address, "kid": "evil"}):
                await refusal(verifier, issuer.token(key=evil.rsa, header=header))
            assert evil.fetches == 0

    @pytest.mark.parametrize(
        ("changes", "missing"),
        [
            ({"jwt_issuer": ""}, "JWT_ISSUER"),
            ({"jwt_issuer": "https://a https://b"}, "JWT_ISSUER"),
            ({"jwt_audience": ""}, "JWT_AUDIENCE or JWT_CLIENT_IDS"),
            ({"jwt_audience": "", "jwt_client_ids": " , "}, "JWT_AUDIENCE or JWT_CLIENT_IDS"),
            ({"jwt_issuer": "http://issuer.example"}, "https"),
            ({"jwt_jwks_url": "http://i/keys"}, "https"),
            ({"jwt_jwks_url": "file:///etc/passwd"}, "https"),
            ({"jwt_jwks_url": "https:///keys"}, "https"),
            ({"jwt_jwks_url": "https://[keys"}, "not an address"),
        ],
    )
    def test_half_a_configuration_is_refused(self, issuer: Issuer, changes: dict[str, str], missing: str) -> None:
        with pytest.raises(ConfigurationError, match=missing):
            TokenVerifier(settings(issuer, **changes))

    async def test_no_token_is_ever_logged(
        self, issuer: Issuer, verifier: TokenVerifier, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        for token in (issuer.token(exp=1), issuer.token(kid="unknown"), "not-a-header.not-claims.not-a-signature"):
            with pytest.raises(Unauthenticated) as refused:
                await verifier.verify(f"Bearer {token}")
            error = refused.value
            shown = caplog.text + str(error) + error.challenge + error.reason
            assert not any(part in shown for part in token.split("."))


class TestKindAndClient:
    """Tokens as Cognito, Keycloak and RFC 9068 issue them."""

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"token_use": "access"},
            {"typ": "Bearer"},
            {"header": {"typ": "at+jwt"}},
            {"header": {"typ": "application/AT+JWT"}},
            {"header": {"typ": None}},
        ],
        ids=str,
    )
    async def test_an_access_token_is_taken(self, issuer: Issuer, verifier: TokenVerifier, changes: Json) -> None:
        assert await subject(verifier, issuer.token(**changes)) == "ada"

    @pytest.mark.parametrize(
        "changes",
        [
            {"token_use": "id"},
            {"token_use": ["access"]},
            {"typ": "ID"},
            {"typ": "Refresh"},
            {"at_hash": "x"},
            {"c_hash": "x"},
            {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}},
            {"header": {"typ": "id+jwt"}},
        ],
        ids=str,
    )
    async def test_another_token_of_the_same_issuer_is_not(
        self, issuer: Issuer, verifier: TokenVerifier, changes: Json
    ) -> None:
        with pytest.raises(Unauthenticated, match="not an access token"):
            await verifier.verify(f"Bearer {issuer.token(**changes)}")

    async def test_where_id_tokens_are_wanted_no_other_is_taken(self, issuer: Issuer) -> None:
        verifier = TokenVerifier(settings(issuer, jwt_token_use="id"))
        right: list[Json] = [{}, {"token_use": "id", "at_hash": "x"}, {"typ": "ID"}]
        for changes in right:
            assert await subject(verifier, issuer.token(**changes)) == "ada"
        wrong: list[Json] = [{"token_use": "access"}, {"typ": "Bearer"}, {"header": {"typ": "at+jwt"}}, {"events": {}}]
        for changes in wrong:
            with pytest.raises(Unauthenticated, match="not an ID token"):
                await verifier.verify(f"Bearer {issuer.token(**changes)}")

    async def test_a_client_can_be_demanded(self, issuer: Issuer) -> None:
        verifier = TokenVerifier(settings(issuer, jwt_client_ids="web, app"))
        right: list[Json] = [{"azp": "web"}, {"client_id": "app"}, {"azp": "web", "client_id": "web"}]
        for changes in right:
            assert await subject(verifier, issuer.token(**changes)) == "ada"
        wrong: list[Json] = [
            {},
            {"azp": "evil"},
            {"client_id": "we"},
            {"azp": "web", "client_id": "evil"},
            {"azp": ["web"]},
            {"azp": "web,app"},
        ]
        for changes in wrong:
            assert await refusal(verifier, issuer.token(**changes)) == "token: wrong client"

    async def test_cognitos_access_tokens_have_no_audience_but_a_client(self, issuer: Issuer) -> None:
        verifier = TokenVerifier(settings(issuer, jwt_audience="", jwt_client_ids="web"))
        cognito: Json = {"token_use": "access", "client_id": "web", "aud": None, "header": {"typ": None}}
        assert await subject(verifier, issuer.token(**cognito)) == "ada"
        # One that has an audience is meant for it.
        assert await refusal(verifier, issuer.token(**{**cognito, "aud": "another"})) == "token: wrong audience"
        assert await refusal(verifier, issuer.token(**{**cognito, "client_id": None})) == "token: wrong client"


def _forged(header: Json, issuer: Issuer) -> str:
    parts = (json.dumps(part).encode() for part in (header, issuer.claims()))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def _hmac_signed(header: Json, issuer: Issuer) -> str:
    """A token signed with the issuer's public key as if it were a shared secret."""
    signed = _forged(header, issuer)
    digest = hmac.new(issuer.public_pem, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
