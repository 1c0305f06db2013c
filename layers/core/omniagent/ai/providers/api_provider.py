"""The common base of the providers that call an HTTP API: options, the conversation as it is sent, and streaming."""

import asyncio
import json
import logging
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

from omniagent.ai.providers.http_client import ApiOptions, HttpClient, KeyHeader
from omniagent.ai.providers.llm_provider import (
    Json,
    LLMProvider,
    ModelEvent,
    ModelFinish,
    ModelRequest,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
    OutputFormat,
    Overrides,
    ToolSpec,
)
from omniagent.ai.providers.model_rules import (
    SYSTEM_MESSAGE,
    FieldPath,
    ModelRules,
    fit,
    refused_fields,
    rules_of,
    without,
)
from omniagent.ai.providers.stream_reader import ModelStreamReader
from omniagent.errors import ConfigurationError, ModelError, ModelRejected, ModelStreamBroken, ModelUnavailable
from omniagent.messages import Part, StepPart, ToolPart
from omniagent.tls import is_http_address

logger = logging.getLogger(__name__)

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
MAX_TOOL_NAME_LENGTH: Final = 64
DRAIN_SECONDS: Final = 0.1
_ANSWER_TOOL: Final = "Give the final answer. Call this once, at the end, and write no text beside it."


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A text of the user, instructions of the turn, or the steps of an answer."""

    role: Literal["user", "system", "assistant"]
    text: str
    steps: list[list[Part]]
    in_turn: bool
    """Whether it belongs to the running turn: reasoning of earlier ones is not sent back."""
    is_marked: bool
    """Whether it ends a part of the prompt that the next turn repeats."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a model reads, without its tools. `changing` are instructions of the turn that come first."""

    instructions: str
    changing: str
    messages: list[SentMessage]


def conversation_of(request: ModelRequest, *, takes_late: bool) -> Conversation:
    """Return the conversation of a request, without empty texts.

    Instructions of the turn stay after its question only where the model takes them there: Claude directly after it.
    Answers are split into their steps, and tool calls without a result are closed.

    An API that matches its cache only at marks needs two: one finds what the turn before has stored, one stores. If
    nothing follows the question that the next turn lacks, no mark is needed.
    """
    changing, messages = "", request.messages
    late = next((number for number, message in enumerate(messages) if message.role == "system"), -1)
    question = messages[late - 1] if late > 0 else None
    may_stay = takes_late and question is not None and question.role == "user" and question.text.strip()
    if late >= 0 and not may_stay:
        changing, messages, late = messages[late].text, [*messages[:late], *messages[late + 1 :]], -1
    questions = [number for number, message in enumerate(messages) if message.role == "user"]
    marked = [number for number in questions if number < late][-2:]
    sent: list[SentMessage] = []
    for number, message in enumerate(messages):
        in_turn = number > (questions[-1] if questions else 0)
        if message.role == "assistant":
            steps: list[list[Part]] = [[]]
            for part in message.parts:
                if isinstance(part, StepPart):
                    steps.append([])
                else:
                    steps[-1].append(_sent_call(part.close()) if isinstance(part, ToolPart) else part)
            sent.append(SentMessage("assistant", "", [step for step in steps if step], in_turn, is_marked=False))
        elif text := message.text:
            sent.append(SentMessage(message.role, text, [], in_turn, number in marked))
    return Conversation(request.instructions, changing, sent)


def _sent_call(part: ToolPart) -> ToolPart:
    """Return a call as the APIs take it: with a name of their characters, an object as input, and text as output."""
    name = _NOT_IN_NAMES.sub("_", part.name)[:MAX_TOOL_NAME_LENGTH] or "unknown"  # a model may have invented one
    arguments = part.input if isinstance(part.input, dict) else {} if part.input is None else {"unparsed": part.input}
    result = part.output if part.error is None else part.error
    output = result if isinstance(result, str) else to_json(result)
    return part.model_copy(update={"name": name, "input": arguments, "output": output})


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


class AnswerTool:
    """The answer as the arguments of a tool, for models whose API does not take the schema of an answer.

    One call's tool. Its arguments are the text of the answer, so nobody else sees a tool."""

    def __init__(self, request: ModelRequest, output: OutputFormat) -> None:
        self.name = output.name
        while any(tool.name == self.name for tool in request.tools):
            self.name += "_"
        self.is_only_tool = not request.tools
        self.request = replace(
            request,
            instructions=f"{request.instructions}\n\nGive your final answer by calling the tool {self.name}.".lstrip(),
            tools=[*request.tools, ToolSpec(self.name, _ANSWER_TOOL, output.schema, output.strict)],
            output=None,
        )
        self._call_ids: list[str] = []
        """Of the calls of this tool. The first one is the answer."""
        self._has_arguments = False
        self._calls_others = False
        self._texts: list[ModelEvent] = []

    def read(self, events: Iterable[ModelEvent]) -> Iterator[ModelEvent]:
        """Yield the events as those of an answer in text.

        Text is held back: it is the answer only if no call follows. Next to calls of other tools, the model does not
        know their results yet, so its answer is dropped.
        """
        for event in events:
            match event:
                case ModelText():
                    self._texts.append(event)
                case ModelToolStart(call_id, self.name):
                    self._call_ids.append(call_id)
                    self._texts.clear()
                case ModelToolStart():
                    self._calls_others = True
                    yield from [*self._texts, event]
                    self._texts.clear()
                case ModelToolDelta(call_id, text) if call_id in self._call_ids:
                    if call_id == self._call_ids[0] and not self._calls_others:
                        self._has_arguments = True
                        yield ModelText(text)
                case ModelToolCall(call_id, self.name, arguments):
                    if call_id == self._call_ids[0] and not (self._has_arguments or self._calls_others):
                        yield ModelText(arguments)
                case ModelFinish():
                    yield from self._texts
                    is_answer = event.reason == "tool-calls" and not self._calls_others
                    yield ModelFinish("stop", event.usage) if is_answer else event
                case _:
                    yield event


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
    limit_field: ClassVar[str]
    effort_path: ClassVar[FieldPath]
    """The field that has the reasoning effort."""
    output_field: ClassVar[FieldPath]
    """The field that has the schema of the answer."""
    takes_loose_schemas: ClassVar[bool] = True
    """Takes the schema of an answer that strict mode cannot express."""
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
        key = KeyHeader(header, options.api_key or "unused", options.refresh_key, before)
        return HttpClient(self._address(), options, options.auth or key, self._headers())

    def _address(self) -> str:
        return self.options.base_url or self.url

    @abstractmethod
    def _headers(self) -> Mapping[str, str]:
        """Return the headers of every request, without the key."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        body = self._whole_body(request)
        try:
            arrivals = await self._open(body, request)
            reader = self._reader(body["model"])
            parts = (part for message in request.messages for part in message.parts)
            reader.taken_ids.update(part.call_id for part in parts if isinstance(part, ToolPart))
            # Again: the API may just have refused the schema.
            tool = None if request.output is None else self._answer_tool(request, request.output)
            while True:
                try:
                    async with aclosing(arrivals):
                        async for events in arrivals:
                            for event in reader.read(events) if tool is None else tool.read(reader.read(events)):
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
                if not reader.is_paused:
                    break
                body = reader.continuation(body)
                arrivals = await self._open(body, request)
            for event in reader.end() if tool is None else tool.read(reader.end()):
                yield event
        except ModelError as exc:
            if self.options.verbose_errors and exc.api_text:
                exc.args = (f"{exc}: {exc.api_text}",)
            raise

    async def aclose(self) -> None:
        await self._client.aclose()

    def context_window(self, overrides: Overrides) -> int | None:
        return self._rules(overrides.model or self.model).context_window

    def cached_price(self, overrides: Overrides) -> float:
        return self._rules(overrides.model or self.model).cached_price

    @abstractmethod
    def _body(
        self, request: ModelRequest, parameters: Json, conversation: Conversation, tool: AnswerTool | None
    ) -> Json:
        """Return the request in this API's format. A call of the `tool` is demanded, of any if there are others."""

    def _limit_field(self, model: str) -> str:  # noqa: ARG002 - some servers name it by model
        return self.limit_field

    def _parameters(self, request: ModelRequest) -> Json:
        """Return the model and its parameters: the call's, or else the provider's. Unset ones are left out."""
        overrides = request.overrides
        model = overrides.model or self.model
        own = self.options if model == self.model else ApiOptions()
        limit, temperature = overrides.max_output_tokens, overrides.temperature
        parameters = {
            "temperature": own.temperature if temperature is None else temperature,
            self._limit_field(model): own.max_output_tokens if limit is None else limit,
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
        """Return the request without what the model refuses. The schema of the answer is a field or a tool."""
        model = request.overrides.model or self.model
        rules, refused = self._rules(model), self._refused.get(model, set())
        tool = None if request.output is None else self._answer_tool(request, request.output)
        request = request if tool is None else tool.request
        conversation = conversation_of(request, takes_late=rules.late_system and SYSTEM_MESSAGE not in refused)
        parameters = fit(self._parameters(request), rules, self.effort_path)
        body = self._body(request, parameters, conversation, tool) | self.stream_fields
        return without(body, refused) if refused else body

    def _answer_tool(self, request: ModelRequest, output: OutputFormat) -> AnswerTool | None:
        """Return a tool for the answer, if the model does not take its schema."""
        model = request.overrides.model or self.model
        refused = {self.output_field, self.output_field[:1]} & self._refused.get(model, set())
        takes_schema = self._rules(model).native_output and not refused
        return None if takes_schema and (output.strict or self.takes_loose_schemas) else AnswerTool(request, output)
