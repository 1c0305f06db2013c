"""The common base of the two OpenAI APIs: parameters, and what the model's rules make of them."""

import hashlib
from abc import abstractmethod
from datetime import date
from typing import Any, Final

from omniagent.ai.providers.answer_tool import AnswerTool
from omniagent.ai.providers.api_provider import ApiProvider
from omniagent.ai.providers.llm_provider import ModelRequest
from omniagent.ai.providers.model_rules import fit_limit, fit_sampling, nearest_effort, rules_of
from omniagent.ai.providers.openai.openai_client import OpenAIClient, OpenAIOptions
from omniagent.ai.providers.stream_reader import Json
from omniagent.errors import ModelRejected

MAX_IDENTIFIER_LENGTH: Final = 64
CACHE_MARK: Final[Json] = {"prompt_cache_breakpoint": {"mode": "explicit"}}
EFFORT_FIELDS: Final = frozenset({"reasoning", "reasoning_effort"})
"""The fields in which a caller chooses the effort: OpenAI's of either API, and OpenRouter's of Chat Completions."""


class OpenAIProvider(ApiProvider):
    """A model behind an OpenAI API. The options are those of `OpenAIOptions`."""

    system = "openai"
    options: OpenAIOptions
    _client: OpenAIClient

    def __init__(self, model: str, *, client: OpenAIClient | None = None, **options: Any) -> None:
        """Take the options, or a client that has them."""
        client = client or OpenAIClient(OpenAIOptions(**options))
        super().__init__(model, client.options, client)

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

    @abstractmethod
    def _limit_field(self, model: str) -> str:
        """Return the name of the field that limits the model's output."""

    @abstractmethod
    def _effort_fields(self, effort: str) -> Json:
        """Return the reasoning effort in this API's format."""

    @abstractmethod
    def _effort(self, body: Json) -> str | None:
        """Return the reasoning effort of a request, if it has one."""

    def _parameters(self, request: ModelRequest) -> Json:
        """Return the model and its parameters: the call's, or else the provider's. Unset ones are left out."""
        overrides = request.overrides
        model = overrides.model or self.model
        own = self.options if model == self.model else OpenAIOptions()
        parameters: Json = {"model": model}
        for name, value, default in (
            ("temperature", overrides.temperature, own.temperature),
            (self._limit_field(model), overrides.max_output_tokens, own.max_output_tokens),
        ):
            chosen = default if value is None else value
            if chosen is not None:
                parameters[name] = chosen
        return {**parameters, **self._identifiers(request), **own.extra, **overrides.extra}

    def _fitted(self, body: Json) -> Json:
        """Return the request as the rules of its model want it."""
        rules = rules_of(body["model"])
        effort = self._effort(body)
        if effort is None and rules.default_effort and not body.keys() & EFFORT_FIELDS:
            effort = rules.default_effort
            body = {**body, **self._effort_fields(effort)}
        elif effort is not None and nearest_effort(effort, rules) != effort:
            effort = nearest_effort(effort, rules)
            body = {**body, **self._effort_fields(effort)}
        body = fit_sampling(body, rules, reasons=effort != "none")
        return fit_limit(body, self._limit_field(body["model"]), rules)

    def _identifiers(self, request: ModelRequest) -> Json:
        """Return the fields for OpenAI's prompt cache and abuse checks. Compatible servers may refuse them."""
        if not self.options.send_identifiers:
            return {}
        identifiers = {"prompt_cache_key": request.cache_key, "safety_identifier": request.user_id}
        return {name: _identifier(value) for name, value in identifiers.items() if value}

    def _finds_cache_at_marks(self, request: ModelRequest) -> bool:
        """Whether the model's cache needs marks. Compatible servers may refuse them."""
        return bool(self.options.send_identifiers) and self._rules(self.model_for(request.overrides)).cache_marks

    def _tool_parameters(self, tools: list[Json]) -> Json:
        if not tools:
            return {}
        parallel = self.options.parallel_tool_calls
        return {"tools": tools} if parallel is None else {"tools": tools, "parallel_tool_calls": parallel}


def _identifier(value: str) -> str:
    """Return an identifier that the API accepts: one that is too long is replaced with its hash."""
    return value if len(value) <= MAX_IDENTIFIER_LENGTH else hashlib.sha256(value.encode()).hexdigest()


def _date(value: object) -> date | None:
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        return None
