"""Where credentials come from, and how often."""

import asyncio
from pathlib import Path

import pytest

from omniagent.aws.client import AwsRefused, AwsUnreachable, CredentialCache, Credentials
from tests.fixtures.http_server import Endpoint, container_keys

URI = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
TOKEN = "AWS_CONTAINER_AUTHORIZATION_TOKEN"


async def test_keys_in_the_environment_come_first() -> None:
    environment = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t", URI: "http://x"}
    assert await CredentialCache(environment).get() == Credentials("AKID", "s", "t")


async def test_a_container_s_endpoint_is_asked_once_for_many_calls() -> None:
    with Endpoint((200, container_keys("a"))) as endpoint:
        cache = CredentialCache({URI: endpoint.url, TOKEN: "Bearer let-me-in"})
        found = await asyncio.gather(*(cache.get() for _ in range(20)))
        assert {*found, await cache.get()} == {Credentials("key-a", "secret-a", "token-a")}
    assert [request["authorization"] for request in endpoint.requests] == ["Bearer let-me-in"]


async def test_the_endpoints_token_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-the-file\n")
    environment = {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"), TOKEN: "another"}
    with Endpoint((200, container_keys("a"))) as endpoint:
        await CredentialCache({URI: endpoint.url, **environment}).get()
    assert endpoint.requests[0]["authorization"] == "from-the-file"
    (tmp_path / "token").unlink()
    with pytest.raises(AwsUnreachable):
        await CredentialCache({URI: "http://127.0.0.1:1", **environment}).get()


async def test_expired_credentials_are_read_again() -> None:
    with Endpoint((200, container_keys("old", seconds=-1)), (200, container_keys("new"))) as endpoint:
        cache = CredentialCache({URI: endpoint.url})
        names = [(await cache.get()).access_key for _ in range(3)]
    assert names == ["key-old", "key-new", "key-new"]


async def test_forgotten_credentials_are_read_again() -> None:
    with Endpoint((200, container_keys("one")), (200, container_keys("two"))) as endpoint:
        cache = CredentialCache({URI: endpoint.url})
        await cache.get()
        cache.forget()
        assert (await cache.get()).access_key == "key-two"


@pytest.mark.parametrize("answer", [(500, {}), (200, b"<html>"), (200, {"AccessKeyId": "half-a-secret"})])
async def test_an_endpoint_that_fails_is_unreachable_and_its_answer_stays_unquoted(answer: tuple[int, object]) -> None:
    with Endpoint(answer) as endpoint, pytest.raises(AwsUnreachable) as failure:
        await CredentialCache({URI: endpoint.url}).get()
    assert "half-a-secret" not in str(failure.value)


@pytest.mark.parametrize("uri", ["http://evil.example/keys", "http://127.0.0.1.evil.example", "http://8.8.8.8", "keys"])
async def test_the_token_goes_to_no_strange_host(uri: str) -> None:
    with pytest.raises(AwsRefused, match="UntrustedCredentialsEndpoint"):
        await CredentialCache({URI: uri, TOKEN: "secret"}).get()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for a profile, and no keys elsewhere."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


async def test_elsewhere_botocore_finds_a_profile(home: Path) -> None:
    keys = "[default]\naws_access_key_id = AKIDFILE\naws_secret_access_key = file-secret\n"
    (home / "credentials").write_text(keys)
    cache = CredentialCache({})
    assert await cache.get() == Credentials("AKIDFILE", "file-secret", None)
    (home / "credentials").unlink()
    assert (await cache.get()).access_key == "AKIDFILE"


@pytest.mark.usefixtures("home")
async def test_a_profile_that_botocore_cannot_read_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(AwsUnreachable, match="ProfileNotFound"):
        await CredentialCache({}).get()


@pytest.mark.usefixtures("home")
async def test_without_any_credentials_the_error_says_what_to_set() -> None:
    with pytest.raises(AwsRefused, match="AWS_ACCESS_KEY_ID"):
        await CredentialCache({}).get()


def test_secret_values_are_not_shown() -> None:
    assert "hidden" not in repr(Credentials("AKID", "hidden", "hidden-too"))
