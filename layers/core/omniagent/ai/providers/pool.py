"""The providers of one process, each made once and closed together."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Self

from omniagent.ai.providers import LLMProvider, ProviderFactory, Registration, chain_of, find_provider
from omniagent.ai.providers.fallback import FallbackProvider
from omniagent.ai.providers.llm_provider import KeySource
from omniagent.errors import ConfigurationError
from omniagent.settings import Settings


class ProviderPool:
    """Returns the provider of a model, the same one every time.

    `registrations` are the pool's own and come before those of `register_provider`. A factory is called with the
    model's name and with those of the pool's options that it has parameters for. A registered instance answers for
    every model under its name and is closed by whoever made it.
    """

    def __init__(
        self, options: Mapping[str, Any] | None = None, registrations: Mapping[str, Registration] | None = None
    ) -> None:
        self._options = {name: value for name, value in (options or {}).items() if value is not None}
        self._registrations = dict(registrations or {})
        self._providers: dict[str, LLMProvider] = {}
        self._made: list[LLMProvider] = []

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        registrations: Mapping[str, Registration] | None = None,
        *,
        api_key: str | KeySource | None = None,
        refresh_key: KeySource | None = None,
        verbose_errors: bool = False,
    ) -> Self:
        """Make the pool that the settings describe. A key given here wins over OPENAI_API_KEY."""
        options = {
            "api": settings.openai_api,
            "base_url": settings.openai_base_url or None,
            "timeout_seconds": settings.model_timeout_seconds,
            "max_retries": settings.model_max_retries,
            "api_key": api_key or settings.openai_api_key or None,
            "refresh_key": refresh_key,
            "verbose_errors": verbose_errors,
        }
        return cls(options, registrations)

    def get(self, model: str | Sequence[str]) -> LLMProvider:
        """Return the provider of a model, or a chain for several: `"gpt-4.1-mini,openai-chat/llama3"` or a list."""
        if isinstance(model, str) and model in self._providers:
            return self._providers[model]
        chain = chain_of(model)
        if not chain:
            raise ConfigurationError("The name of the model is empty: set OMNIAGENT_MODEL or Agent(model=...)")
        key = ",".join(chain)
        if key not in self._providers:
            only_one = len(chain) == 1
            self._providers[key] = self._open(key) if only_one else FallbackProvider([self.get(name) for name in chain])
        return self._providers[key]

    async def aclose(self) -> None:
        """Close the providers that the pool made. It may be used again and makes new ones then."""
        made, self._made = self._made, []
        self._providers.clear()
        for provider in made:
            await provider.aclose()

    def _open(self, name: str) -> LLMProvider:
        found, model = find_provider(name, self._registrations, any_model="base_url" in self._options)
        if isinstance(found, LLMProvider):
            return found
        provider = found(model, **_accepted(found, self._options))
        if not isinstance(provider, LLMProvider):
            raise ConfigurationError(f"The provider registered for {name!r} made no LLMProvider but {provider!r}")
        self._made.append(provider)
        return provider


def _accepted(factory: ProviderFactory, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options that a factory has parameters for; all of them when it takes `**options`."""
    parameters = inspect.signature(factory).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return options
    names = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return {name: value for name, value in options.items() if name in names}
