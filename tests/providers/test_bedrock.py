"""Models on Bedrock: called with the role of the process, without a key."""

import base64
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from omniagent.ai.providers import ProviderPool, get_llm_provider
from omniagent.ai.providers import bedrock as module
from omniagent.ai.providers.bedrock import BedrockMessages, RoleToken
from omniagent.ai.providers.llm_provider import LLMProvider, OutputFormat
from omniagent.ai.providers.openai.openai_chat import OpenAIChat
from omniagent.ai.providers.openai.openai_responses import OpenAIResponses
from omniagent.aws.client import CredentialCache, Credentials
from omniagent.errors import ModelAuthError, ModelError, ModelRejected, ModelUnavailable
from omniagent.messages import ChatMessage
from omniagent.settings import Settings
from tests.providers.canned import Canned, Json, reply, saying, serve, stream
from tests.providers.helpers import ask, streamed, text_of

CLAUDE, OPENAI = "bedrock/global.anthropic.claude-sonnet-5-5", "bedrock/openai.gpt-6-luna"
KEYS = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "session"}
ROUTES = [
    (CLAUDE, "messages", "/anthropic/v1/messages"),
    (OPENAI, "responses", "/openai/v1/responses"),
    (OPENAI, "chat", "/openai/v1/chat/completions"),
]
EXPIRED = reply(403, {"message": "The security token included in the request is expired"})
Point = Callable[[Canned], None]


@pytest.fixture
def point_to(monkeypatch: pytest.MonkeyPatch) -> Point:
    """Replace the address of Bedrock, and give the process credentials."""
    for name, value in {**KEYS, "AWS_REGION": "eu-central-1"}.items():
        monkeypatch.setenv(name, value)

    def point(server: Canned) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", server.base_url.removesuffix("/v1"))

    return point


def provider_of(name: str, api: str, **options: Any) -> LLMProvider:
    return get_llm_provider(name, **({} if api == "messages" else {"api": api}), **options)


async def told(provider: LLMProvider) -> str:
    try:
        return text_of(await streamed(provider, ask("Hi.")))
    finally:
        await provider.aclose()


def header(server: Canned, name: str) -> str:
    fields = [line.partition(": ") for line in server.heads[-1].split("\r\n")]
    return next((value for known, _, value in fields if known.lower() == name), "")


@pytest.mark.parametrize(("name", "api", "path"), ROUTES)
async def test_a_request_is_signed_with_the_role(name: str, api: str, path: str, point_to: Point) -> None:
    async with serve(stream(saying(api, "Hello."))) as server:
        point_to(server)
        assert await told(provider_of(name, api)) == "Hello."
    assert server.heads[-1].startswith(f"POST {path} ")
    scope = r"AWS4-HMAC-SHA256 Credential=AKID/\d{8}/eu-central-1/bedrock/aws4_request"
    signed = rf"{scope}, SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, Signature=\w{{64}}"
    assert re.fullmatch(signed, header(server, "authorization"))
    assert header(server, "x-amz-security-token") == "session"
    assert not header(server, "x-api-key")


@pytest.mark.parametrize(("name", "api", "path"), ROUTES)
async def test_a_token_of_the_role_replaces_the_signature(name: str, api: str, path: str, point_to: Point) -> None:
    async with serve(stream(saying(api, "Hello."))) as server:
        point_to(server)
        assert await told(provider_of(name, api, auth="token")) == "Hello."
    (key,) = server.keys
    assert base64.b64decode(key.removeprefix("bedrock-api-key-")).startswith(b"bedrock.amazonaws.com/?Action=")
    assert bool(header(server, "x-api-key")) == (api == "messages")


async def test_a_token_is_cached_and_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = dict(KEYS)
    token = RoleToken("us-east-1", CredentialCache(environment), "x-api-key")
    clock, made = [0.0], list[str]()

    def make(credentials: Credentials, *_: object) -> str:
        made.append(credentials.access_key)
        return str(len(made))

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(module, "bedrock_token", make)
    for seconds, access_key, expected in ((0.0, "A", "1"), (599.0, "A", "1"), (600.0, "A", "2"), (601.0, "B", "3")):
        clock[0], environment["AWS_ACCESS_KEY_ID"] = seconds, access_key
        assert (await token.headers("", b""))["x-api-key"] == expected
    assert made == ["A", "A", "B"]


@pytest.mark.parametrize("rotates", [True, False])
@pytest.mark.parametrize(("name", "api", "path"), ROUTES)
async def test_expired_credentials_are_read_again_and_used_if_they_are_others(
    name: str, api: str, path: str, rotates: bool, point_to: Point
) -> None:
    class Rotating(CredentialCache):
        def forget(self) -> None:
            environment["AWS_ACCESS_KEY_ID"] = "NEW" if rotates else "AKID"

    environment = dict(KEYS)
    async with serve(EXPIRED, stream(saying(api, "Hello."))) as server:
        point_to(server)
        with nullcontext() if rotates else pytest.raises(ModelAuthError):
            assert await told(provider_of(name, api, credentials=Rotating(environment))) == "Hello."
    assert ["Credential=NEW/" in head for head in server.heads] == [False, True][: 1 + rotates]


UNKNOWN = {"Output": {"__type": "com.amazon.coral.service#UnknownOperationException"}, "Version": "1.0"}
EXCEPTIONS: list[tuple[Json, type[ModelError]]] = [
    (UNKNOWN, ModelRejected),
    ({"__type": "ThrottlingException", "message": "Too many tokens"}, ModelUnavailable),
    ({"__type": "com.amazon#AccessDeniedException", "Message": "no"}, ModelAuthError),
    ({"__type": "ValidationException", "message": "no"}, ModelRejected),
]


@pytest.mark.parametrize(("body", "error"), EXCEPTIONS)
@pytest.mark.parametrize(("name", "api"), [(CLAUDE, "messages"), (OPENAI, "chat")])
async def test_an_exception_with_the_status_200_is_an_error(
    name: str, api: str, body: Json, error: type[ModelError], point_to: Point
) -> None:
    async with serve(reply(200, body)) as server:
        point_to(server)
        with pytest.raises(error, match="Exception"):
            await told(provider_of(name, api))


async def test_claude_on_bedrock_is_sent_no_schema_no_strict_tools_and_instructions_first(point_to: Point) -> None:
    async with serve(stream(saying("messages", "Hello."))) as server:
        point_to(server)
        provider = provider_of(CLAUDE, "messages")
        messages = [ChatMessage.user("Hi."), ChatMessage.system("This is day 1.")]
        await streamed(provider, replace(ask(""), messages=messages, output=OutputFormat("city", {"type": "object"})))
        await provider.aclose()
    (body,) = server.bodies
    assert "output_config" not in body
    assert "strict" not in body["tools"][0]
    assert body["tools"][-1]["input_schema"] == {"type": "object"}
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert body["system"][-1] == {"type": "text", "text": "This is day 1."}


@pytest.mark.parametrize(("api", "limit"), [("responses", "max_output_tokens"), ("chat", "max_completion_tokens")])
async def test_a_limit_is_always_sent_because_bedrock_reserves_it(api: str, limit: str, point_to: Point) -> None:
    async with serve(stream(saying(api, "Hello."))) as server:
        point_to(server)
        await told(provider_of(OPENAI, api))
    assert server.bodies[0][limit] == 16_384


def test_the_settings_choose_the_api_and_no_key_is_passed() -> None:
    settings = Settings(openai_api="chat", openai_api_key="sk-1", openai_base_url="http://127.0.0.1:1/v1")
    pool = ProviderPool.from_settings(settings)
    assert isinstance(pool.get(OPENAI), OpenAIChat)
    claude = pool.get(CLAUDE)
    assert isinstance(claude, BedrockMessages)
    assert claude.options.api_key is None
    assert isinstance(get_llm_provider(OPENAI), OpenAIResponses)


async def test_a_process_without_credentials_gets_an_auth_error(
    point_to: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://elsewhere.example/keys"}
    async with serve(stream(saying("messages", "Hello."))) as server:
        point_to(server)
        with pytest.raises(ModelAuthError, match="UntrustedCredentialsEndpoint"):
            await told(provider_of(CLAUDE, "messages", credentials=CredentialCache(environment)))


async def test_bedrock_announces_no_end_of_its_models(point_to: Point) -> None:
    for name in (CLAUDE, OPENAI):
        assert await get_llm_provider(name).shutdown_date() is None
