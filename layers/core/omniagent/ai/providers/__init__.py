"""Providers by name. A provider's own modules are imported when it is first asked for.

    get_llm_provider("gpt-4.1-mini", api_key=key)                     a known prefix
    get_llm_provider("openai-chat/llama3", base_url="http://…/v1")    a named API, any model
    get_llm_provider("openai", model="gpt-4.1-mini", api="chat")      a name and a model

With a `base_url`, a model that nothing else claims is OpenAI's: that of the compatible server.
"""

from collections.abc import Callable
from typing import Any, Literal

from omniagent.ai.providers.llm_provider import LLMProvider
from omniagent.errors import ConfigurationError, UnknownModelError

__all__ = ["LLMProvider", "ProviderFactory", "get_llm_provider", "register_provider"]

ProviderFactory = Callable[..., LLMProvider]
"""Called with the model's name and the options given to `get_llm_provider`."""


def _openai(model: str, *, api: Literal["responses", "chat"] = "responses", **options: Any) -> LLMProvider:
    if api not in _OPENAI_APIS:
        raise ConfigurationError(f"OPENAI_API must be one of {', '.join(_OPENAI_APIS)}, not {api!r}")
    return _OPENAI_APIS[api](model, **options)


def _openai_responses(model: str, **options: Any) -> LLMProvider:
    from omniagent.ai.providers.openai.openai_responses import OpenAIResponses

    return OpenAIResponses(model, **_without_api(options))


def _openai_chat(model: str, **options: Any) -> LLMProvider:
    from omniagent.ai.providers.openai.openai_chat import OpenAIChat

    return OpenAIChat(model, **_without_api(options))


def _without_api(options: dict[str, Any]) -> dict[str, Any]:
    """The name of the provider has chosen the API, whatever the settings say."""
    return {name: value for name, value in options.items() if name != "api"}


_OPENAI_APIS: dict[str, ProviderFactory] = {"responses": _openai_responses, "chat": _openai_chat}

_factories: dict[str, ProviderFactory] = {
    "openai": _openai,
    "openai-responses": _openai_responses,
    "openai-chat": _openai_chat,
    **dict.fromkeys(("gpt-", "chatgpt-", "codex-", "o1", "o3", "o4", "ft:gpt-", "ft:o4"), _openai),
}


def register_provider(prefix_or_name: str, factory: ProviderFactory) -> None:
    """Let a provider answer to `NAME/any-model` and to every model whose name begins with the prefix."""
    _factories[prefix_or_name] = factory


def get_llm_provider(name_or_model: str, **options: Any) -> LLMProvider:
    """Return the provider of a model. The longest prefix decides; the options are the provider's own."""
    vendor, slash, model = name_or_model.partition("/")
    if slash and vendor in _factories:
        return _factories[vendor](model, **options)
    if name_or_model in _factories and "model" in options:
        return _factories[name_or_model](**options)
    prefix = max((known for known in _factories if name_or_model.startswith(known)), key=len, default=None)
    if prefix:
        return _factories[prefix](name_or_model, **options)
    if options.get("base_url"):
        return _openai(name_or_model, **options)
    raise UnknownModelError(
        f"No provider for the model {name_or_model!r}. Set OMNIAGENT_MODEL to a name that begins with one of "
        f"{', '.join(sorted(_factories))}, set OPENAI_BASE_URL if a compatible server has it, or register_provider()."
    )
