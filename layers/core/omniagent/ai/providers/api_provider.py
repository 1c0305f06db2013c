"""The common base of the providers that call an HTTP API: options, streaming, and fields that a model refuses."""

import asyncio
import logging
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, ClassVar, Final

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
from omniagent.ai.providers.model_rules import ModelRules, rules_of
from omniagent.ai.providers.stream_reader import ModelStreamReader
from omniagent.errors import ConfigurationError, ModelError, ModelRejected, ModelStreamBroken, ModelUnavailable
from omniagent.messages import ToolPart
from omniagent.tls import is_http_address

logger = logging.getLogger(__name__)

FieldPath = tuple[str, ...]
"""A field of the request, or a field of that; `("tools", "strict")` is the field of every tool."""

SYSTEM_MESSAGE: Final[FieldPath] = ("messages", "system")
"""The role `system` after the first message. Without it, the instructions of the turn come first."""
_REFUSALS: Final = frozenset({400, 422})
_NEEDED: Final = frozenset(
    {"model", "input", "messages", "instructions", "system", "tools", "stream", "store", "max_tokens"}
)
"""Without these, the answer would be another one, or be stored at the vendor."""
_OF_TOOLS: Final = {
    "strict": "strict",
    "cache_control": "cache_control",
    # A schema that strict mode cannot express.
    "parameters": "strict",
    "input_schema": "strict",
}
_NAMED = re.compile(r"""[`'"]([\w.\[\]]+)[`'"]|(?:^|\s)([\w.\[\]]+):\s""")
DRAIN_SECONDS: Final = 0.1
_ANSWER_TOOL: Final = "Give the final answer. Call this once, at the end, and write no text beside it."


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
        self._call_id: str | None = None
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
                    self._call_id = self._call_id or call_id
                    self._texts.clear()
                case ModelToolStart():
                    self._calls_others = True
                    yield from [*self._texts, event]
                    self._texts.clear()
                case ModelToolDelta(call_id, text) if call_id == self._call_id:
                    if not self._calls_others:
                        self._has_arguments = True
                        yield ModelText(text)
                case ModelToolCall(call_id, self.name, arguments):
                    if call_id == self._call_id and not (self._has_arguments or self._calls_others):
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
        key = KeyHeader(header, options.api_key or "unused", options.refresh_key, before)
        return HttpClient(self._address(), options, options.auth or key, self._headers())

    def _address(self) -> str:
        return self.options.base_url or self.url

    @abstractmethod
    def _headers(self) -> Mapping[str, str]:
        """Return the headers of every request, without the key."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        body = self._whole_body(request)
        reader = self._reader(body["model"])
        parts = (part for message in request.messages for part in message.parts)
        reader.taken_ids.update(part.call_id for part in parts if isinstance(part, ToolPart))
        tool: AnswerTool | None = None
        rest: Json | None = body
        try:
            while rest is not None:
                try:
                    async with aclosing(await self._open(rest, request)) as arrivals:
                        if request.output is not None and not self._takes_schema(request.output, body["model"]):
                            tool = tool or AnswerTool(
                                request, request.output
                            )  # the API may just have refused the schema
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
                rest = reader.continuation(rest) if reader.is_paused else None
            for event in reader.end() if tool is None else tool.read(reader.end()):
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


def refused_fields(error: ModelError, body: Json) -> set[FieldPath]:
    """Return the fields that the API's refusal names and that the request can do without.

    OpenAI names one in `param`; Anthropic, Bedrock and compatible servers only in their text: "`temperature` is
    deprecated for this model", "output_config.format: Extra inputs are not permitted", `{"loc": ["body", "top_k"], …}`.
    """
    if error.api_status not in _REFUSALS:
        return set()
    found = [quoted or labelled for quoted, labelled in _NAMED.findall(error.api_text)]
    names = [error.param] if error.param else found
    return {path for name in names if (path := _path(name, body))}


def without(body: Json, fields: Collection[FieldPath]) -> Json:
    """Return the request without these fields. An object that this empties goes too."""
    for first, *rest in fields:
        if (first, *rest) == SYSTEM_MESSAGE or first not in body:  # the first is left out when the request is made
            continue
        value = body[first]
        if first == "tools" and rest:
            value = [_without_leaf(tool, rest[0]) for tool in value]
        else:
            value = _without_leaf(value, rest[0]) if rest and isinstance(value, dict) else None
        body = {name: value if name == first else held for name, held in body.items() if name != first or value}
    return body


def _path(name: str, body: Json) -> FieldPath | None:
    first, *rest = [piece for piece in re.split(r"[.\[\]]+", name) if piece and not piece.isdigit()] or [""]
    if name == "system" or rest[-1:] == ["role"]:
        messages = body.get("messages") or body.get("input")
        late = messages[1:] if isinstance(messages, list) else ()
        if any(message.get("role") in {"system", "developer"} for message in late):
            return SYSTEM_MESSAGE
    if first == "tools" and rest:
        leaf = _OF_TOOLS.get(rest[-1], "")
        return ("tools", leaf) if any(leaf in {**tool, **tool.get("function", {})} for tool in body["tools"]) else None
    if first not in body or first in _NEEDED:
        return None
    nested = body[first]
    return (first, rest[0]) if rest and isinstance(nested, dict) and rest[0] in nested else (first,)


def _without_leaf(holder: Json, leaf: str) -> Json:
    return {
        name: _without_leaf(value, leaf) if name == "function" else value
        for name, value in holder.items()
        if name != leaf
    }
