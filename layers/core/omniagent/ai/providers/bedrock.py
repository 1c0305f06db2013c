"""Models on Amazon Bedrock, called with the role of the process: no key and no secret.

    get_llm_provider("bedrock/global.anthropic.claude-sonnet-5-5")   Claude, through the Messages API
    get_llm_provider("bedrock/openai.gpt-6-luna", api="chat")        others, through an OpenAI API

Each request is signed (`auth="sigv4"`), or carries a token made of the role's credentials (`auth="token"`), which needs
the permission `bedrock:CallWithBearerToken`. AWS_ENDPOINT_URL_BEDROCK_RUNTIME replaces the address.
"""

import base64
import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode, urlsplit

from omniagent.ai.providers.anthropic.anthropic_messages import DEFAULT_MAX_TOKENS, AnthropicMessages
from omniagent.ai.providers.llm_provider import LLMProvider
from omniagent.ai.providers.model_rules import ModelRules, rules_of
from omniagent.aws.client import (
    ALGORITHM,
    AwsRefused,
    AwsUnreachable,
    CredentialCache,
    Credentials,
    own_region,
    process_credentials,
    sign,
    signature,
)
from omniagent.errors import ConfigurationError, ModelAuthError, ModelUnavailable

BedrockAuth = Literal["sigv4", "token"]
OpenAIApiName = Literal["responses", "chat"]
_TOKEN_HOST: Final = "bedrock.amazonaws.com"  # noqa: S105 - an address
MAX_TOKEN_SECONDS: Final = 12 * 3600
TOKEN_LIFE_SECONDS: Final = 600.0
"""A token is replaced after this time: it is valid for longer, but not longer than credentials that change."""


@dataclass(eq=False)
class RoleAuthorizer:
    """Signs requests with the credentials of the process."""

    region: str
    cache: CredentialCache

    async def headers(self, url: str, content: bytes) -> Mapping[str, str]:
        parts = urlsplit(url)
        return sign(
            {"content-type": "application/json", "host": parts.netloc},
            content,
            service="bedrock",
            region=self.region,
            credentials=await self.credentials(),
            now=datetime.now(UTC),
            path=parts.path,
        )

    async def renew(self) -> bool:
        """Read the credentials again. If they are the same, the refusal has another reason."""
        before = await self.credentials()
        self.cache.forget()
        return await self.credentials() != before

    async def credentials(self) -> Credentials:
        try:
            return await self.cache.get()
        except AwsUnreachable as exc:
            raise ModelUnavailable(str(exc)) from exc
        except AwsRefused as exc:
            raise ModelAuthError(str(exc)) from exc


@dataclass(eq=False)
class RoleToken(RoleAuthorizer):
    """Authorizes requests with a token, which is made again before it expires and when the credentials change."""

    header: str
    prefix: str = ""
    _made_of: tuple[Credentials, float] | None = None
    _token: str = field(default="", repr=False)

    async def headers(self, url: str, content: bytes) -> Mapping[str, str]:  # noqa: ARG002 - it fits every request
        made_of = await self.credentials(), time.monotonic() // TOKEN_LIFE_SECONDS
        if made_of != self._made_of:
            self._token = bedrock_token(made_of[0], self.region, datetime.now(UTC))
            self._made_of = made_of
        return {self.header: f"{self.prefix}{self._token}"}


def bedrock_token(credentials: Credentials, region: str, now: datetime) -> str:
    """Return a bearer token for Bedrock: a presigned request, valid for as long as the credentials at most."""
    stamp, scope = f"{now:%Y%m%dT%H%M%SZ}", f"{now:%Y%m%d}/{region}/bedrock/aws4_request"
    query = {
        "Action": "CallWithBearerToken",
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(MAX_TOKEN_SECONDS),
        "X-Amz-SignedHeaders": "host",
        **({"X-Amz-Security-Token": credentials.token} if credentials.token else {}),
    }
    canonical = urlencode(sorted(query.items()), quote_via=quote, safe="~")
    request = "\n".join(["POST", "/", canonical, f"host:{_TOKEN_HOST}\n", "host", hashlib.sha256(b"").hexdigest()])
    signed = {**query, "X-Amz-Signature": signature(request, stamp, scope, credentials), "Version": "1"}
    url = f"{_TOKEN_HOST}/?{urlencode(signed, quote_via=quote, safe='~')}"
    return f"bedrock-api-key-{base64.b64encode(url.encode()).decode()}"


class BedrockMessages(AnthropicMessages):
    """Claude on Bedrock, which takes neither schemas of answers, nor strict tools, nor instructions after the first."""

    system = "aws.bedrock"

    @staticmethod
    def _rules(model: str) -> ModelRules:
        return replace(rules_of(model), native_output=False, strict_tools=False, late_system=False)


def bedrock(
    model: str,
    *,
    api: OpenAIApiName = "responses",
    auth: BedrockAuth = "sigv4",
    region: str | None = None,
    credentials: CredentialCache = process_credentials,
    **options: Any,
) -> LLMProvider:
    """Return the provider of a model on Bedrock. The other options are those of its API's provider."""
    if auth not in ("sigv4", "token"):
        raise ConfigurationError(f"bedrock: auth must be 'sigv4' or 'token', not {auth!r:.100}")
    region = region or own_region()
    address = os.environ.get("AWS_ENDPOINT_URL_BEDROCK_RUNTIME") or f"https://bedrock-runtime.{region}.amazonaws.com"
    is_claude = "anthropic." in model
    header, prefix = AnthropicMessages.key_header if is_claude else ("authorization", "Bearer ")
    signer = RoleAuthorizer(region, credentials)
    if auth == "token":
        signer = RoleToken(region, credentials, header, prefix)
    if is_claude:
        return BedrockMessages(model, auth=signer, **{"base_url": f"{address}/anthropic", **options})
    from omniagent.ai.providers.openai.openai_chat import OpenAIChat
    from omniagent.ai.providers.openai.openai_compatible import OpenAICompatible

    # Bedrock reserves the limit from the account's quota; without one, that of the model.
    limited = {"base_url": f"{address}/openai/v1", "max_output_tokens": DEFAULT_MAX_TOKENS, **options}
    provider = (OpenAIChat if api == "chat" else OpenAICompatible)(model, auth=signer, **limited)
    provider.system = BedrockMessages.system
    return provider
