"""The common base of the two OpenAI APIs: parameters, and what the model's rules make of them."""

import hashlib
from abc import abstractmethod
from dataclasses import dataclass
from datetime import date
from typing import Any, ClassVar, Final, get_args

from omniagent.ai.providers.answer_tool import AnswerTool
from omniagent.ai.providers.api_provider import ApiProvider
from omniagent.ai.providers.http_client import ApiOptions, Authorizer, HttpClient, KeyHeader
from omniagent.ai.providers.llm_provider import ModelRequest, OutputFormat, ToolSpec
from omniagent.ai.providers.model_rules import fit_limit, fit_sampling, nearest_effort, rules_of
from omniagent.ai.providers.openai.think_tags import ThinkTagsMode
from omniagent.ai.providers.refused_fields import FieldPath
from omniagent.ai.providers.stream_reader import Json
from omniagent.errors import ConfigurationError, ModelRejected
from omniagent.tls import is_http_address

OPENAI_URL: Final = "https://api.openai.com/v1"
MAX_IDENTIFIER_LENGTH: Final = 64
CACHE_MARK: Final[Json] = {"prompt_cache_breakpoint": {"mode": "explicit"}}
EFFORT_FIELDS: Final = frozenset({"reasoning", "reasoning_effort"})
"""The fields in which a caller chooses the effort: OpenAI's of either API, and OpenRouter's of Chat Completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIOptions(ApiOptions):
    """The options of an OpenAI provider."""

    organization: str | None = None
    project: str | None = None
    auth: Authorizer | None = None
    """Signs requests, instead of a key."""
    identifiers: bool | None = None
    """Send `prompt_cache_key` and `safety_identifier`. None: only to OpenAI itself, where no `base_url` is set."""
    think_tags: ThinkTagsMode | None = None
    """Chat Completions: read `<think>` tags at the beginning of the text as reasoning."""


class OpenAIProvider(ApiProvider):
    """A model behind an OpenAI API. The options are those of `OpenAIOptions`."""

    system = "openai"
    effort_path: ClassVar[FieldPath]
    """Where a request has the reasoning effort."""
    options: OpenAIOptions

    def __init__(self, model: str, *, client: HttpClient | None = None, **options: Any) -> None:
        """Take the options, and a client if there is one already."""
        chosen = OpenAIOptions(**options)
        if chosen.think_tags not in (None, *get_args(ThinkTagsMode)):
            raise ConfigurationError(f"think_tags must be 'both' or 'closing', not {chosen.think_tags!r:.100}")
        super().__init__(model, chosen, client or _make_client(chosen))
        # For OpenAI's prompt cache and abuse checks. Compatible servers may refuse them.
        self._is_identified = not chosen.base_url if chosen.identifiers is None else chosen.identifiers

    async def shutdown_date(self) -> date | None:
        """Return the `shutdown_date` in the server's list of models. Many compatible servers have none, or no list."""
        try:
            listed = await self._client.get("/models")
        except ModelRejected:
            return None
        cards = listed.get("data") if isinstance(listed, dict) else None
        for card in cards if isinstance(cards, list) else ():
            if isinstance(card, dict) and card.get("id") == self.model:
                return _date(card.get("shutdown_date"))
        return None

    @abstractmethod
    def _forced_tool(self, name: str) -> Json:
        """Return the `tool_choice` that demands a call of this tool."""

    def _forcing(self, body: Json, tool: AnswerTool) -> Json:
        return {**body, "tool_choice": self._forced_tool(tool.name) if tool.is_only_tool else "required"}

    def _parameters(self, request: ModelRequest, limit_field: str, tools: list[Json]) -> Json:
        """Return the model and its parameters: the call's, or else the provider's. Unset ones are left out."""
        overrides = request.overrides
        model = overrides.model or self.model
        own = self.options if model == self.model else OpenAIOptions()
        limit, temperature = overrides.max_output_tokens, overrides.temperature
        parameters = {
            "tools": tools or None,
            "parallel_tool_calls": self.options.parallel_tool_calls if tools else None,
            "temperature": own.temperature if temperature is None else temperature,
            limit_field: own.max_output_tokens if limit is None else limit,
            "prompt_cache_key": _identifier(request.cache_key) if self._is_identified else None,
            "safety_identifier": _identifier(request.user_id) if self._is_identified else None,
        }
        chosen = {name: value for name, value in parameters.items() if value is not None}
        return {"model": model, **chosen, **own.extra, **overrides.extra}

    def _fitted(self, body: Json, limit_field: str) -> Json:
        """Return the request as the rules of its model want it."""
        rules = rules_of(body["model"])
        field, *inner = self.effort_path
        options = body.get(field) if inner else body
        effort = options.get(self.effort_path[-1]) if isinstance(options, dict) else None
        wanted = rules.default_effort if effort is None else nearest_effort(effort, rules)
        if wanted != effort and (effort is not None or not body.keys() & EFFORT_FIELDS):
            body = {**body, field: {"effort": wanted} if inner else wanted}
            effort = wanted
        return fit_limit(fit_sampling(body, rules, reasons=effort != "none"), limit_field, rules)


def _make_client(options: OpenAIOptions) -> HttpClient:
    if not options.api_key and not options.base_url:
        raise ConfigurationError(
            "No key for the model's API: set OPENAI_API_KEY or OPENAI_SECRET_ARN, "
            "or OPENAI_BASE_URL for a compatible server that needs none"
        )
    if options.base_url and not is_http_address(options.base_url):
        raise ConfigurationError(
            f"OPENAI_BASE_URL is not an address: {options.base_url!r}. Write it like http://127.0.0.1:11434/v1"
        )
    key = KeyHeader("authorization", options.api_key or "unused", options.refresh_key, prefix="Bearer ")
    account = {"openai-organization": options.organization, "openai-project": options.project}
    headers = {name: value for name, value in account.items() if value}
    return HttpClient(options.base_url or OPENAI_URL, options, options.auth or key, headers)


def function_of(tool: ToolSpec) -> Json:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def schema_of(output: OutputFormat) -> Json:
    return {"name": output.name, "schema": output.schema, "strict": output.strict}


def _identifier(value: str) -> str | None:
    """Return an identifier that the API accepts: one that is too long is replaced with its hash."""
    return (value if len(value) <= MAX_IDENTIFIER_LENGTH else hashlib.sha256(value.encode()).hexdigest()) or None


def _date(value: object) -> date | None:
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        return None
