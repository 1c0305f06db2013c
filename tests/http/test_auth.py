"""Who gets in, in each of the three modes."""

import base64
import hashlib
import hmac
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from omniagent.errors import ConfigurationError, IdentityUnavailable, InvalidRequest, Unauthenticated
from omniagent.http.auth import Authenticator, Caller, lazy_authenticator
from omniagent.http.loopback import is_loopback, is_loopback_origin
from omniagent.http.tokens import TokenVerifier
from omniagent.settings import Settings
from tests.fixtures.issuer import AUDIENCE, Issuer

Json = dict[str, Any]
ARN = "arn:aws:sts::123456789012:assumed-role/web-backend/web-backend"
PUBLIC = "abc.lambda-url.us-east-1.on.aws"


def scope(
    headers: dict[str, str] | None = None, *, context: Json | None = None, client: str = "203.0.113.7"
) -> dict[str, Any]:
    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    found: dict[str, Any] = {"type": "http", "headers": raw, "client": (client, 0)}
    return found if context is None else {**found, "aws.event": {"requestContext": context}}


def signed(headers: dict[str, str] | None = None) -> dict[str, Any]:
    return scope(headers, context={"authorizer": {"iam": {"userArn": ARN}}})


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def verifier(issuer: Issuer) -> TokenVerifier:
    return TokenVerifier(issuer.url, AUDIENCE)


class TestIam:
    authenticator = Authenticator(Settings(auth_mode="iam"))

    async def test_the_signer_is_the_user_when_it_names_none(self) -> None:
        assert await self.authenticator.authenticate(signed()) == Caller(f"iam:{ARN}")

    async def test_a_signer_names_its_user_and_their_category(self) -> None:
        caller = await self.authenticator.authenticate(signed({"x-user-id": "ada", "x-user-category": "pro"}))
        assert caller == Caller("user:ada", "pro")

    async def test_a_named_user_is_never_a_principal(self) -> None:
        for name in (ARN, f"iam:{ARN}", "jwt:ada"):
            caller = await self.authenticator.authenticate(signed({"x-user-id": name}))
            assert caller.client_id == f"user:{name}"

    @pytest.mark.parametrize("context", [None, {}, {"authorizer": None}, {"authorizer": {"iam": None}}])
    async def test_without_a_signature_nobody_gets_in(self, context: Json | None) -> None:
        with pytest.raises(Unauthenticated) as refused:
            await self.authenticator.authenticate(scope({"x-user-id": "ada"}, context=context))
        assert refused.value.challenge == "AWS4-HMAC-SHA256"

    @pytest.mark.parametrize("name", ["a" * 257, "ada,eve", "a\x00b", "a\nb", "\u202eada"])
    async def test_a_name_that_is_not_plain_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidRequest, match="x-user-id"):
            await self.authenticator.authenticate(signed({"x-user-id": name}))

    async def test_two_names_are_refused(self) -> None:
        twice = signed({"x-user-id": "ada"})
        twice["headers"].append((b"x-user-id", b"eve"))
        with pytest.raises(InvalidRequest):
            await self.authenticator.authenticate(twice)


class TestNone:
    authenticator = Authenticator(Settings(auth_mode="none"), local=True)

    @pytest.mark.parametrize("host", ["127.0.0.1:3000", "localhost", "chat.localhost:3000", "[::1]:3000"])
    async def test_this_machine_gets_in(self, host: str) -> None:
        here = scope({"host": host}, client="127.0.0.1", context={"domainName": host})
        assert await self.authenticator.authenticate(here) == Caller("local:me")

    async def test_a_name_can_be_chosen(self) -> None:
        here = scope({"host": "localhost", "x-user-id": "ada"}, client="::1")
        assert await self.authenticator.authenticate(here) == Caller("local:ada")

    @pytest.mark.parametrize(
        ("host", "domain", "client"),
        [
            (PUBLIC, PUBLIC, "203.0.113.7"),
            ("localhost", PUBLIC, "127.0.0.1"),
            ("localhost", "localhost", "203.0.113.7"),
            ("evil.example", "localhost", "127.0.0.1"),
            ("", "localhost", "127.0.0.1"),
            ("localhost.evil.example", "localhost", "127.0.0.1"),
            ("[::1]evil.example", "localhost", "127.0.0.1"),
        ],
    )
    async def test_nobody_else_does(self, host: str, domain: str, client: str) -> None:
        with pytest.raises(Unauthenticated):
            await self.authenticator.authenticate(scope({"host": host}, client=client, context={"domainName": domain}))

    @pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:8080", "https://app.localhost"])
    async def test_a_page_of_this_machine_may_call(self, origin: str) -> None:
        here = scope({"host": "localhost", "origin": origin}, client="127.0.0.1")
        assert await self.authenticator.authenticate(here) == Caller("local:me")

    @pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example", "file://"])
    async def test_a_page_from_elsewhere_may_not(self, origin: str) -> None:
        """A body without a content type is a simple request: a browser would send it without asking first."""
        there = scope({"host": "localhost", "origin": origin}, client="127.0.0.1")
        with pytest.raises(Unauthenticated):
            await self.authenticator.authenticate(there)

    def test_on_lambda_the_mode_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="OMNIAGENT_LOCAL"):
            Authenticator(Settings(auth_mode="none"))

    async def test_a_wrong_mode_is_an_error_of_the_request_and_not_of_the_import(self) -> None:
        authenticate = lazy_authenticator(Settings(auth_mode="none"), local=False)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="OMNIAGENT_LOCAL"):
                await authenticate(scope({"host": "localhost"}, client="127.0.0.1"))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9:80", True),
        ("::1", True),
        ("[::1]", True),
        ("", False),
        ("10.0.0.1", False),
        ("127.0.0.1.evil.example", False),
        ("localhost@evil.example", False),
        ("::ffff:8.8.8.8", False),
        ("[", False),
        ("LOCALHOST:3000", True),
        ("a.localhost", True),
        ("[::1]:443", True),
        ("[::1]evil.example", False),
        ("[::1", False),
        ("localhost:evil", False),
        ("localhost:80:80", False),
        ("localhost:", False),
        ("evil.example#.localhost", False),
        ("evil.example/.localhost", False),
        ("evil@localhost", False),
        ("localhost\n", False),
        ("notlocalhost", False),
        (".localhost", False),
        ("127.0.0.1.", False),
        ("127.0.0.1.nip.io", False),
        ("127.1", False),
        ("0x7f.0.0.1", False),
        ("2130706433", False),
        ("0.0.0.0", False),
        ("::ffff:127.0.0.1", False),
        ("[::ffff:127.0.0.1]", False),
        ("::1%lo", False),
        ("[fe80::1]", False),
    ],
)
def test_loopback_is_only_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    "origin", ["http://localhost", "https://127.0.0.1:8443", "http://[::1]:80", "http://a.localhost"]
)
def test_a_page_of_this_machine_is_one(origin: str) -> None:
    assert is_loopback_origin(origin)


@pytest.mark.parametrize(
    "origin",
    [
        *("", "null", "localhost", "//localhost", "file://", "file://localhost", "chrome-extension://localhost"),
        *("http://localhost/", "http://localhost?", "http://localhost#", "http://user@localhost", "http://localhost:x"),
        *("http://localhost.evil.example", "http://127.0.0.1.nip.io", "http://localhost, http://evil.example"),
        *("http://localhost\n", " http://localhost", "http://evil.example\\@localhost", "HTTP://localhost:123456"),
    ],
)
def test_any_other_page_is_not(origin: str) -> None:
    assert not is_loopback_origin(origin)


class TestJwt:
    async def test_the_subject_of_a_good_token_is_the_user(self, issuer: Issuer) -> None:
        authenticator = Authenticator(Settings(auth_mode="jwt", jwt_issuer=issuer.url, jwt_audience=AUDIENCE))
        good = scope({"authorization": f"Bearer {issuer.token()}", "x-user-id": "eve"})
        assert await authenticator.authenticate(good) == Caller("jwt:ada")

    async def test_each_kind_of_published_key_is_taken(self, issuer: Issuer, verifier: TokenVerifier) -> None:
        for token in (
            issuer.token(),
            issuer.token(key=issuer.ec, algorithm="ES256", kid="ec"),
            issuer.token(key=issuer.ed, algorithm="EdDSA", kid="ed"),
            issuer.token(aud=["other", AUDIENCE]),
            issuer.token(exp=int(time.time()) - 20),
        ):
            assert await verifier.subject(f"bearer {token}") == "ada"

    @pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic YTpi", "Token x"])
    async def test_without_a_token_nobody_gets_in(self, verifier: TokenVerifier, authorization: str) -> None:
        with pytest.raises(Unauthenticated, match="bearer") as refused:
            await verifier.subject(authorization)
        assert refused.value.challenge == 'Bearer realm="omniagent"'

    @pytest.mark.parametrize(
        "changes",
        [
            {"exp": 1},
            {"exp": None},
            {"exp": "soon"},
            {"iss": "https://evil.example"},
            {"iss": None},
            {"aud": "another-app"},
            {"aud": None},
            {"sub": None},
            {"sub": ""},
            {"sub": "x" * 257},
            {"nbf": 9_999_999_999},
            {"iat": 9_999_999_999},
            {"kid": None},
            {"kid": "unknown"},
            {"kid": "ec"},
            {"kid": "rsa", "key": "other rsa"},
            {"kid": "ec", "key": "other ec", "algorithm": "ES256"},
            {"kid": "rsa", "algorithm": "PS256"},
            {"kid": "rsa", "algorithm": "RS512"},
        ],
        ids=str,
    )
    async def test_a_token_with_a_flaw_is_refused(
        self, issuer: Issuer, verifier: TokenVerifier, changes: dict[str, Any]
    ) -> None:
        others: dict[str, Callable[[], Any]] = {
            "other rsa": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "other ec": lambda: ec.generate_private_key(ec.SECP256R1()),
        }
        if "key" in changes:
            changes = {**changes, "key": others[changes["key"]]()}
        with pytest.raises(Unauthenticated) as refused:
            await verifier.subject(f"Bearer {issuer.token(**changes)}")
        assert 'error="invalid_token"' in refused.value.challenge

    async def test_a_forged_algorithm_is_refused_without_asking_for_keys(self, issuer: Issuer) -> None:
        def forged(header: Json) -> str:
            parts = (json.dumps(part).encode() for part in (header, issuer.claims()))
            return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)

        before = issuer.fetches
        verifier = TokenVerifier(issuer.url, AUDIENCE)
        signature = _hmac(forged({"alg": "HS256", "kid": "rsa"}), issuer.public_pem)
        for token in (
            forged({"alg": "none", "kid": "rsa"}) + ".",
            forged({"alg": "None", "kid": "rsa"}) + ".",
            forged({"alg": "HS256", "kid": "rsa"}) + "." + signature,
            forged({"kid": "rsa"}) + ".",
            "not.a.token",
            "a.b",
            "é.é.é",
        ):
            with pytest.raises(Unauthenticated):
                await verifier.subject(f"Bearer {token}")
        assert issuer.fetches == before

    async def test_keys_are_fetched_once_and_again_for_a_new_key_id(self) -> None:
        with Issuer() as issuer:
            verifier = TokenVerifier(issuer.url, AUDIENCE, refresh_interval_seconds=0)
            for _ in range(3):
                await verifier.subject(f"Bearer {issuer.token()}")
            assert issuer.fetches == 1
            issuer.keys.append({**issuer.keys[0], "kid": "rotated"})
            assert await verifier.subject(f"Bearer {issuer.token(kid='rotated')}") == "ada"
            assert issuer.fetches == 2

    async def test_invented_key_ids_do_not_hammer_the_issuer(self) -> None:
        with Issuer() as issuer:
            verifier = TokenVerifier(issuer.url, AUDIENCE, refresh_interval_seconds=3600)
            for number in range(5):
                with pytest.raises(Unauthenticated):
                    await verifier.subject(f"Bearer {issuer.token(kid=f'invented-{number}')}")
            assert issuer.fetches == 1

    async def test_an_issuer_that_is_down_is_not_the_callers_fault(self) -> None:
        with Issuer() as issuer:
            issuer.status = 500
            verifier = TokenVerifier(issuer.url, AUDIENCE)
            with pytest.raises(IdentityUnavailable):
                await verifier.subject(f"Bearer {issuer.token()}")
            issuer.status = 200
            assert await verifier.subject(f"Bearer {issuer.token()}") == "ada"

    async def test_an_address_without_keys_is_a_wrong_setting(self) -> None:
        with Issuer() as issuer:
            issuer.status = 404
            with pytest.raises(ConfigurationError, match="answers 404"):
                await TokenVerifier(issuer.url, AUDIENCE).subject(f"Bearer {issuer.token()}")

    @pytest.mark.parametrize(
        ("settings", "missing"),
        [
            ({"jwt_audience": "a"}, "JWT_ISSUER"),
            ({"jwt_issuer": "https://issuer.example"}, "JWT_AUDIENCE"),
            ({"jwt_issuer": "http://issuer.example", "jwt_audience": "a"}, "https"),
            ({"jwt_issuer": "https://i", "jwt_audience": "a", "jwt_jwks_url": "http://i/keys"}, "https"),
            ({"jwt_issuer": "https://i", "jwt_audience": "a", "jwt_jwks_url": "file:///etc/passwd"}, "https"),
        ],
    )
    def test_half_a_configuration_is_refused(self, settings: dict[str, str], missing: str) -> None:
        with pytest.raises(ConfigurationError, match=missing):
            Authenticator(Settings(auth_mode="jwt", **settings))  # type: ignore[arg-type]  # all of them are texts

    async def test_no_token_is_ever_logged(
        self, issuer: Issuer, verifier: TokenVerifier, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        for token in (issuer.token(exp=1), issuer.token(kid="unknown"), "abc.def.ghi"):
            with pytest.raises(Unauthenticated) as refused:
                await verifier.subject(f"Bearer {token}")
            shown = caplog.text + str(refused.value) + refused.value.challenge
            assert not any(part in shown for part in token.split("."))


def test_no_cryptography_is_imported_before_a_token_comes() -> None:
    code = "import sys, omniagent.http.auth; print(sorted({'jwt', 'cryptography', 'boto3'} & set(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


def _hmac(signed_part: str, secret: bytes) -> str:
    digest = hmac.new(secret, signed_part.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
