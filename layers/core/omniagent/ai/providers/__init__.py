"""Providers by name. A provider's modules are imported on its first use.

    get_llm_provider("gpt-6-luna", api_key=key)                     a known prefix
    get_llm_provider("openai-chat/llama3", base_url="http://…/v1")    a named API, any model
    get_llm_provider("openai", model="gpt-6-luna", api="chat")      a name and a model
    get_llm_provider("anthropic/claude-sonnet-5-5", api_key=key)    Claude
    get_llm_provider("gpt-6-sol,gpt-6-luna", api_key=key)             a chain: if one is unavailable, the next
    get_llm_provider("bedrock/global.anthropic.claude-sonnet-5-5")  Claude on Bedrock, with the role of the process

Without a key and a `base_url`, the options are those of the environment. With a `base_url`, a model that matches no
registration is requested from that OpenAI-compatible server.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Self, get_args

from omniagent.ai.providers.llm_provider import KeySource, LLMProvider, check_provider
from omniagent.errors import ConfigurationError, OmniAgentError, UnknownModelError
from omniagent.settings import Settings
from omniagent.team_code import team_code

ProviderFactory = Callable[..., LLMProvider]
"""Called with the model's name and the options given to `get_llm_provider`."""
KeyedVendor = Literal["openai", "anthropic"]
"""Whose API needs a key."""
Vendor = KeyedVendor | Literal["bedrock"]
"""Whose settings a provider takes."""
Registration = ProviderFactory | LLMProvider
"""What is registered under a name: a factory, or one provider for all its models."""


def _openai(model: str, *, api: Literal["responses", "chat"] = "responses", **options: Any) -> LLMProvider:
    match api:
        case "responses" if options.get("base_url"):
            from omniagent.ai.providers.openai.openai_compatible import OpenAICompatible

            return OpenAICompatible(model, **options)
        case "responses":
            from omniagent.ai.providers.openai.openai_responses import OpenAIResponses

            return OpenAIResponses(model, **options)
        case "chat":
            from omniagent.ai.providers.openai.openai_chat import OpenAIChat

            return OpenAIChat(model, **options)
    raise ConfigurationError(f"OPENAI_API must be one of responses, chat, not {api!r}")


def _openai_responses(model: str, **options: Any) -> LLMProvider:
    return _openai(model, **{**options, "api": "responses"})


def _openai_chat(model: str, **options: Any) -> LLMProvider:
    return _openai(model, **{**options, "api": "chat"})


def _anthropic(model: str, **options: Any) -> LLMProvider:
    from omniagent.ai.providers.anthropic.anthropic_messages import AnthropicMessages

    return AnthropicMessages(model, **options)


def _bedrock(model: str, **options: Any) -> LLMProvider:
    from omniagent.ai.providers.bedrock import bedrock

    return bedrock(model, **options)


_registrations: dict[str, Registration] = {
    "openai": _openai,
    "openai-responses": _openai_responses,
    "openai-chat": _openai_chat,
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    **dict.fromkeys(("gpt-", "chatgpt-", "codex-", "ft:gpt-"), _openai),
}

KEYED_VENDORS: Final[tuple[KeyedVendor, ...]] = get_args(KeyedVendor)
_VENDOR_OF: Mapping[Registration, Vendor] = {_anthropic: "anthropic", _bedrock: "bedrock"}
"""Whose settings a registration takes. Any other, also a team's own factory, is offered OpenAI's."""


def vendor_options(settings: Settings) -> dict[Vendor, dict[str, Any]]:
    """Return the options that the settings give to the providers of each vendor."""
    shared = {"timeout_seconds": settings.model_timeout_seconds}
    return {
        "openai": {
            **shared,
            "api": settings.openai_api,
            "base_url": settings.openai_base_url or None,
            "api_key": settings.openai_api_key or None,
        },
        "anthropic": {
            **shared,
            "base_url": settings.anthropic_base_url or None,
            "api_key": settings.anthropic_api_key or None,
        },
        "bedrock": {**shared, "api": settings.openai_api},
    }


def register_provider(prefix_or_name: str, provider: Registration) -> None:
    """Register a provider for `NAME/any-model` and for every model whose name begins with the prefix."""
    check_registration(f"register_provider({prefix_or_name!r}, …)", provider)
    _registrations[prefix_or_name] = provider


def check_registration(where: str, provider: object) -> None:
    """Refuse anything that is neither a provider nor a factory."""
    if isinstance(provider, LLMProvider):
        check_provider(where, provider)
        return
    if not callable(provider) or (isinstance(provider, type) and not issubclass(provider, LLMProvider)):
        description = f"the class {provider.__name__}" if isinstance(provider, type) else f"{provider!r:.100}"
        raise ConfigurationError(
            f"{where} must be an LLMProvider, or a function that takes the model's name and options and returns one, "
            f"not {description}"
        )
    try:
        inspect.signature(provider).bind_partial("model")
    except TypeError as exc:
        raise ConfigurationError(f"{where} is called with the model's name, and does not take it") from exc
    except ValueError:  # a built-in without a signature
        return


def get_llm_provider(name_or_model: str, **options: Any) -> LLMProvider:
    """Return the provider of a model. The longest prefix decides; the options are the provider's own."""
    if name_or_model in _registrations and "model" in options:
        name_or_model = f"{name_or_model}/{options.pop('model')}"
    is_complete = options.keys() & {"api_key", "base_url"}
    known = {} if is_complete else vendor_options(Settings.from_env())
    return ProviderPool(by_vendor=known, given=options).get(name_or_model)


def without_vendor(model: str, own: Iterable[str] = ()) -> str:
    """Return the model's name without the name of a provider before it."""
    vendor, slash, name = model.partition("/")
    return name if slash and (vendor in _registrations or vendor in own) else model


def chain_of(model: str | Sequence[str]) -> list[str]:
    """Return the names of a chain of models, given as a list or separated by commas."""
    names = model if isinstance(model, str) else ",".join(model)
    return [name.strip() for name in names.split(",") if name.strip()]


class ProviderPool:
    """Returns the provider of a model, and caches it.

    `registrations` are the pool's own and come before those of `register_provider`. A factory is called with the
    model's name, with the options of its vendor and of the pool that it has parameters for, and with all `given` ones.
    A registered instance serves every model under its name; the pool does not close it.
    """

    def __init__(
        self,
        options: Mapping[str, Any] | None = None,
        registrations: Mapping[str, Registration] | None = None,
        *,
        by_vendor: Mapping[Vendor, Mapping[str, Any]] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._options = dict(options or {})
        self._given = dict(given or {})
        self._by_vendor = dict(by_vendor or {})
        self._registrations = dict(registrations or {})
        for name, registration in self._registrations.items():
            check_registration(f"ProviderPool: {name!r}", registration)
        self._providers: dict[str, LLMProvider] = {}
        self._made: list[LLMProvider] = []

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        registrations: Mapping[str, Registration] | None = None,
        *,
        keys: Mapping[KeyedVendor, tuple[KeySource, KeySource]] | None = None,
        verbose_errors: bool = False,
        on_refused_field: Callable[[str], None] | None = None,
    ) -> Self:
        """Return the pool that the settings describe.

        `keys` are functions that return a vendor's key, and its current value after it was refused. They take
        precedence over the keys of the settings.
        """
        by_vendor = vendor_options(settings)
        for vendor, (api_key, refresh_key) in (keys or {}).items():
            by_vendor[vendor] |= {"api_key": api_key, "refresh_key": refresh_key}
        options = {"verbose_errors": verbose_errors, "on_refused_field": on_refused_field}
        return cls(options, registrations, by_vendor=by_vendor)

    def get(self, model: str | Sequence[str]) -> LLMProvider:
        """Return the provider of a model, or a chain for several: `"gpt-6-luna,openai-chat/llama3"` or a list."""
        if isinstance(model, str) and model in self._providers:
            return self._providers[model]
        chain = chain_of(model)
        if not chain:
            raise ConfigurationError("The name of the model is empty: set OMNIAGENT_MODEL or Agent(model=...)")
        key, *earlier, last = ",".join(chain), *chain
        if key not in self._providers and not earlier:
            self._providers[key] = self._open(key)
        elif key not in self._providers:
            from omniagent.ai.providers.fallback import IN_A_CHAIN, FallbackProvider

            replaceable = [self._open(name, **IN_A_CHAIN) for name in earlier]
            self._providers[key] = FallbackProvider([*replaceable, self.get(last)])
        return self._providers[key]

    async def aclose(self) -> None:
        """Close the providers that the pool created. If it is used again, it creates new ones."""
        providers, self._made = self._made, []
        self._providers.clear()
        for provider in providers:
            await provider.aclose()

    def _open(self, name: str, **more: Any) -> LLMProvider:
        found, model = self._find(name)
        if isinstance(found, LLMProvider):
            return found
        offered = {**self._by_vendor.get(_VENDOR_OF.get(found, "openai"), {}), **self._options, **more}
        parameters = inspect.signature(found).parameters.values()
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        names = {each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)}
        accepted = {key: value for key, value in offered.items() if value is not None and (takes_any or key in names)}
        with team_code(f"the provider registered for {name!r}", ConfigurationError, passes=(OmniAgentError,)):
            provider = found(model, **{**accepted, **self._given})
        check_provider(f"what the provider registered for {name!r} makes", provider)
        self._made.append(provider)
        return provider

    def _find(self, name: str) -> tuple[Registration, str]:
        """Return the registration for a name, and the model to request from it."""
        vendor, slash, model = name.partition("/")
        for registrations in (self._registrations, _registrations):
            if slash and vendor in registrations:
                return registrations[vendor], model
            prefix = max((known for known in registrations if name.startswith(known)), key=len, default=None)
            if prefix is not None:
                return registrations[prefix], name
        if {**self._by_vendor.get("openai", {}), **self._options, **self._given}.get("base_url"):
            return _openai, name  # a model of a compatible server
        known = sorted({*self._registrations, *_registrations})
        beginnings = ", ".join(each if each.endswith("-") else f"{each}/" for each in known)
        raise UnknownModelError(
            f"No provider for the model {name!r}. Set OMNIAGENT_MODEL to a name that begins with one of {beginnings}, "
            "set OPENAI_BASE_URL if a compatible server has it, or register a provider: Project(providers=...) or "
            "register_provider()."
        )
