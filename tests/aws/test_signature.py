"""Tokens for Bedrock and signed requests, against AWS's own packages."""

import random
import string
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import botocore.auth
import pytest
from aws_bedrock_token_generator.token_generator import BedrockTokenGenerator  # type: ignore[import-untyped]
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials

from omniagent.ai.providers.bedrock import bedrock_token
from omniagent.aws.client import Credentials, sign

TRIES = 1_000
REGIONS = ("us-east-1", "us-west-2", "eu-central-1", "ap-southeast-2")
CALLS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("bedrock", "bedrock-runtime", "/anthropic/v1/messages", {}),
    ("bedrock", "bedrock-runtime", "/openai/v1/chat/completions", {}),
    ("dynamodb", "dynamodb", "/", {"x-amz-target": "DynamoDB_20120810.PutItem"}),
)


def cases() -> Iterator[tuple[random.Random, Credentials, str, datetime]]:
    chance = random.Random(27)
    for _ in range(TRIES):
        secret = "".join(chance.choices(string.ascii_letters + string.digits + "+/", k=40))
        token = "".join(chance.choices(string.ascii_letters + string.digits + "+/=", k=chance.randint(1, 900)))
        key = "ASIA" + "".join(chance.choices(string.ascii_uppercase + string.digits, k=16))
        now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=chance.randrange(10**9))
        yield chance, Credentials(key, secret, chance.choice((token, None))), chance.choice(REGIONS), now


def theirs(credentials: Credentials) -> BotoCredentials:
    return BotoCredentials(credentials.access_key, credentials.secret_key, credentials.token)


def test_a_token_equals_that_of_the_token_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = BedrockTokenGenerator()
    for _, credentials, region, now in cases():
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda now=now, **_: now.replace(tzinfo=None))
        assert bedrock_token(credentials, region, now) == generator.get_token(theirs(credentials), region)


def test_a_signed_request_equals_that_of_botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    for chance, credentials, region, now in cases():
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda now=now, **_: now.replace(tzinfo=None))
        (service, name, path, target), body = chance.choice(CALLS), chance.randbytes(50)
        host = f"{name}.{region}.amazonaws.com"
        headers = {"content-type": "application/json", "host": host, **target}
        request = AWSRequest("POST", f"https://{host}{path}", headers=headers, data=body)
        SigV4Auth(theirs(credentials), service, region).add_auth(request)
        signed = sign(headers, body, service=service, region=region, credentials=credentials, now=now, path=path)
        assert signed == {name.lower(): value for name, value in request.headers.items()}
