"""Models find their providers by name, and new providers need no change of the package."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from omniagent.ai.providers import get_llm_provider, register_provider
from omniagent.ai.providers.fallback import FallbackProvider
from omniagent.ai.providers.llm_provider import LLMProvider, ModelEvent, ModelFinish, ModelRequest, ModelText
from omniagent.ai.providers.openai.openai_chat import OpenAIChat
from omniagent.ai.providers.openai.openai_compatible import OpenAICompatible
from omniagent.ai.providers.openai.openai_responses import OpenAIResponses
from omniagent.errors import ConfigurationError, UnknownModelError
from omniagent.messages import Usage
from tests.providers.helpers import ask, streamed, text_of

KEY = {"api_key": "sk-test"}
LOCAL = {"base_url": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize(
    ("name", "options", "kind", "model"),
    [
        ("gpt-6-luna", {"api": "responses"}, OpenAIResponses, "gpt-6-luna"),
        ("chatgpt-latest", {}, OpenAIResponses, "chatgpt-latest"),
        ("codex-latest", {}, OpenAIResponses, "codex-latest"),
        ("ft:gpt-6-sol:acme::1", {}, OpenAIResponses, "ft:gpt-6-sol:acme::1"),
        ("gpt-6-luna", {"api": "chat"}, OpenAIChat, "gpt-6-luna"),
        ("openai/gpt-6-luna", {}, OpenAIResponses, "gpt-6-luna"),
        ("openai/anything", {"api": "chat"}, OpenAIChat, "anything"),
        ("openai-chat/llama3", {}, OpenAIChat, "llama3"),
        ("openai-chat/llama3", {"api": "responses"}, OpenAIChat, "llama3"),
        ("openai-responses/openai/gpt-oss-20b", {"api": "chat"}, OpenAIResponses, "openai/gpt-oss-20b"),
        ("openai", {"model": "gpt-6-sol", "api": "chat"}, OpenAIChat, "gpt-6-sol"),
    ],
)
def test_a_name_or_the_api_option_chooses_the_api(
    name: str, options: dict[str, Any], kind: type[LLMProvider], model: str
) -> None:
    provider = get_llm_provider(name, **KEY, **options)
    assert type(provider) is kind
    assert provider.model == model


@pytest.mark.parametrize("model", ["llama3", "meta-llama/Llama-3.3-70B", "mistral-small"])
def test_a_compatible_server_takes_any_model_and_no_key(model: str) -> None:
    provider = get_llm_provider(model, **LOCAL)
    assert isinstance(provider, OpenAIResponses)
    assert provider.model == model


def test_an_unknown_model_says_what_to_set() -> None:
    with pytest.raises(UnknownModelError, match=r"'llama3'.*OMNIAGENT_MODEL.*gpt-.*OPENAI_BASE_URL") as raised:
        get_llm_provider("llama3", **KEY)
    assert "llama3" not in raised.value.public


def test_a_missing_key_says_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY or OPENAI_SECRET_ARN"):
        get_llm_provider("gpt-6-luna")


def test_an_unknown_kind_of_think_tags_says_which_there_are() -> None:
    with pytest.raises(ConfigurationError, match="think_tags must be 'both' or 'closing', not 'open'"):
        get_llm_provider("openai-chat/qwen3", think_tags="open", **LOCAL)


def test_an_unknown_api_says_which_there_are() -> None:
    with pytest.raises(ConfigurationError, match="responses, chat"):
        get_llm_provider("gpt-6-luna", api="completions", **KEY)


@pytest.mark.parametrize(
    "url",
    ["http://[::1/v1", "localhost:11434", "127.0.0.1:1/v1", "/v1", "http://", "ftp://host/v1", "http://host:99999/v1"],
)
def test_an_address_that_is_none_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_BASE_URL"):
        get_llm_provider("gpt-6-luna", base_url=url, **KEY)


class Parrot(LLMProvider):
    """A provider that a team might write."""

    def __init__(self, model: str, *, prefix: str = "") -> None:
        super().__init__(model)
        self.prefix = prefix

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        yield ModelText(self.prefix + request.messages[-1].text)
        yield ModelFinish("stop", Usage(1, 1))


async def test_a_registered_provider_is_found_by_its_name_and_by_its_prefix_and_answers() -> None:
    register_provider("parrot", Parrot)
    for name in ("parrot/grey", "parrot-grey"):
        provider = get_llm_provider(name, prefix="caw: ")
        assert text_of(await streamed(provider, ask("hello"))) == "caw: hello"


async def test_the_longest_prefix_wins() -> None:
    register_provider("gpt-parrot-", Parrot)
    assert isinstance(get_llm_provider("gpt-parrot-1"), Parrot)
    assert isinstance(get_llm_provider("gpt-6-luna", **KEY), OpenAIResponses)


async def test_names_with_commas_are_a_chain() -> None:
    provider = get_llm_provider("gpt-6-sol, openai-chat/llama3", **LOCAL)
    assert isinstance(provider, FallbackProvider)
    assert [type(each) for each in provider.providers] == [OpenAICompatible, OpenAIChat]
    assert [each.model for each in provider.providers] == ["gpt-6-sol", "llama3"]
    await provider.aclose()


def modules_after(code: str) -> set[str]:
    """What a fresh process has imported once it ran the code."""
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


async def test_importing_the_providers_imports_no_sdk() -> None:
    modules = await asyncio.to_thread(modules_after, "import omniagent.ai.providers")
    assert not modules & {"openai", "httpx2"}
    assert not [name for name in modules if name.startswith("omniagent.ai.providers.anthropic")]


async def test_a_provider_imports_no_sdk_and_no_other_provider() -> None:
    code = "from omniagent.ai.providers import get_llm_provider as get\nget('gpt-6-luna', api_key='k')"
    modules = await asyncio.to_thread(modules_after, code)
    assert not modules & {"openai", "httpx2"}
    assert not [name for name in modules if name.startswith("omniagent.ai.providers.anthropic")]


async def test_the_environment_gives_the_key_and_the_address_that_the_error_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    monkeypatch.setenv("OPENAI_API", "chat")
    provider = get_llm_provider("gpt-6-luna")
    assert isinstance(provider, OpenAIChat)
    assert provider.options.api_key == "sk-env"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert isinstance(get_llm_provider("llama3"), OpenAIChat)
    given = get_llm_provider("gpt-6-luna", api_key="sk-given")
    assert isinstance(given, OpenAIResponses)
    assert (given.options.api_key, given.options.base_url) == ("sk-given", None)
