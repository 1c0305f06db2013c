"""The issuer's keys: when they are fetched, kept and refused, and what happens while the issuer is away."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from jwt.algorithms import RSAAlgorithm

from omniagent.errors import ConfigurationError, IdentityUnavailable, OmniAgentError
from omniagent.http.tokens import (
    KEYS_KEPT_SECONDS,
    KEYS_LIFE_SECONDS,
    MAX_ANSWER_BYTES,
    REFRESH_SECONDS,
    SigningKeys,
    TokenVerifier,
)
from tests.fixtures.conversation import Clock
from tests.fixtures.http_server import HttpServer, Received
from tests.fixtures.issuer import Issuer
from tests.http.test_tokens import refusal, settings, subject


@pytest.fixture
def failing() -> Iterator[Issuer]:
    """An issuer of the test's own, which may fail."""
    with Issuer() as issuer:
        yield issuer


def timed(issuer: Issuer, clock: Clock) -> TokenVerifier:
    """A verifier of this issuer's tokens whose keys grow old by the test's clock."""
    return TokenVerifier(settings(issuer), SigningKeys(f"{issuer.url}/.well-known/jwks.json", clock=clock))


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


async def test_keys_are_fetched_once_and_again_for_a_new_key_id(failing: Issuer, clock: Clock) -> None:
    verifier = timed(failing, clock)
    for _ in range(3):
        await subject(verifier, failing.token())
    assert failing.fetches == 1
    failing.keys.append({**failing.keys[0], "kid": "rotated"})
    clock.now += REFRESH_SECONDS
    assert await subject(verifier, failing.token(kid="rotated")) == "ada"
    assert failing.fetches == 2


async def test_a_key_that_is_withdrawn_is_refused_once_the_keys_are_old(failing: Issuer, clock: Clock) -> None:
    verifier = timed(failing, clock)
    await subject(verifier, failing.token())
    del failing.keys[0]
    clock.now += KEYS_LIFE_SECONDS
    assert await refusal(verifier, failing.token()) == "token: unknown key"


async def test_invented_key_ids_do_not_hammer_the_issuer(failing: Issuer, clock: Clock) -> None:
    verifier = timed(failing, clock)
    tokens = [failing.token(kid=f"invented-{number}") for number in range(20)]
    reasons = await asyncio.gather(*(refusal(verifier, token) for token in tokens))
    assert set(reasons) == {"token: unknown key"}
    assert failing.fetches == 1


async def test_nor_do_they_while_it_fails(failing: Issuer, clock: Clock) -> None:
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


async def test_an_issuer_that_is_down_is_not_the_callers_fault(failing: Issuer, clock: Clock) -> None:
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
async def test_known_keys_outlive_a_short_failure(failing: Issuer, clock: Clock, status: int) -> None:
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
async def test_garbage_is_a_failure_like_any_other(failing: Issuer, clock: Clock, garbage: bytes) -> None:
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


async def test_one_bad_key_does_not_spoil_the_others(failing: Issuer, clock: Clock) -> None:
    failing.keys[:0] = [
        {"kid": "bad", "kty": "RSA", "n": "AA", "e": "AA"},
        {"kid": "rsa", "use": "enc"},
        {"kid": "secret", "kty": "oct"},
        {**failing.keys[1], "kid": "none", "alg": "none"},
    ]
    assert await subject(timed(failing, clock), failing.token()) == "ada"


async def test_a_private_key_or_a_shared_secret_is_no_signing_key(failing: Issuer, clock: Clock) -> None:
    failing.keys[0] = {**RSAAlgorithm.to_jwk(failing.rsa, as_dict=True), "kid": "rsa"}
    assert await refusal(timed(failing, clock), failing.token()) == "token: unknown key"


async def test_an_address_without_keys_is_a_wrong_setting(failing: Issuer, clock: Clock) -> None:
    failing.status = 404
    with pytest.raises(ConfigurationError, match="answers 404"):
        await subject(timed(failing, clock), failing.token())


async def test_a_redirect_is_not_followed(failing: Issuer) -> None:
    with Redirect(f"{failing.url}/.well-known/jwks.json") as redirect:
        verifier = TokenVerifier(settings(failing, jwt_jwks_url=redirect.url))
        with pytest.raises(ConfigurationError, match="answers 302"):
            await subject(verifier, failing.token())
    assert failing.fetches == 0


async def test_an_issuer_that_trickles_is_given_up(failing: Issuer) -> None:
    with Trickle() as trickle:
        keys = SigningKeys(trickle.url, timeout_seconds=0.3)
        with pytest.raises(IdentityUnavailable, match="TimeoutError"):
            await keys.find("rsa")


async def test_while_it_is_slow_known_keys_serve_and_nobody_asks_twice(clock: Clock) -> None:
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


async def test_after_a_cancelled_fetch_a_good_token_is_not_refused(clock: Clock) -> None:
    with Held() as held:
        verifier = timed(held, clock)
        held.go_on.clear()
        first = asyncio.create_task(subject(verifier, held.token()))
        await asyncio.to_thread(held.asked.wait)
        second = asyncio.create_task(subject(verifier, held.token()))
        await asyncio.sleep(0)
        first.cancel()
        held.go_on.set()
        assert await second == "ada"
