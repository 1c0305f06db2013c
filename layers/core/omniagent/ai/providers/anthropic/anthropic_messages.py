"""Anthropic's Messages API."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from omniagent.ai.providers.api_errors import reported
from omniagent.ai.providers.api_provider import AnswerTool, ApiProvider, Conversation, SentMessage, to_json
from omniagent.ai.providers.llm_provider import OTHER_NAMES, Json, ModelRequest, ToolSpec
from omniagent.ai.providers.model_rules import DEFAULT_MAX_TOKENS, ModelRules, is_thinking
from omniagent.ai.providers.stream_reader import Call, ModelStreamReader, objects_of, tokens_at
from omniagent.errors import ModelStreamBroken
from omniagent.messages import Part, ReasoningPart, TextPart, ToolPart, Usage

MAX_STRICT_TOOLS: Final = 20
MAX_PAUSES: Final = 10
"""How often an answer may pause to be continued."""
_CACHED: Final[Json] = {"type": "ephemeral"}
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")
_USER_ID = re.compile(r"[\w.@-]{1,256}", re.ASCII)


@dataclass(slots=True)
class _Block:
    """A block of the answer that is being read: what it began with, and the pieces that followed."""

    start: Json
    call: Call | None = None
    pieces: list[str] = field(default_factory=list)
    signature: str = ""

    def sent_back(self) -> Json:
        """Return the block as the API expects it back."""
        text = "".join(self.pieces)
        if self.start["type"] == "text":
            return {"type": "text", "text": (self.start.get("text") or "") + text}
        if self.start["type"] == "thinking":
            thinking = (self.start.get("thinking") or "") + text
            return {"type": "thinking", "thinking": thinking, "signature": self.signature}
        return {**self.start, "input": _object(text)} if text else self.start


class MessageReader(ModelStreamReader):
    """Reads one answer, also over the requests that continue it after a pause.

    Blocks of an unknown kind, such as a server tool's, are not shown; within the turn they are sent back unchanged.
    """

    _usage = Usage()
    _pauses = 0

    def __init__(self, model: str = "") -> None:
        super().__init__(model)
        self._blocks: dict[Any, _Block] = {}
        self._content: list[_Block] = []
        self._counts: Json = {}

    def continuation(self, body: Json) -> Json:
        if self._pauses == MAX_PAUSES:
            raise ModelStreamBroken(f"the model's answer paused more than {MAX_PAUSES} times")
        self._pauses += 1
        self.is_paused, self.has_ended, self.finished = False, False, None
        content = [block.sent_back() for block in self._content]
        self._content.clear()
        *before, last = body["messages"]
        if last["role"] == "assistant":
            content = [*last["content"], *content]
        else:
            before.append(last)
        return {**body, "messages": [*before, {"role": "assistant", "content": content}]}

    def _read(self, event: Json) -> None:
        match event["type"] if "type" in event or "error" not in event else "error":
            case "content_block_delta":
                self._delta_read(self._blocks[event["index"]], event["delta"])
            case "content_block_start":
                self._block_started(event["index"], event["content_block"])
            case "content_block_stop":
                self._block_stopped(self._blocks[event["index"]])
            case "message_start":
                self._counts, self._blocks = _counts(event["message"].get("usage")), {}
            case "message_delta":
                self._message_ended(event["delta"], event.get("usage"))
            case "message":  # from a server that ignores `stream`
                for index, block in enumerate(event["content"]):
                    self._block_started(index, block)
                    self._block_stopped(self._blocks[index])
                self._message_ended(event, event.get("usage"))
            case "error":
                raise reported(event.get("error") or event)

    def _block_started(self, index: object, start: Json) -> None:
        block = self._blocks[index] = _Block(start)
        match start["type"]:
            case "text":
                self._text(start.get("text") or "")
                for citation in objects_of(start, "citations"):
                    self._cited(citation)
            case "thinking":
                self._reasoning(start.get("thinking") or "")
                block.signature = start.get("signature") or ""
            case "tool_use":
                block.call = self._open_call(index, start["id"], start["name"])

    def _delta_read(self, block: _Block, delta: Json) -> None:
        match delta["type"]:
            case "text_delta":
                block.pieces.append(delta["text"])
                self._text(delta["text"])
            case "thinking_delta":
                block.pieces.append(delta["thinking"])
                self._reasoning(delta["thinking"])
            case "input_json_delta":
                block.pieces.append(delta["partial_json"])
                if block.call is not None:
                    self._delta(block.call, delta["partial_json"])
            case "signature_delta":
                block.signature += delta["signature"]
            case "citations_delta":
                self._cited(delta["citation"])

    def _block_stopped(self, block: _Block) -> None:
        if block.call is not None:
            if block.start.get("input") and not block.call.pieces:
                self._delta(block.call, to_json(block.start["input"]))
            self._close_call(block.call)
        elif block.start["type"] == "thinking":
            self._end_reasoning({"signature": block.signature} if block.signature else None)
        elif block.start["type"] != "text":
            self._end_reasoning({"block": block.sent_back()})
        self._content.append(block)

    def _message_ended(self, delta: Json, usage: object) -> None:
        reason = delta.get("stop_reason")
        if reason is None:
            return
        self._counts |= {name: count for name, count in _counts(usage).items() if count is not None}
        self._usage += _usage(self._counts)
        self.is_paused = reason == "pause_turn"
        if reason == "refusal" and not self._has_text:
            self._text((delta.get("stop_details") or {}).get("explanation") or "")
        self._finish(OTHER_NAMES.get(reason, "other"), self._usage)

    def _cited(self, citation: Json) -> None:
        """Note the page or the document that a citation names. Documents without a title are numbered."""
        title = citation.get("title") or citation.get("document_title")
        if title is None and isinstance(index := citation.get("document_index"), int):
            title = f"Document {index + 1}"
        media_type = "application/pdf" if citation.get("type") == "page_location" else "text/plain"
        self._cite(citation.get("url") or citation.get("source"), title, media_type=media_type)


class AnthropicMessages(ApiProvider):
    """Claude. The options are those of `ApiOptions`.

    Everything before the conversation is cached, and so is the conversation up to its last message. Thinking is sent
    back within its turn, with its signature; `extra={"thinking": {"type": "adaptive", "display": "summarized"}}` shows
    it.
    """

    system = "anthropic"
    settings_prefix = "ANTHROPIC"
    url = "https://api.anthropic.com"
    path = "/v1/messages"
    key_header = ("x-api-key", "")
    limit_field = "max_tokens"
    effort_path = ("output_config", "effort")
    output_field = ("output_config", "format")
    takes_loose_schemas = False
    _reader = MessageReader

    def _address(self) -> str:
        url = urlsplit(super()._address())
        return url._replace(path=url.path.rstrip("/").removesuffix("/v1")).geturl()  # with and without it are common

    def _headers(self) -> Mapping[str, str]:
        return {"anthropic-version": "2023-06-01"}

    def _parameters(self, request: ModelRequest) -> Json:
        return {"max_tokens": DEFAULT_MAX_TOKENS, **super()._parameters(request)}

    def _body(
        self, request: ModelRequest, parameters: Json, conversation: Conversation, tool: AnswerTool | None
    ) -> Json:
        rules, parallel = self._rules(parameters["model"]), self.options.parallel_tool_calls
        config, choice = dict[str, Any](), dict[str, Any]()
        if request.output is not None:
            config["format"] = {"type": "json_schema", "schema": request.output.schema}
        if request.tools and parallel is not None:
            choice = {"type": "auto", "disable_parallel_tool_use": not parallel}
        if isinstance(chosen := parameters.get("tool_choice"), dict):
            choice = chosen
        if tool is not None:
            choice = choice | ({"type": "tool", "name": tool.name} if tool.is_only_tool else {"type": "any"})
        if choice.get("type") in {"any", "tool"} and (is_thinking(parameters) or not rules.forced_tool):
            choice = {name: value for name, value in choice.items() if name != "name"} | {"type": "auto"}
        config |= parameters.get("output_config", {})
        body = {
            **_cached_prefix(conversation, list(_tools(request.tools, rules))),
            "messages": list(_alternating(_messages(conversation.messages))),
            "cache_control": _CACHED,
            **({"metadata": {"user_id": _user_id(request.user_id)}} if request.user_id else {}),
            **parameters,
        }
        return body | ({"tool_choice": choice} if choice else {}) | ({"output_config": config} if config else {})


def _cached_prefix(conversation: Conversation, tools: list[Json]) -> Json:
    """Return tools and instructions, with a breakpoint of the cache before those that may change."""
    system: list[Json] = []
    if conversation.instructions.strip():
        system.append({"type": "text", "text": conversation.instructions, "cache_control": _CACHED})
    elif tools:
        tools[-1] = {**tools[-1], "cache_control": _CACHED}
    if conversation.changing:
        system.append({"type": "text", "text": conversation.changing})
    return {**({"tools": tools} if tools else {}), **({"system": system} if system else {})}


def _tools(tools: Sequence[ToolSpec], rules: ModelRules) -> Iterator[Json]:
    may_be_strict = rules.strict_tools and sum(tool.strict for tool in tools) <= MAX_STRICT_TOOLS
    for tool in tools:
        spec = {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        yield {**spec, "strict": True} if tool.strict and may_be_strict else spec


def _user_id(user_id: str) -> str:
    """Return an identifier that the API accepts."""
    return user_id if _USER_ID.fullmatch(user_id) else hashlib.sha256(user_id.encode("utf-8", "replace")).hexdigest()


def _alternating(messages: Iterator[Json]) -> Iterator[Json]:
    """Join messages of one role that follow each other. The results of tools stay first, as the API demands.

    Instructions come after all of the user's messages: an answer has to follow them.
    """
    last: Json | None = None
    instructions: list[Json] = []
    for message in messages:
        if message["role"] == "system":
            instructions.append(message)
        elif last is not None and last["role"] == message["role"]:
            last["content"] += message["content"]
        else:
            yield from [*([last] if last else []), *instructions]
            last = message
            instructions.clear()
    yield from [*([last] if last else []), *instructions]


def _messages(messages: Sequence[SentMessage]) -> Iterator[Json]:
    """Yield the messages. Those of an answer are one per step, each followed by the results of its tools."""
    for message in messages:
        if message.text.strip():
            mark = {"cache_control": _CACHED} if message.is_marked else {}
            yield {"role": message.role, "content": [{"type": "text", "text": message.text, **mark}]}
        for step in message.steps:
            content = [block for part in step if (block := _block(part, in_turn=message.in_turn))]
            if any(block["type"] in {"text", "tool_use"} for block in content):  # the API refuses thinking alone
                yield {"role": "assistant", "content": content}
            if results := [_result(part) for part in step if isinstance(part, ToolPart)]:
                yield {"role": "user", "content": results}


def _block(part: Part, *, in_turn: bool) -> Json | None:
    if isinstance(part, ToolPart):
        return {"type": "tool_use", "id": _id(part), "name": part.name, "input": part.input}
    if isinstance(part, TextPart) and part.text.strip():
        return {"type": "text", "text": part.text}
    if isinstance(part, ReasoningPart) and in_turn:
        data = part.provider_data or {}
        if "signature" in data:
            return {"type": "thinking", "thinking": part.text, "signature": data["signature"]}
        return data.get("block")
    return None


def _result(call: ToolPart) -> Json:
    result = {"type": "tool_result", "tool_use_id": _id(call), "content": call.output}
    return {**result, "is_error": True} if call.error is not None else result


def _id(call: ToolPart) -> str:
    """Return the id of a call in the characters that the API accepts: another model may have chosen it."""
    return _NOT_IN_IDS.sub("_", call.call_id) or "unknown"


def _counts(usage: object) -> Json:
    """Return the usage, or {} if the API sent something else: an answer must not fail for it."""
    return usage if isinstance(usage, dict) else {}


def _object(text: str) -> Json:
    """Return the arguments of a server's tool, or {} if they were cut off."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _usage(counts: Json) -> Usage:
    """Return the usage of a message. The API does not count cached tokens as input."""
    read, written = tokens_at(counts, "cache_read_input_tokens"), tokens_at(counts, "cache_creation_input_tokens")
    return Usage(
        input_tokens=tokens_at(counts, "input_tokens") + read + written,
        output_tokens=tokens_at(counts, "output_tokens"),
        cached_input_tokens=read,
        reasoning_tokens=tokens_at(counts, "output_tokens_details", "thinking_tokens"),
        cache_write_tokens=written,
    )
