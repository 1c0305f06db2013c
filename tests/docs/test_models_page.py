"""Each line of docs/models.md makes the provider that it names."""

import re

import pytest

from local.template import ROOT
from omniagent.ai.providers import ProviderPool
from omniagent.ai.providers.anthropic.anthropic_messages import AnthropicMessages
from omniagent.ai.providers.api_provider import ApiProvider
from omniagent.ai.providers.openai.openai_chat import OpenAIChat
from omniagent.ai.providers.openai.openai_responses import OpenAIResponses
from omniagent.settings import Settings

LINE = re.compile(r"^\| ([^|]+) \| (`OMNI[^|]+) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
LINES = LINE.findall((ROOT / "docs/models.md").read_text())
CLASSES = {"Responses": OpenAIResponses, "Chat Completions": OpenAIChat, "Messages": AnthropicMessages}
SERVERS = {"OpenAI", "Anthropic", "Bedrock", "Azure", "Gemini", "LiteLLM", "vLLM", "Ollama", "llama.cpp"}


def test_every_server_has_a_line() -> None:
    assert {server.partition(",")[0] for server, _, _ in LINES} == SERVERS


@pytest.mark.parametrize(("server", "settings", "api"), LINES)
def test_the_settings_of_a_line_make_its_provider(server: str, settings: str, api: str) -> None:
    environment = dict(each.split("=", 1) for each in re.findall(r"`([^`]+)`", settings))
    read = Settings.from_env(environment)
    provider = ProviderPool.from_settings(read).get(read.model)
    assert isinstance(provider, ApiProvider)
    assert CLASSES[api.partition(",")[0]] in type(provider).__mro__
    address = environment.get("OPENAI_BASE_URL") or environment.get("ANTHROPIC_BASE_URL")
    assert provider.options.base_url == address or server.startswith("Bedrock")
    assert provider.options.api_key == (environment.get("OPENAI_API_KEY") or environment.get("ANTHROPIC_API_KEY"))
