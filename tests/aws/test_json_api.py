"""The signed calls to AWS, against botocore's own signer and a server that fails."""

import asyncio
import math
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import anyio
import httpcore2
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from local.aws import Aws
from omniagent.aws.credentials import CredentialCache, Credentials
from omniagent.aws.http_pool import AwsRefused, AwsUnreachable
from omniagent.aws.json_api import DYNAMODB, AwsJson
from omniagent.aws.signature import sign
from tests.fixtures.endpoint import Endpoint, container_keys
from tests.fixtures.proxy import proxy_to

NOW = datetime(2026, 11, 16, 1, 2, 3, tzinfo=UTC)
KEYS = CredentialCache({"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"})


@given(
    body=st.binary(max_size=200),
    token=st.none() | st.text("abcXYZ019+/=", min_size=1),
    secret=st.text("abcXYZ019+/", min_size=1),
    region=st.sampled_from(["us-east-1", "eu-central-1"]),
)
def test_the_signature_is_the_one_that_botocore_makes(body: bytes, token: str | None, secret: str, region: str) -> None:
    host = f"dynamodb.{region}.amazonaws.com"
    headers = {
        "content-type": DYNAMODB.content_type,
        "host": host,
        "x-amz-target": "DynamoDB_20120810.PutItem",
        **({"x-amz-security-token": token} if token else {}),
    }
    signer = SigV4Auth(BotoCredentials("AKID", secret, token), "dynamodb", region)
    stamp = NOW.strftime("%Y%m%dT%H%M%SZ")
    request = AWSRequest("POST", f"https://{host}/", headers={**headers, "x-amz-date": stamp}, data=body)
    request.context["timestamp"] = stamp
    theirs = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    ours = sign(
        headers, body, service="dynamodb", region=region, credentials=Credentials("AKID", secret, token), now=NOW
    )
    assert ours["authorization"].endswith(f"Signature={theirs}")
    assert f"Credential=AKID/20261116/{region}/dynamodb/aws4_request" in ours["authorization"]


@pytest.fixture
async def api(aws: Aws) -> AsyncIterator[AwsJson]:
    made = AwsJson(DYNAMODB, endpoint=aws.endpoint, credentials=KEYS)
    yield made
    await made.aclose()


async def test_a_refusal_has_awss_own_code(api: AwsJson) -> None:
    with pytest.raises(AwsRefused) as refused:
        await api.call("GetItem", TableName="no-such-table", Key={"session_id": {"S": "a"}, "item": {"S": "b"}})
    assert refused.value.code == "ResourceNotFoundException"


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
    [
        ssl.SSLError("broken"),
        OSError("no route"),
        anyio.ClosedResourceError(),
        anyio.EndOfStream(),
        RuntimeError("another loop"),
        httpcore2.ReadTimeout("silence"),
        MemoryError(),
        asyncio.CancelledError("of a task that nobody here has cancelled"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_whatever_breaks_on_the_way_is_one_error(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    async def request(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(httpcore2.AsyncConnectionPool, "request", request)
    api = AwsJson(DYNAMODB, endpoint="http://127.0.0.1:1", credentials=KEYS, attempts=1)
    with pytest.raises(AwsUnreachable, match=type(failure).__name__):
        await api.call("ListTables")
    await api.aclose()


async def test_a_cancelled_call_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = asyncio.Event()

    async def request(*_: Any, **__: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(httpcore2.AsyncConnectionPool, "request", request)
    api = AwsJson(DYNAMODB, endpoint="http://127.0.0.1:1", credentials=KEYS)
    call = asyncio.create_task(api.call("ListTables"))
    await entered.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await api.aclose()


@pytest.mark.parametrize(
    "answer",
    [
        (500, {"__type": "InternalServerError"}),
        (400, {"__type": "com.amazonaws#ThrottlingException"}),
        (400, {"__type": "com.amazonaws.sqs#KMS.ThrottlingException"}),
        (429, {}),
        (503, b"<html>"),
        (200, b"[]"),
        (200, b"[" * 100_000),
    ],
    ids=["500", "throttled", "kms", "429", "html", "list", "nested"],
)
async def test_what_may_pass_is_tried_again(answer: tuple[int, Any]) -> None:
    with Endpoint(answer, (200, {"TableNames": []})) as endpoint:
        api = AwsJson(DYNAMODB, endpoint=endpoint.url, credentials=KEYS)
        assert await api.call("ListTables") == {"TableNames": []}
        await api.aclose()
    assert len(endpoint.requests) == 2


async def test_a_patient_call_is_repeated_as_long_as_its_time_lasts() -> None:
    busy = (400, {"__type": "ThrottlingException"})
    with Endpoint(*[busy] * 5, (200, {"TableNames": []})) as endpoint:
        api = AwsJson(DYNAMODB, endpoint=endpoint.url, credentials=KEYS)
        with pytest.raises(AwsUnreachable):
            await api.call("ListTables", attempts=math.inf, seconds=0)
        assert len(endpoint.requests) == 1
        assert await api.call("ListTables", attempts=math.inf, seconds=600) == {"TableNames": []}
        await api.aclose()
    assert len(endpoint.requests) == 6


async def test_a_refusal_is_not_tried_again() -> None:
    with Endpoint((400, {"__type": "x#AccessDeniedException", "Message": "no"})) as endpoint:
        api = AwsJson(DYNAMODB, endpoint=endpoint.url, credentials=KEYS)
        with pytest.raises(AwsRefused, match="AccessDeniedException: no"):
            await api.call("ListTables")
        await api.aclose()
    assert len(endpoint.requests) == 1


async def test_an_expired_token_is_renewed_once() -> None:
    expired = (400, {"__type": "x#ExpiredTokenException"})
    with Endpoint((200, container_keys("first")), (200, container_keys("second"))) as keys:
        credentials = CredentialCache({"AWS_CONTAINER_CREDENTIALS_FULL_URI": keys.url})
        with Endpoint(expired, (200, {"TableNames": []})) as endpoint:
            api = AwsJson(DYNAMODB, endpoint=endpoint.url, credentials=credentials)
            assert await api.call("ListTables") == {"TableNames": []}
            await api.aclose()
    assert [request["x-amz-security-token"] for request in endpoint.requests] == ["token-first", "token-second"]


async def test_keys_of_the_environment_that_have_expired_are_a_refusal() -> None:
    credentials = CredentialCache({"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret"})
    with Endpoint((400, {"__type": "x#ExpiredTokenException"})) as endpoint:
        api = AwsJson(DYNAMODB, endpoint=endpoint.url, credentials=credentials)
        with pytest.raises(AwsRefused, match="ExpiredToken"):
            await api.call("ListTables")
        await api.aclose()
    assert len(endpoint.requests) == 1
