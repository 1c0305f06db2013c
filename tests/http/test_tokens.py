"""Who gets in by a token, and how the issuer's keys are looked after."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import RSAAlgorithm

from omniagent.errors import ConfigurationError, IdentityUnavailable, OmniAgentError, Unauthenticated
from omniagent.http.auth import Authenticator, Caller
from omniagent.http.signing_keys import (
    KEYS_KEPT_SECONDS,
    KEYS_LIFE_SECONDS,
    MAX_ANSWER_BYTES,
    REFRESH_SECONDS,
    SigningKeys,
)
from omniagent.http.tokens import MAX_TOKEN_LENGTH, TokenVerifier
from omniagent.settings import Settings
from tests.fixtures.http_server import HttpServer, Received
from tests.fixtures.issuer import AUDIENCE, Issuer

Json = dict[str, Any]


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def failing() -> Iterator[Issuer]:
    """An issuer of the test's own, which may fail."""
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def clock() -> Clock:
    return Clock()


def settings(issuer: Issuer, **changes: Any) -> Settings:
    return Settings(**{"auth_mode": "jwt", "jwt_issuer": issuer.url, "jwt_audience": AUDIENCE, **changes})


def timed(issuer: Issuer, clock: Clock) -> TokenVerifier:
    """A verifier of this issuer's tokens whose keys grow old by the test's clock."""
    return TokenVerifier(settings(issuer), SigningKeys(f"{issuer.url}/.well-known/jwks.json", clock=clock))


@pytest.fixture
def verifier(issuer: Issuer) -> TokenVerifier:
    return TokenVerifier(settings(issuer))


async def subject(verifier: TokenVerifier, token: str) -> str:
    found: str = (await verifier.verify(f"Bearer {token}"))["sub"]
    return found


async def refusal(verifier: TokenVerifier, token: str) -> str:
    """Why a token is refused."""
    with pytest.raises(Unauthenticated) as refused:
        await verifier.verify(f"Bearer {token}")
    assert 'error="invalid_token"' in refused.value.challenge
    return refused.value.reason


class TestToken:
    async def test_the_user_is_issuer_and_subject_and_the_claims_come_along(self, issuer: Issuer) -> None:
        headers = {"authorization": f"Bearer {issuer.token(roles=['approver'])}", "x-user-id": "eve"}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        caller = await Authenticator(settings(issuer)).authenticate({"type": "http", "headers": raw})
        assert caller == Caller(f"jwt:{issuer.url} ada")
        assert caller.claims["roles"] == ["approver"]

    async def test_one_subject_of_two_issuers_is_two_users(self, issuer: Issuer) -> None:
        other = f"{issuer.url}/other"
        keys = f"{issuer.url}/.well-known/jwks.json"
        users = set()
        for name in (issuer.url, other):
            authenticator = Authenticator(settings(issuer, jwt_issuer=name, jwt_jwks_url=keys))
            raw = [(b"authorization", f"Bearer {issuer.token(iss=name)}".encode())]
            users.add((await authenticator.authenticate({"type": "http", "headers": raw})).client_id)
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
            Authenticator(settings(issuer, **changes))

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


class TestKeys:
    async def test_keys_are_fetched_once_and_again_for_a_new_key_id(self, failing: Issuer, clock: Clock) -> None:
        verifier = timed(failing, clock)
        for _ in range(3):
            await subject(verifier, failing.token())
        assert failing.fetches == 1
        failing.keys.append({**failing.keys[0], "kid": "rotated"})
        clock.now += REFRESH_SECONDS
        assert await subject(verifier, failing.token(kid="rotated")) == "ada"
        assert failing.fetches == 2

    async def test_a_key_that_is_withdrawn_is_refused_once_the_keys_are_old(
        self, failing: Issuer, clock: Clock
    ) -> None:
        verifier = timed(failing, clock)
        await subject(verifier, failing.token())
        del failing.keys[0]
        clock.now += KEYS_LIFE_SECONDS
        assert await refusal(verifier, failing.token()) == "token: unknown key"

    async def test_invented_key_ids_do_not_hammer_the_issuer(self, failing: Issuer, clock: Clock) -> None:
        verifier = timed(failing, clock)
        tokens = [failing.token(kid=f"invented-{number}") for number in range(20)]
        reasons = await asyncio.gather(*(refusal(verifier, token) for token in tokens))
        assert set(reasons) == {"token: unknown key"}
        assert failing.fetches == 1

    async def test_nor_do_they_while_it_fails(self, failing: Issuer, clock: Clock) -> None:
        verifier = timed(failing, clock)
        await subject(verifier, failing.token())
        failing.status = 500
        clock.now += REFRESH_SECONDS
        for number in range(20):
            with pytest.raises(IdentityUnavailable):
                await subject(verifier, failing.token(kid=f"invented-{number}"))
        assert failing.fetches == 2
        # The longer it fails, the less often it is asked: after 1, 2, 4, 8, 16 and then 30 seconds.
        for _ in range(60):
            clock.now += 1
            with pytest.raises(IdentityUnavailable) as refused:
                await subject(verifier, failing.token(kid="invented"))
            assert 1 <= (refused.value.retry_after or 0) <= REFRESH_SECONDS
        assert failing.fetches == 2 + 5

    async def test_an_issuer_that_is_down_is_not_the_callers_fault(self, failing: Issuer, clock: Clock) -> None:
        verifier = timed(failing, clock)
        failing.status = 500
        for _ in range(3):
            with pytest.raises(IdentityUnavailable):
                await subject(verifier, failing.token())
        assert failing.fetches == 1
        failing.status = 200
        clock.now += 1
        assert await subject(verifier, failing.token()) == "ada"

    @pytest.mark.parametrize("status", [500, 503, 429, 404, 302])
    async def test_known_keys_outlive_a_short_failure(self, failing: Issuer, clock: Clock, status: int) -> None:
        verifier = timed(failing, clock)
        await subject(verifier, failing.token())
        failing.status = status
        clock.now += KEYS_KEPT_SECONDS - 1
        assert await subject(verifier, failing.token()) == "ada"
        assert failing.fetches == 2
        clock.now += 1
        with pytest.raises(OmniAgentError) as refused:
            await subject(verifier, failing.token())
        assert isinstance(refused.value, (ConfigurationError, IdentityUnavailable))

    @pytest.mark.parametrize(
        "garbage",
        [
            b"",
            b"<html>maintenance</html>",
            b"null",
            b"[]",
            b'"keys"',
            b"{}",
            b'{"keys": []}',
            b'{"keys": {}}',
            b'{"keys": "rsa"}',
            b'{"keys": [null, 7, "rsa", [], {}, {"kid": "rsa"}, {"kid": 7, "kty": "RSA"}]}',
            b'{"keys": [{"kid": "rsa", "kty": "RSA", "n": "AA", "e": "AA"}]}',
            b'{"keys": [{"kid": "rsa", "kty": "RSA", "n": 7, "e": null}]}',
            b'{"keys": [{"kid": "rsa", "kty": "oct", "k": "c2VjcmV0"}]}',
            b'{"keys": [{"kid": "rsa", "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}',
            b'{"keys": ' + b"[" * 100_000,
            b'{"keys": [' + b" " * MAX_ANSWER_BYTES + b"]}",
            b"\xff\xfe\x00",
        ],
        ids=lambda garbage: garbage[:40].decode("latin-1"),
    )
    async def test_garbage_is_a_failure_like_any_other(self, failing: Issuer, clock: Clock, garbage: bytes) -> None:
        verifier = timed(failing, clock)
        failing.garbage = garbage
        with pytest.raises(IdentityUnavailable):
            await subject(verifier, failing.token())
        failing.garbage = None
        clock.now += 1
        assert await subject(verifier, failing.token()) == "ada"
        failing.garbage = garbage
        clock.now += KEYS_LIFE_SECONDS
        assert await subject(verifier, failing.token()) == "ada"

    async def test_one_bad_key_does_not_spoil_the_others(self, failing: Issuer, clock: Clock) -> None:
        failing.keys[:0] = [
            {"kid": "bad", "kty": "RSA", "n": "AA", "e": "AA"},
            {"kid": "rsa", "use": "enc"},
            {"kid": "secret", "kty": "oct"},
            {**failing.keys[1], "kid": "none", "alg": "none"},
        ]
        assert await subject(timed(failing, clock), failing.token()) == "ada"

    async def test_a_private_key_or_a_shared_secret_is_no_signing_key(self, failing: Issuer, clock: Clock) -> None:
        failing.keys[0] = {**RSAAlgorithm.to_jwk(failing.rsa, as_dict=True), "kid": "rsa"}
        assert await refusal(timed(failing, clock), failing.token()) == "token: unknown key"

    async def test_an_address_without_keys_is_a_wrong_setting(self, failing: Issuer, clock: Clock) -> None:
        failing.status = 404
        with pytest.raises(ConfigurationError, match="answers 404"):
            await subject(timed(failing, clock), failing.token())

    async def test_a_redirect_is_not_followed(self, failing: Issuer) -> None:
        with Redirect(f"{failing.url}/.well-known/jwks.json") as redirect:
            verifier = TokenVerifier(settings(failing, jwt_jwks_url=redirect.url))
            with pytest.raises(ConfigurationError, match="answers 302"):
                await subject(verifier, failing.token())
        assert failing.fetches == 0

    async def test_an_issuer_that_trickles_is_given_up(self, failing: Issuer) -> None:
        with Trickle() as trickle:
            keys = SigningKeys(trickle.url, timeout_seconds=0.3)
            with pytest.raises(IdentityUnavailable, match="TimeoutError"):
                await keys.find("rsa")

    async def test_while_it_is_slow_known_keys_serve_and_nobody_asks_twice(self, clock: Clock) -> None:
        with Held() as held:
            verifier = timed(held, clock)
            await subject(verifier, held.token())
            clock.now += KEYS_LIFE_SECONDS
            held.go_on.clear()
            unknown = asyncio.create_task(refusal(verifier, held.token(kid="unknown")))
            await asyncio.to_thread(held.asked.wait)
            assert await subject(verifier, held.token()) == "ada"
            others = [asyncio.create_task(refusal(verifier, held.token(kid=f"u{number}"))) for number in range(5)]
            held.go_on.set()
            assert set(await asyncio.gather(unknown, *others)) == {"token: unknown key"}
            assert held.fetches == 2

    async def test_who_meets_a_refresh_of_keys_that_are_too_old_waits_for_it(self, clock: Clock) -> None:
        with Held() as held:
            verifier = timed(held, clock)
            await subject(verifier, held.token())
            clock.now += KEYS_KEPT_SECONDS
            held.go_on.clear()
            first = asyncio.create_task(subject(verifier, held.token()))
            await asyncio.to_thread(held.asked.wait)
            second = asyncio.create_task(subject(verifier, held.token()))
            await asyncio.sleep(0)
            held.go_on.set()
            assert [await first, await second] == ["ada", "ada"]
            assert held.fetches == 2

    async def test_a_clock_that_is_set_back_does_not_keep_the_issuer_from_being_asked(
        self, failing: Issuer, clock: Clock
    ) -> None:
        verifier = timed(failing, clock)
        failing.status = 500
        with pytest.raises(IdentityUnavailable):
            await subject(verifier, failing.token())
        failing.status = 200
        clock.now -= 500
        assert await subject(verifier, failing.token()) == "ada"

    async def test_after_a_cancelled_fetch_a_good_token_is_not_refused(self, clock: Clock) -> None:
        with Held() as held:
            verifier = timed(held, clock)
            held.go_on.clear()
            first = asyncio.create_task(subject(verifier, held.token()))
            await asyncio.to_thread(held.asked.wait)
            second = asyncio.create_task(subject(verifier, held.token()))
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(IdentityUnavailable):
                await second
            held.go_on.set()
            clock.now += 1
            assert await subject(verifier, held.token()) == "ada"


class Redirect(HttpServer):
    """Sends everybody elsewhere."""

    def __init__(self, location: str) -> None:
        super().__init__()
        self.headers = {"location": location}

    def answer(self, _: Received) -> tuple[int, bytes]:
        return 302, b""


class Trickle(HttpServer):
    """Sends its answer a byte at a time, each in good time, without an end."""

    def answer(self, _: Received) -> tuple[int, Iterator[bytes]]:
        return 200, self._bytes()

    def _bytes(self) -> Iterator[bytes]:
        while not self.closed.wait(0.01):
            yield b" "


class Held(Issuer):
    """Answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()
        self.asked = threading.Event()

    def answer(self, request: Received) -> tuple[int, bytes]:
        if not self.go_on.is_set():
            self.asked.set()
            self.go_on.wait()
        return super().answer(request)


def _forged(header: Json, issuer: Issuer) -> str:
    parts = (json.dumps(part).encode() for part in (header, issuer.claims()))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def _hmac_signed(header: Json, issuer: Issuer) -> str:
    """A token signed with the issuer's public key as if it were a shared secret."""
    signed = _forged(header, issuer)
    digest = hmac.new(issuer.public_pem, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
