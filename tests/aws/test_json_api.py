"""The calls to AWS, against a server that fails."""

import math
import ssl
from typing import Any

import httpcore2
import pytest

from local.aws import Aws
from omniagent.aws.client import DYNAMODB, AwsJson, AwsRefused, AwsUnreachable, CredentialCache
from tests.fixtures.http_server import Endpoint, container_keys
from tests.fixtures.proxy import proxy_to

KEYS = CredentialCache({"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"})
TABLES: Any = {"TableNames": []}
EXPIRED = (400, {"__type": "x#ExpiredTokenException"})


async def list_tables(url: str, credentials: CredentialCache = KEYS, **options: Any) -> Any:
    """Call an operation with a client of its own."""
    api = AwsJson(DYNAMODB, endpoint=url, credentials=credentials)
    try:
        return await api.call("ListTables", **options)
    finally:
        await api.aclose()


async def test_a_server_that_comes_back_is_called_again(aws: Aws) -> None:
    async with proxy_to(aws.endpoint) as server:
        api = AwsJson(DYNAMODB, endpoint=server.url, credentials=KEYS)
        await api.call("ListTables")
        with server.down(), pytest.raises(AwsUnreachable):
            await api.call("ListTables")
        assert "TableNames" in await api.call("ListTables")
        await api.aclose()


@pytest.mark.parametrize(
    "failure",
    [ssl.SSLError("broken"), OSError("no route"), httpcore2.ReadTimeout("silence")],
    ids=lambda failure: type(failure).__name__,
)
async def test_whatever_breaks_on_the_way_is_one_error(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    async def request(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(httpcore2.AsyncConnectionPool, "request", request)
    with pytest.raises(AwsUnreachable, match=type(failure).__name__):
        await list_tables("http://127.0.0.1:1", attempts=1)


@pytest.mark.parametrize(
    "answer",
    [
        (500, {"__type": "InternalServerError"}),
        (400, {"__type": "com.amazonaws#ThrottlingException"}),
        (400, {"__type": "com.amazonaws.sqs#KMS.ThrottlingException"}),
        (429, {}),
        (503, b"<html>"),
    ],
    ids=["500", "throttled", "kms", "429", "html"],
)
async def test_what_may_pass_is_tried_again(answer: tuple[int, Any]) -> None:
    with Endpoint(answer, (200, TABLES)) as endpoint:
        assert await list_tables(endpoint.url) == TABLES
    assert len(endpoint.requests) == 2


async def test_a_patient_call_is_repeated_as_long_as_its_time_lasts() -> None:
    busy = (400, {"__type": "ThrottlingException"})
    with Endpoint(*[busy] * 5, (200, TABLES)) as endpoint:
        with pytest.raises(AwsUnreachable):
            await list_tables(endpoint.url, attempts=math.inf, seconds=0)
        assert len(endpoint.requests) == 1
        assert await list_tables(endpoint.url, attempts=math.inf, seconds=600) == TABLES
    assert len(endpoint.requests) == 6


@pytest.mark.parametrize(
    ("answer", "said"),
    [((400, {"__type": "x#AccessDeniedException", "Message": "no"}), "Denied.*: no"), (EXPIRED, "ExpiredToken")],
    ids=["denied", "expired keys of the environment"],
)
async def test_a_refusal_is_not_tried_again(answer: tuple[int, Any], said: str) -> None:
    with Endpoint(answer) as endpoint, pytest.raises(AwsRefused, match=said):
        await list_tables(endpoint.url)
    assert len(endpoint.requests) == 1


async def test_an_expired_token_is_renewed_once() -> None:
    with Endpoint((200, container_keys("first")), (200, container_keys("second"))) as keys:
        credentials = CredentialCache({"AWS_CONTAINER_CREDENTIALS_FULL_URI": keys.url})
        with Endpoint(EXPIRED, (200, TABLES)) as endpoint:
            assert await list_tables(endpoint.url, credentials) == TABLES
    assert [request["x-amz-security-token"] for request in endpoint.requests] == ["token-first", "token-second"]
