"""OpenAI's Responses API, and what Chat Completions has in common with it."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, Literal, get_args

from omniagent.ai.providers.api_errors import reported
from omniagent.ai.providers.api_provider import AnswerTool, ApiProvider, Conversation, SentMessage, to_json
from omniagent.ai.providers.http_client import ApiOptions
from omniagent.ai.providers.llm_provider import OTHER_NAMES, Json, ModelRequest
from omniagent.ai.providers.stream_reader import ModelStreamReader, objects_of, usage_of
from omniagent.errors import ConfigurationError, ModelRejected
from omniagent.messages import ReasoningPart, TextPart, ToolPart

CACHE_MARK: Final[Json] = {"prompt_cache_breakpoint": {"mode": "explicit"}}
MAX_IDENTIFIER_LENGTH: Final = 64
_SEALED = ("id", "summary", "encrypted_content")

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
    _options_type = OpenAIOptions
    options: OpenAIOptions

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
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

    def _with_tools(self, tools: list[Json], request: ModelRequest, parameters: Json) -> Json:
        """Return the parameters with tools, and with the session and the user."""
        shared: Json = {"tools": tools} if tools else {}
        if tools and self.options.parallel_tool_calls is not None:
            shared["parallel_tool_calls"] = self.options.parallel_tool_calls
        if self._is_identified:
            named = {"prompt_cache_key": request.cache_key, "safety_identifier": request.user_id}
            shared |= {name: _identifier(value) for name, value in named.items() if value}
        return shared | parameters


class ResponseReader(ModelStreamReader):
    """Reads the events of a response."""

    _thought: tuple[Any, ...] | None = None

    def _read(self, event: Json) -> None:
        if "type" not in event and event.get("object") == "response":  # from a server that ignores `stream`
            event = {"type": f"response.{event['status']}", "response": event}
        kind = event["type"] if "type" in event or "error" not in event else "error"
        match kind:
            case "response.output_text.delta":
                self._text(event["delta"])
            case "response.function_call_arguments.delta":
                self._delta(self._by_index[event["output_index"]], event["delta"])
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._reasoning_delta(event)
            case "response.refusal.delta":
                self._refusal(event["delta"])
            case "response.output_item.added" | "response.output_item.done":
                self._item(event["item"], event.get("output_index"), is_done=kind == "response.output_item.done")
            case "response.output_text.annotation.added":
                self._annotated(event["annotation"])
            case "response.completed" | "response.incomplete":
                self._ended(event["response"], is_complete=kind == "response.completed")
            case "response.failed":
                raise reported(event["response"].get("error"))
            case "error":
                raise reported(event.get("error") or event)

    def _reasoning_delta(self, event: Json) -> None:
        """Add reasoning. The parts of one item are numbered; a blank line separates them."""
        thought = (event["type"], event.get("output_index"), event.get("summary_index"), event.get("content_index"))
        if self._is_reasoning and thought != self._thought:
            self._reasoning("\n\n")
        self._thought = thought
        self._reasoning(event["delta"])

    def _item(self, item: Json, index: object, *, is_done: bool) -> None:
        if item["type"] == "function_call":
            # Some servers number every call 0.
            call = self._by_index.get(index) if is_done else None
            call = call or self._open_call(index, item["call_id"], item["name"])
            if not is_done:
                return
            if (arguments := item["arguments"]) and not call.pieces:
                self._delta(call, arguments if isinstance(arguments, str) else to_json(arguments))
            self._close_call(call)
        elif item["type"] == "reasoning" and is_done:
            sealed = None
            if secret := item.get("encrypted_content"):  # the summary is required with it, but may be empty
                sealed = {"id": item["id"], "summary": item.get("summary") or [], "encrypted_content": secret}
            self._end_reasoning(sealed)

    def _annotated(self, annotation: Json) -> None:
        """Note a source. A `file_path` is the answer's own file."""
        if annotation.get("type") != "file_path":
            self._cite(annotation.get("url"), annotation.get("title"), annotation.get("filename"))

    def _ended(self, response: Json, *, is_complete: bool) -> None:
        """Finish. Calls and text that were not streamed are read from the response: some bridges stream neither."""
        items = response.get("output")
        has_text, has_calls = self._has_text, bool(self._calls)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            if item["type"] == "function_call" and not has_calls:
                self._item(item, index, is_done=True)
            elif item["type"] == "message" and not has_text:
                for part in item["content"]:
                    if text := part.get("text"):
                        self._text(text)
                        for annotation in objects_of(part, "annotations"):
                            self._annotated(annotation)
                    elif refusal := part.get("refusal"):
                        self._refusal(refusal)
        reason = "stop" if is_complete else str((response.get("incomplete_details") or {}).get("reason"))
        self._finish(OTHER_NAMES.get(reason, "other"), usage_of(response, "input", "output"))


class OpenAIResponses(OpenAIProvider):
    """Stores nothing at OpenAI: reasoning is received encrypted and sent back within the turn."""

    path = "/responses"
    limit_field = "max_output_tokens"
    effort_path = ("reasoning", "effort")
    output_field = ("text", "format")
    _reader = ResponseReader

    def _body(
        self, request: ModelRequest, parameters: Json, conversation: Conversation, tool: AnswerTool | None
    ) -> Json:
        rules = self._rules(parameters["model"])
        has_marks = self._is_identified and rules.cache_marks
        shared = self._with_tools([{"type": "function", **vars(spec)} for spec in request.tools], request, parameters)
        body: Json = {
            "instructions": "\n\n".join(filter(None, (conversation.instructions, conversation.changing))),
            "input": [item for message in conversation.messages for item in _items(message, has_marks=has_marks)],
            "store": False,
            **shared,
        }
        if tool is not None:
            body["tool_choice"] = {"type": "function", "name": tool.name} if tool.is_only_tool else "required"
        if request.output is not None:
            body["text"] = {"format": {"type": "json_schema", **vars(request.output)}, **body.get("text", {})}
        # Models that do not reason refuse a request for encrypted reasoning.
        if rules.reasons or "reasoning" in body:
            body.setdefault("include", ["reasoning.encrypted_content"])
        return body


def _items(message: SentMessage, *, has_marks: bool) -> Iterator[Json]:
    """Yield the items of a message: of each step of an answer in order, then the outputs of its tools.

    Reasoning is sent back only within its turn, and only before the item that it led to: the API refuses it alone.
    """
    if message.role == "system":
        yield {"type": "message", "role": "developer", "content": message.text}
    elif message.role == "user":
        marked = [{"type": "input_text", "text": message.text, **CACHE_MARK}]
        content = marked if has_marks and message.is_marked else message.text
        yield {"type": "message", "role": "user", "content": content}
    for step in message.steps:
        reasoned: list[Json] = []
        outputs: list[Json] = []
        for part in step:
            if isinstance(part, ReasoningPart):
                data = part.provider_data or {}
                if message.in_turn and "encrypted_content" in data:
                    reasoned.append({"type": "reasoning"} | {name: data[name] for name in _SEALED if name in data})
            elif isinstance(part, ToolPart):
                call: Json = {"call_id": part.call_id, "name": part.name, "arguments": to_json(part.input)}
                yield from [*reasoned, {"type": "function_call", **call}]
                outputs.append({"type": "function_call_output", "call_id": part.call_id, "output": part.output})
                reasoned.clear()
            elif isinstance(part, TextPart) and part.text:
                yield from [*reasoned, {"type": "message", "role": "assistant", "content": part.text}]
                reasoned.clear()
        yield from outputs


def _identifier(value: str) -> str:
    """Return an identifier that the API accepts: one that is too long is replaced with its hash."""
    return value if len(value) <= MAX_IDENTIFIER_LENGTH else hashlib.sha256(value.encode()).hexdigest()
