"""The common base of the providers that call an HTTP API: options, streaming, and fields that a model refuses."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, ClassVar, Final

from omniagent.ai.providers.answer_tool import AnswerTool
from omniagent.ai.providers.http_client import ApiOptions, HttpClient, KeyHeader
from omniagent.ai.providers.llm_provider import (
    Json,
    LLMProvider,
    ModelEvent,
    ModelRequest,
    OutputFormat,
    Overrides,
)
from omniagent.ai.providers.model_rules import ModelRules, rules_of
from omniagent.ai.providers.refused_fields import SYSTEM_MESSAGE, FieldPath, refused_fields, without
from omniagent.ai.providers.stream_reader import ModelStreamReader
from omniagent.errors import ConfigurationError, ModelError, ModelRejected, ModelStreamBroken, ModelUnavailable
from omniagent.messages import ToolPart
from omniagent.tls import is_http_address

logger = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 0.1


class ApiProvider(LLMProvider):
    """A model behind an HTTP API that streams its answer.

    `temperature`, `max_output_tokens` and `extra` apply to the provider's model only: a call that overrides the model
    does not use them. A call's `extra` takes precedence over them. What `model_rules` says that the model refuses is
    not sent. If the API refuses another field by its name, the request is repeated without it, and so are later ones.
    A model that takes no schema of its answer is given a tool for it.
    """

    settings_prefix: ClassVar[str]
    """Of the settings that have the key and the address, such as OPENAI in OPENAI_API_KEY."""
    url: ClassVar[str]
    path: ClassVar[str]
    key_header: ClassVar[tuple[str, str]]
    """The header that has the key, and what comes before the key in it."""
    stream_fields: ClassVar[Json] = {"stream": True}
    output_field: ClassVar[FieldPath]
    """The field that has the schema of the answer."""
    _rules: Callable[[str], ModelRules] = staticmethod(rules_of)
    """Returns what a model takes here."""
    _reader: Callable[[str], ModelStreamReader]
    """Returns a new reader for one answer of a model."""
    _options_type: ClassVar[type[ApiOptions]] = ApiOptions
    options: ApiOptions

    def __init__(self, model: str, *, client: HttpClient | None = None, **options: Any) -> None:
        """Take the options, and a client if there is one already."""
        super().__init__(model)
        self.options = self._options_type(**options)
        self._client = client or self._new_client()
        self._refused: dict[str, set[FieldPath]] = {}

    def _new_client(self) -> HttpClient:
        options, prefix = self.options, self.settings_prefix
        if not (options.api_key or options.base_url or options.auth):
            raise ConfigurationError(
                f"No key for the model's API: set {prefix}_API_KEY or OPENAI_SECRET_ARN, "
                f"or {prefix}_BASE_URL for a compatible server that needs none"
            )
        if options.base_url and not is_http_address(options.base_url):
            raise ConfigurationError(
                f"{prefix}_BASE_URL is not an address: {options.base_url!r}. Write it like http://127.0.0.1:11434/v1"
            )
        header, before = self.key_header
        key = KeyHeader(header, options.api_key or "unused", options.refresh_key, prefix=before)
        return HttpClient(self._address(), options, options.auth or key, self._headers())

    def _address(self) -> str:
        return self.options.base_url or self.url

    @abstractmethod
    def _headers(self) -> Mapping[str, str]:
        """Return the headers of every request, without the key."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        return self._events(request) if request.output is None else self._typed_events(request, request.output)

    async def _typed_events(self, request: ModelRequest, output: OutputFormat) -> AsyncGenerator[ModelEvent, None]:
        tool: AnswerTool | None = None
        async with aclosing(self._events(request)) as events:
            async for event in events:
                if tool is None and not self._takes_schema(output, self.model_for(request.overrides)):
                    tool = AnswerTool(request, output)  # known with the first event: the API may refuse the schema
                for each in (event,) if tool is None else tool.read(event):
                    yield each

    async def _events(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        body = self._whole_body(request)
        reader = self._reader(body["model"])
        parts = (part for message in request.messages for part in message.parts)
        reader.taken_ids.update(part.call_id for part in parts if isinstance(part, ToolPart))
        rest: Json | None = body
        try:
            while rest is not None:
                try:
                    async with aclosing(await self._open(rest, request)) as arrivals:
                        async for events in arrivals:
                            for event in reader.read(events):
                                yield event
                            if reader.finished:
                                # Read the rest, so that the connection can be used for the next request.
                                with suppress(TimeoutError, ModelError):
                                    async with asyncio.timeout(DRAIN_SECONDS):
                                        async for _ in arrivals:
                                            pass
                except (ModelStreamBroken, ModelUnavailable):
                    if not reader.has_ended:
                        raise
                rest = reader.continuation(rest)
            for event in reader.end():
                yield event
        except ModelError as exc:
            if self.options.verbose_errors and exc.api_text:
                exc.args = (f"{exc}: {exc.api_text}",)
            raise

    async def aclose(self) -> None:
        await self._client.aclose()

    def context_window(self, overrides: Overrides) -> int | None:
        return self._rules(self.model_for(overrides)).context_window

    def cached_price(self, overrides: Overrides) -> float:
        return self._rules(self.model_for(overrides)).cached_price

    @abstractmethod
    def _body(self, request: ModelRequest) -> Json:
        """Return the request in this API's format."""

    def _parameters(self, request: ModelRequest, limit_field: str) -> Json:
        """Return the model and its parameters: the call's, or else the provider's. Unset ones are left out."""
        overrides = request.overrides
        model = self.model_for(overrides)
        own = self.options if model == self.model else ApiOptions()
        limit, temperature = overrides.max_output_tokens, overrides.temperature
        parameters = {
            "temperature": own.temperature if temperature is None else temperature,
            limit_field: own.max_output_tokens if limit is None else limit,
        }
        chosen = {name: value for name, value in parameters.items() if value is not None}
        return {"model": model, **chosen, **own.extra, **overrides.extra}

    async def _open(self, body: Json, request: ModelRequest) -> AsyncGenerator[Iterator[Json], None]:
        """Send a request, and once more without the fields that the API names in a refusal."""
        refused = self._refused.setdefault(body["model"], set())
        try:
            return await self._client.open(self.path, body)
        except ModelRejected as exc:
            fields = refused_fields(exc, body)
            if not fields:
                raise
        refused |= fields
        try:
            answer = await self._client.open(self.path, self._whole_body(request))
        except ModelError:
            refused -= fields
            raise
        for name in sorted(".".join(path) for path in fields):
            logger.warning("the model's API refuses a field", extra={"model": body["model"], "field": name})
            if self.options.on_refused_field is not None:
                self.options.on_refused_field(name)
        return answer

    def _whole_body(self, request: ModelRequest) -> Json:
        """Return the request without what the model refuses.

        The instructions of the turn stay after its question only where the model takes them there: Claude directly
        after it. The schema of the answer is a field or a tool.
        """
        model, messages, output = self.model_for(request.overrides), request.messages, request.output
        refused = self._refused.get(model, ())
        at = next((number for number, message in enumerate(messages) if message.role == "system"), 0)
        if at:
            question = messages[at - 1]
            may_stay = self._rules(model).late_system and SYSTEM_MESSAGE not in refused
            if not (may_stay and question.role == "user" and question.text.strip()):
                first, *others = messages[at:]
                request = replace(request, messages=[first, *messages[:at], *others])
        if output is None or self._takes_schema(output, model):
            body = self._body(request)
        else:
            tool = AnswerTool(request, output)
            body = self._forcing(self._body(tool.request), tool)
        body |= self.stream_fields
        return without(body, refused) if refused else body

    @abstractmethod
    def _forcing(self, body: Json, tool: AnswerTool) -> Json:
        """Return the request with the demand to call a tool, if the model takes it: this one if there is no other."""

    def _takes_schema(self, output: OutputFormat, model: str) -> bool:  # noqa: ARG002 - an API may take only strict ones
        refused = self._refused.get(model, ())
        return self._rules(model).native_output and not {self.output_field, self.output_field[:1]} & set(refused)
