"""The signed calls to AWS, against botocore's own signer and a server that fails."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from local.aws import Aws
from omniagent.aws.json_api import DYNAMODB, AwsJson, AwsRefused, AwsUnreachable, Credentials, sign

NOW = datetime(2026, 11, 16, 1, 2, 3, tzinfo=UTC)


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
    made = AwsJson(DYNAMODB, endpoint=aws.endpoint, credentials=lambda: Credentials("local", "local"))
    yield made
    await made.aclose()


async def test_a_refusal_has_awss_own_code(api: AwsJson) -> None:
    with pytest.raises(AwsRefused) as refused:
        await api.call("GetItem", TableName="no-such-table", Key={"session_id": {"S": "a"}, "item": {"S": "b"}})
    assert refused.value.code == "ResourceNotFoundException"


async def test_a_server_that_comes_back_is_called_again() -> None:
    with Aws() as own:
        api = AwsJson(DYNAMODB, endpoint=own.endpoint, credentials=lambda: Credentials("local", "local"))
        await api.call("ListTables")
        own.stop()
        with pytest.raises(AwsUnreachable):
            await api.call("ListTables")
        own.start()
        assert "TableNames" in await api.call("ListTables")
        await api.aclose()


def test_secret_values_are_not_shown() -> None:
    assert "hidden" not in repr(Credentials("AKID", "hidden", "hidden-too"))


def test_without_keys_in_the_environment_botocore_finds_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    profile = tmp_path_factory.mktemp("aws") / "credentials"
    profile.write_text("[default]\naws_access_key_id = AKIDFILE\naws_secret_access_key = file-secret\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    assert Credentials.find() == Credentials("AKIDFILE", "file-secret", None)
