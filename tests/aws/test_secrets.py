"""Secrets come from Secrets Manager, are kept, and are read again after a rotation."""

import asyncio
import logging
import os
import socket
import time
import traceback
from collections.abc import Iterator

import pytest

from local.aws import Aws
from omniagent.aws.secrets import SecretStore
from omniagent.errors import ConfigurationError, SecretsUnavailable
from omniagent.invocation import RESPONSE_SECONDS, invocation_end
from tests.fixtures.http_server import Endpoint

SLOW = "arn:aws:secretsmanager:us-east-1:123456789012:secret:slow"


pytestmark = pytest.mark.usefixtures("local_aws")


@pytest.fixture
def silent_endpoint(local_aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An AWS that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("mongodb://me:pw@host/db", "mongodb://me:pw@host/db"),
        ("  sk-plain\n", "sk-plain"),
        ('{"uri": "mongodb://one", "MONGODB_URI": "mongodb://two"}', "mongodb://one"),
        ('{"MONGODB_URI": "mongodb://two", "username": "me"}', "mongodb://two"),
        ("123456", "123456"),
    ],
)
async def test_a_secret_is_a_plain_string_or_one_key_of_a_json_object(aws: Aws, stored: str, expected: str) -> None:
    arn = aws.put_secret("shapes", stored)
    assert await SecretStore().get(arn, "uri", "MONGODB_URI") == expected


async def test_a_secret_is_kept_until_it_is_refreshed(aws: Aws) -> None:
    arn = aws.put_secret("rotated", "first")
    store = SecretStore(refresh_interval_seconds=0)
    assert await store.get(arn) == "first"
    aws.put_secret("rotated", "second")
    assert await store.get(arn) == "first"
    assert await store.get(arn, refresh=True) == "second"
    assert await store.get(arn) == "second"


async def test_refreshes_in_quick_succession_read_nothing_new(aws: Aws) -> None:
    arn = aws.put_secret("hammered", "first")
    store = SecretStore(refresh_interval_seconds=3600)
    assert await store.get(arn, refresh=True) == "first"
    aws.put_secret("hammered", "second")
    assert await asyncio.gather(*(store.get(arn, refresh=True) for _ in range(5))) == ["first"] * 5


async def test_a_missing_secret_is_named_with_what_to_check(aws: Aws) -> None:
    arn = aws.put_secret("present", "x").replace("present", "absent")
    with pytest.raises(ConfigurationError, match=r"absent: ResourceNotFoundException.*GetSecretValue"):
        await SecretStore().get(arn)


async def test_a_binary_secret_is_refused(aws: Aws) -> None:
    arn = aws.secrets.create_secret(Name="binary", SecretBinary=b"\x00\x01")["ARN"]
    with pytest.raises(ConfigurationError, match="empty or binary"):
        await SecretStore().get(arn)


@pytest.mark.usefixtures("silent_endpoint")
@pytest.mark.parametrize(("seconds", "invocation"), [(0.2, 900.0), (900.0, RESPONSE_SECONDS + 0.2)])
async def test_a_service_that_does_not_answer_is_unavailable_within_the_invocation(
    seconds: float, invocation: float
) -> None:
    invocation_end.set(time.monotonic() + invocation)
    with pytest.raises(SecretsUnavailable, match="slow") as failure:
        await SecretStore(timeout_seconds=seconds).get(SLOW)
    assert (failure.value.status, failure.value.retry_after) == (503, 2.0)


async def test_a_service_that_fails_for_a_moment_is_called_again_for_all_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Endpoint((503, b""), (503, b""), (503, b""), (503, b""), (200, {"SecretString": "key"})) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
        store = SecretStore()
        assert await asyncio.gather(*(store.get(SLOW) for _ in range(4))) == ["key"] * 4
    assert len(endpoint.requests) == 5


# The ids keep the values out of the environment: pytest puts the test's name there.
@pytest.mark.parametrize(
    "stored",
    ['{"other": "hunter22"}', '{"uri": {"nested": "hunter22"}}', '{"uri": ["hunter22"]}'],
    ids=["other", "object", "list"],
)
async def test_a_value_is_never_in_an_error_a_log_or_the_environment(
    aws: Aws, stored: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "omniagent")
    arn = aws.put_secret("quiet", stored)
    store = SecretStore()
    with pytest.raises(ConfigurationError, match="none of the keys uri") as failure:
        await store.get(arn, "uri")
    shown = "".join(traceback.format_exception(failure.value)) + caplog.text + str(os.environ) + repr(vars(store))
    assert "hunter22" not in shown
