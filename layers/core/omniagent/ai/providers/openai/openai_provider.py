"""The common base of the two OpenAI APIs: parameters, and what the model's rules make of them."""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any, ClassVar, Final, Literal, get_args

from omniagent.ai.providers.api_provider import AnswerTool, ApiProvider, FieldPath
from omniagent.ai.providers.http_client import ApiOptions, HttpClient
from omniagent.ai.providers.llm_provider import Json, ModelRequest, OutputFormat
from omniagent.ai.providers.model_rules import fit, nearest_effort, rules_of
from omniagent.ai.providers.stream_reader import objects_of
from omniagent.errors import ConfigurationError, ModelRejected

MAX_IDENTIFIER_LENGTH: Final = 64
CACHE_MARK: Final[Json] = {"prompt_cache_breakpoint": {"mode": "explicit"}}
EFFORT_FIELDS: Final = frozenset({"reasoning", "reasoning_effort"})
"""The fields in which a caller chooses the effort: OpenAI's of either API, and OpenRouter's of Chat Completions."""

ThinkTagsMode = Literal["both", "closing"]
"""`both`: the answer may begin with `<think>`. `closing`: the template has opened it, so only `</think>` comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIOptions(ApiOptions):
    """The options of an OpenAI provider."""

    organization: str | None = None
    project: str | None = None
    identifiers: bool | None = None
    """Send `prompt_cache_key` and `safety_identifier`. None: only to OpenAI itself, where no `base_url` is set."""
    think_tags: ThinkTagsMode | None = None
    """Chat Completions: read `<think>` tags at the beginning of the text as reasoning."""


class OpenAIProvider(ApiProvider):
    """A model behind an OpenAI API. The options are those of `OpenAIOptions`."""

    system = "openai"
    settings_prefix = "OPENAI"
    url = "https://api.openai.com/v1"
    key_header = ("authorization", "Bearer ")
    effort_path: ClassVar[FieldPath]
    """Where a request has the reasoning effort."""
    _options_type = OpenAIOptions
    options: OpenAIOptions

    def __init__(self, model: str, *, client: HttpClient | None = None, **options: Any) -> None:
        super().__init__(model, client=client, **options)
        chosen = self.options
        if chosen.think_tags not in (None, *get_args(ThinkTagsMode)):
            raise ConfigurationError(f"think_tags must be 'both' or 'closing', not {chosen.think_tags!r:.100}")
        # For OpenAI's prompt cache and abuse checks. Compatible servers may refuse them.
        self._is_identified = not chosen.base_url if chosen.identifiers is None else chosen.identifiers

    def _headers(self) -> Mapping[str, str]:
        account = {"openai-organization": self.options.organization, "openai-project": self.options.project}
        return {name: value for name, value in account.items() if value}

    async def shutdown_date(self) -> date | None:
        """Return the `shutdown_date` in the server's list of models. Many compatible servers have none, or no list."""
        if self.options.auth is not None:
            return None  # Bedrock has no list at this address
        try:
            listed = await self._client.get("/models")
        except ModelRejected:
            return None
        for card in objects_of(listed if isinstance(listed, dict) else {}, "data"):
            if card.get("id") == self.model:
                with suppress(ValueError):
                    return date.fromisoformat(str(card.get("shutdown_date")))
        return None

    @abstractmethod
    def _tool(self, spec: Json) -> Json:
        """Return a function, or the name of one, as this API takes it."""

    def _forcing(self, body: Json, tool: AnswerTool) -> Json:
        return {**body, "tool_choice": self._tool({"name": tool.name}) if tool.is_only_tool else "required"}

    def _parameters(self, request: ModelRequest, limit_field: str) -> Json:
        tools = [
            self._tool(
                {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": tool.strict,
                }
            )
            for tool in request.tools
        ]
        parallel = self.options.parallel_tool_calls
        parameters: Json = {"tools": tools} if tools else {}
        if tools and parallel is not None:
            parameters["parallel_tool_calls"] = parallel
        if self._is_identified:
            named = {"prompt_cache_key": request.cache_key, "safety_identifier": request.user_id}
            parameters |= {name: _identifier(value) for name, value in named.items() if value}
        return parameters | super()._parameters(request, limit_field)

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
        return fit(body, rules, limit_field, reasons=effort != "none")


def schema_of(output: OutputFormat) -> Json:
    return {"name": output.name, "schema": output.schema, "strict": output.strict}


def _identifier(value: str) -> str:
    """Return an identifier that the API accepts: one that is too long is replaced with its hash."""
    return value if len(value) <= MAX_IDENTIFIER_LENGTH else hashlib.sha256(value.encode()).hexdigest()
