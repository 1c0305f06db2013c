"""The common base of the two OpenAI APIs: options, parameters and streaming."""

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import date
from typing import Any, ClassVar, Final

from omniagent.ai.providers.llm_provider import LLMProvider, ModelEvent, ModelRequest
from omniagent.ai.providers.model_rules import DEFAULT_EFFORTS
from omniagent.ai.providers.openai.openai_client import OpenAIClient, OpenAIOptions, drain
from omniagent.ai.providers.stream_reader import Json, ModelStreamReader
from omniagent.errors import ModelError, ModelRejected, ModelStreamBroken, ModelUnavailable
from omniagent.messages import ChatMessage, Part, StepPart, ToolPart

MAX_IDENTIFIER_LENGTH: Final = 64
EFFORT_FIELDS: Final = frozenset({"reasoning", "reasoning_effort"})
"""The fields in which a caller chooses the effort: OpenAI's of either API, and OpenRouter's of Chat Completions."""


class OpenAIProvider(LLMProvider):
    """A model behind an OpenAI API. The options are those of `OpenAIOptions`.

    `temperature`, `max_output_tokens` and `extra` apply to the provider's model only: a call that overrides the model
    does not use them. A call's `extra` takes precedence over everything else.
    """

    system = "openai"
    path: ClassVar[str]
    stream_fields: ClassVar[Json] = {"stream": True}

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model)
        self.options = OpenAIOptions(**options)
        self._client = OpenAIClient(self.options)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        body = {**self._body(request), **self.stream_fields}
        reader = self._reader_of(request, body["model"])
        try:
            try:
                async with aclosing(self._client.stream(self.path, body)) as arrivals:
                    async for events in arrivals:
                        for event in reader.read(events):
                            yield event
                        if reader.finished:
                            await drain(arrivals)
            except (ModelStreamBroken, ModelUnavailable):
                if not reader.has_ended:
                    raise
            for event in reader.end():
                yield event
        except ModelError as exc:
            if self.options.verbose_errors and exc.api_text:
                exc.args = (f"{exc}: {exc.api_text}",)
            raise

    async def aclose(self) -> None:
        await self._client.aclose()

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
    def _body(self, request: ModelRequest) -> Json:
        """Return the request in this API's format."""

    @abstractmethod
    def _reader(self, model: str) -> ModelStreamReader:
        """Return a new reader for one answer of the model."""

    @abstractmethod
    def _limit_field(self, model: str) -> str:
        """Return the name of the field that limits the model's output."""

    @abstractmethod
    def _effort_fields(self, effort: str) -> Json:
        """Return the reasoning effort in this API's format."""

    def _reader_of(self, request: ModelRequest, model: str) -> ModelStreamReader:
        reader = self._reader(model)
        parts = (part for message in request.messages for part in message.parts)
        reader.avoid(part.call_id for part in parts if isinstance(part, ToolPart))
        return reader

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
        extra = {**own.extra, **overrides.extra}
        effort = next((effort for family, effort in DEFAULT_EFFORTS if family.match(model)), None)
        if effort is not None and not extra.keys() & EFFORT_FIELDS:
            parameters |= self._effort_fields(effort)
        return {**parameters, **self._identifiers(request), **extra}

    def _identifiers(self, request: ModelRequest) -> Json:
        """Return the fields for OpenAI's prompt cache and abuse checks. Compatible servers may refuse them."""
        if not self.options.send_identifiers:
            return {}
        identifiers = {"prompt_cache_key": request.cache_key, "safety_identifier": request.user_id}
        return {name: _identifier(value) for name, value in identifiers.items() if value}

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


_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
MAX_TOOL_NAME_LENGTH = 64


def steps(message: ChatMessage) -> list[list[Part]]:
    """Split a message into its steps. Tool calls without a result are closed."""
    found: list[list[Part]] = [[]]
    for part in message.parts:
        if isinstance(part, StepPart):
            found.append([])
        else:
            found[-1].append(part.close() if isinstance(part, ToolPart) else part)
    return [step for step in found if step]


def tool_name(part: ToolPart) -> str:
    """Return a name that the APIs accept: a model may have called a tool with an invalid name."""
    return _NOT_IN_NAMES.sub("_", part.name)[:MAX_TOOL_NAME_LENGTH] or "unknown"


def tool_arguments(part: ToolPart) -> str:
    """Return the arguments as a JSON object, even if the model wrote none: some servers parse them."""
    if part.input is None:
        return "{}"
    return to_json(part.input if isinstance(part.input, dict) else {"unparsed": part.input})


def tool_output(part: ToolPart) -> str:
    if part.error is not None:
        return part.error
    return part.output if isinstance(part.output, str) else to_json(part.output)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
