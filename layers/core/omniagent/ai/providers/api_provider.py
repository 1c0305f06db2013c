"""The common base of the providers that call an HTTP API: options, streaming, and fields that a model refuses."""

import logging
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import ClassVar

from omniagent.ai.providers.answer_tool import AnswerTool
from omniagent.ai.providers.api_stream import drain
from omniagent.ai.providers.http_client import ApiOptions, HttpClient
from omniagent.ai.providers.llm_provider import (
    LLMProvider,
    ModelEvent,
    ModelRequest,
    OutputFormat,
    Overrides,
)
from omniagent.ai.providers.model_rules import ModelRules, rules_of
from omniagent.ai.providers.refused_fields import SYSTEM_MESSAGE, FieldPath, refused_fields, without
from omniagent.ai.providers.sent_parts import system_at
from omniagent.ai.providers.stream_reader import Json, ModelStreamReader
from omniagent.errors import ModelError, ModelRejected, ModelStreamBroken, ModelUnavailable
from omniagent.messages import ToolPart

logger = logging.getLogger(__name__)


class ApiProvider(LLMProvider):
    """A model behind an HTTP API that streams its answer.

    `temperature`, `max_output_tokens` and `extra` apply to the provider's model only: a call that overrides the model
    does not use them. A call's `extra` takes precedence over them. What `model_rules` says that the model refuses is
    not sent. If the API refuses another field by its name, the request is repeated without it, and so are later ones.
    A model that takes no schema of its answer is given a tool for it.
    """

    path: ClassVar[str]
    stream_fields: ClassVar[Json] = {"stream": True}
    output_field: ClassVar[FieldPath]
    """The field that has the schema of the answer."""
    _rules: Callable[[str], ModelRules] = staticmethod(rules_of)
    """Returns what a model takes here."""
    options: ApiOptions
    _client: HttpClient

    def __init__(self, model: str, options: ApiOptions, client: HttpClient) -> None:
        super().__init__(model)
        self.options = options
        self._client = client
        self._refused: dict[str, set[FieldPath]] = {}

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
                                await drain(arrivals)
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
    def _reader(self, model: str) -> ModelStreamReader:
        """Return a new reader for one answer of the model."""

    @abstractmethod
    def _body(self, request: ModelRequest) -> Json:
        """Return the request in this API's format."""

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
        self._note_refused(body["model"], fields)
        return answer

    def _whole_body(self, request: ModelRequest) -> Json:
        if (at := system_at(request.messages)) > 0 and not self._takes_system_late(request, at):
            first, *others = request.messages[at:]
            request = replace(request, messages=[first, *request.messages[:at], *others])
        body = self._body(request) if request.output is None else self._typed_body(request, request.output)
        body = {**body, **self.stream_fields}
        return without(body, self._refused.get(body["model"], ()))

    def _typed_body(self, request: ModelRequest, output: OutputFormat) -> Json:
        """Return the request, with the schema of the answer as a field or as a tool."""
        model = self.model_for(request.overrides)
        if self._takes_schema(output, model):
            return self._body(request)
        tool = AnswerTool(request, output)
        return self._forcing(self._body(tool.request), tool)

    @abstractmethod
    def _forcing(self, body: Json, tool: AnswerTool) -> Json:
        """Return the request with the demand to call a tool, if the model takes it: this one if there is no other."""

    def _takes_schema(self, output: OutputFormat, model: str) -> bool:  # noqa: ARG002 - an API may take only strict ones
        refused = self._refused.get(model, ())
        return self._rules(model).native_output and not {self.output_field, self.output_field[:1]} & set(refused)

    def _takes_system_late(self, request: ModelRequest, at: int) -> bool:
        """Whether the instructions of the turn may stay after its question: Claude takes them nowhere else."""
        model, question = self.model_for(request.overrides), request.messages[at - 1]
        is_refused = SYSTEM_MESSAGE in self._refused.get(model, ())
        follows_question = question.role == "user" and bool(question.text.strip())
        return self._rules(model).late_system and not is_refused and follows_question

    def _note_refused(self, model: str, fields: set[FieldPath]) -> None:
        """Log and count the fields. Later requests are sent without them."""
        for name in sorted(".".join(path) for path in fields):
            logger.warning("the model's API refuses a field", extra={"model": model, "field": name})
            if self.options.on_refused_field is not None:
                self.options.on_refused_field(name)
