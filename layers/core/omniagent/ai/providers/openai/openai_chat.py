"""OpenAI's Chat Completions API, which most compatible servers support."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NoReturn

from omniagent.ai.providers.api_errors import reported
from omniagent.ai.providers.llm_provider import ModelEvent, ModelReasoningDone, ModelRequest
from omniagent.ai.providers.model_rules import rules_of
from omniagent.ai.providers.openai.chat_dialect import ChatDialect
from omniagent.ai.providers.openai.openai_provider import CACHE_MARK, OpenAIProvider, function_of, schema_of
from omniagent.ai.providers.openai.think_tags import ThinkTags, ThinkTagsMode
from omniagent.ai.providers.sent_parts import (
    SentCall,
    SentPart,
    cached_questions,
    split_system,
    steps,
    to_json,
)
from omniagent.ai.providers.stream_reader import (
    Call,
    Json,
    ModelStreamReader,
    counts_of,
    new_call_id,
    objects_of,
    token_count,
)
from omniagent.errors import ConfigurationError
from omniagent.messages import ChatMessage, FinishReason, ReasoningPart, TextPart, ToolPart, Usage

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "model_length": "length",
    "content_filter": "content-filter",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
}


class OpenAIChat(OpenAIProvider):
    path: ClassVar[str] = "/chat/completions"
    output_field = ("response_format",)
    effort_path = ("reasoning_effort",)
    stream_fields: ClassVar[Json] = {"stream": True, "stream_options": {"include_usage": True}}

    def _body(self, request: ModelRequest) -> Json:
        model = self.model_for(request.overrides)
        dialect = ChatDialect(model, self.options.base_url or "")
        tools = [{"type": "function", "function": function_of(tool)} for tool in request.tools]
        is_marked = self._is_identified and rules_of(model).cache_marks
        messages = _messages(request, dialect, cached_questions(request.messages) if is_marked else ())
        body = {
            # A model with marks is OpenAI's own, which takes messages in any order.
            "messages": list(messages if is_marked else _alternating(messages)),
            **self._parameters(request, dialect.limit_field, tools),
        }
        if request.output is not None:
            body.setdefault("response_format", {"type": "json_schema", "json_schema": schema_of(request.output)})
        return self._fitted(self._with_callable_tools(body), dialect.limit_field)

    def _with_callable_tools(self, body: Json) -> Json:
        """Turn the reasoning off where the model takes tools on this API only without it."""
        chat_tools = rules_of(body["model"]).chat_tools
        if not body.get("tools") or chat_tools == "yes":
            return body
        if chat_tools == "no":
            raise ConfigurationError(f"{body['model']} calls tools only on the Responses API: set OPENAI_API=responses")
        return body if "reasoning" in body else {**body, "reasoning_effort": "none"}

    def _reader(self, model: str) -> ModelStreamReader:
        tags = self.options.think_tags
        return ThinkingReader(model, tags) if tags else ChatReader(model)

    def _forced_tool(self, name: str) -> Json:
        return {"type": "function", "function": {"name": name}}


def _messages(request: ModelRequest, dialect: ChatDialect, marked: Collection[int]) -> Iterator[Json]:
    if instructions := "\n\n".join(filter(None, split_system(request))):
        yield {"role": "system", "content": instructions}
    parts = (part for message in request.messages for part in message.parts)
    ids = dialect.sent_ids(part for part in parts if isinstance(part, ToolPart))
    for number, message in enumerate(request.messages):
        if message.role == "assistant":
            yield from _answer_messages(message, dialect, ids)
        elif message.role == "system":
            if number:
                yield {"role": "system", "content": message.text}
        elif message.text:
            content = [{"type": "text", "text": message.text, **CACHE_MARK}] if number in marked else message.text
            yield {"role": "user", "content": content}


def _alternating(messages: Iterable[Json]) -> Iterator[Json]:
    """Arrange messages as the strictest servers and templates demand: one user message at a time, none after a tool's.

    The model has not answered a tool's output if its turn was stopped or a message joined it there.
    """
    held_back: Json | None = None
    for message in messages:
        role = held_back["role"] if held_back else ""
        if held_back and role == message["role"] == "user":
            held_back["content"] += f"\n\n{message['content']}"
            continue
        if held_back:
            yield held_back
        if role == "tool" and message["role"] == "user":
            yield {"role": "assistant", "content": "I have read the results."}
        held_back = message
    if held_back:
        yield held_back


def _answer_messages(message: ChatMessage, dialect: ChatDialect, ids: Mapping[str, str]) -> Iterator[Json]:
    """Yield one message per step, each followed by the outputs of its tools. `ids` are from `ChatDialect.sent_ids`."""
    has_tools = any(isinstance(part, ToolPart) for part in message.parts)
    for step in steps(message):
        text = "".join(part.text for part in step if isinstance(part, TextPart))
        tools = [part for part in step if isinstance(part, SentCall)]
        returned = _returned(step, dialect) if has_tools else {}
        extras = returned.pop("extra_content", {})
        if tools:
            calls = [_call(part, ids) | extras.get(part.call_id, {}) for part in tools]
            yield {"role": "assistant", "content": text or None, "tool_calls": calls, **returned}
        elif text:
            yield {"role": "assistant", "content": text, **returned}
        for part in tools:
            sent_id = ids.get(part.call_id, part.call_id)
            yield {"role": "tool", "tool_call_id": sent_id, "content": part.output}


def _call(call: SentCall, ids: Mapping[str, str]) -> Json:
    function = {"name": call.name, "arguments": to_json(call.arguments)}
    return {"id": ids.get(call.call_id, call.call_id), "type": "function", "function": function}


def _returned(step: list[SentPart], dialect: ChatDialect) -> Json:
    """Return what the model requires back of its reasoning in later requests. No other model is sent it.

    DeepSeek and Kimi refuse a tool call without its `reasoning_content`, even an empty one; Gemini one without the
    signature in its `extra_content`, which OpenRouter sends in `reasoning_details`.
    """
    returned: Json = {}
    for part in step:
        if not isinstance(part, ReasoningPart) or (data := part.provider_data or {}).get("model") != dialect.model:
            continue
        if data.get("field") == "reasoning_content":
            returned["reasoning_content"] = returned.get("reasoning_content", "") + part.text
        if details := data.get("reasoning_details"):
            returned["reasoning_details"] = details
        if extra := data.get("extra_content"):
            returned.setdefault("extra_content", {})[data["call_id"]] = {"extra_content": extra}
    if dialect.needs_reasoning:
        returned["reasoning_content"] = returned.get("reasoning_content") or "."
    return returned


class ChatReader(ModelStreamReader):
    """Reads OpenAI's events, and the variants that compatible servers send."""

    def __init__(self, model: str = "") -> None:
        super().__init__(model)
        self._has_content = False
        self._reason: FinishReason | None = None
        self._usage = Usage()
        self._by_index: dict[Any, Call] = {}
        self._is_wanted_back = False
        self._has_reasoning = False
        self._details: list[Json] = []

    @property
    def has_ended(self) -> bool:
        return self._reason is not None or super().has_ended

    def end(self) -> list[ModelEvent]:
        """Finish without usage, which a server may leave out. A finish reason is required."""
        if self._reason and not self.finished:
            self._finish(self._reason, self._usage)
        if self._details and self._calls:
            self._add_hidden(reasoning_details=self._details)
        return super().end()

    def _read(self, event: Json) -> None:
        if event.get("error"):
            self._fail(event["error"])
        choices = event.get("choices") or ()
        for choice in choices:
            # A server that ignores `stream` sends the whole message.
            self._take((choice["delta"] if "delta" in choice else choice.get("message")) or {})
            if reason := choice.get("finish_reason"):
                if reason == "error":
                    self._fail(choice.get("error") or {})
                self._reason = _FINISH.get(reason, "other")
                self._close(self._reason)
        if event.get("usage"):
            self._usage = _usage(counts_of(event, "usage"))
            if self._reason and not choices:  # the usage comes last; with choices, it may come with each of them
                self._finish(self._reason, self._usage)

    def _note_done(self) -> None:
        """Take what is there for the answer if the server gave no finish reason: some proxies leave it out."""
        if self._reason is None and (self._has_content or self._calls) and all(map(_is_complete, self._calls)):
            self._reason = "stop"
            self._close(self._reason)

    def _fail(self, error: object) -> NoReturn:
        self._reason = None
        raise reported(error)

    def _take(self, delta: Json) -> None:
        thought = delta.get("reasoning_content")
        if isinstance(thought, str):
            self._is_wanted_back = True
        if thought := thought or delta.get("reasoning"):
            self._reasoning(thought)
        if isinstance(details := delta.get("reasoning_details"), list):
            self._add_details(detail for detail in details if isinstance(detail, dict))
        if content := delta.get("content"):
            self._has_content = True
            if isinstance(content, str):
                self._text(content)
            else:
                self._content_parts(content)
        if refusal := delta.get("refusal"):
            self._refusal(refusal)
        for annotation in objects_of(delta, "annotations"):
            cited = counts_of(annotation, "url_citation")
            self._cite(cited.get("url"), cited.get("title"))
        for piece in delta.get("tool_calls") or ():
            function = piece.get("function") or {}
            call = self._call_of(piece, function)
            if arguments := function.get("arguments"):
                self._arguments(call, arguments if isinstance(arguments, str) else to_json(arguments))
            if extra := piece.get("extra_content"):
                self._add_hidden(call_id=call.call_id, extra_content=extra)

    def _end_reasoning(self, provider_data: dict[str, Any] | None = None) -> None:
        if self._is_reasoning and self._is_wanted_back:
            self._has_reasoning = True
            provider_data = {"model": self._model, "field": "reasoning_content"}
        super()._end_reasoning(provider_data)

    def _add_hidden(self, **data: Any) -> None:
        """Add reasoning that is not shown, but that the model requires back."""
        self._add(ModelReasoningDone({"model": self._model, **data}))

    def _add_details(self, details: Iterable[Json]) -> None:
        """Collect the details of the reasoning. The pieces of one text have the same type and index."""
        for detail in details:
            last = self._details[-1] if self._details else {}
            text, more = last.get("text"), detail.get("text")
            is_next = all(last.get(name) == detail.get(name) for name in ("type", "index"))
            if is_next and isinstance(text, str) and isinstance(more, str):
                last.update({name: value for name, value in detail.items() if value is not None}, text=text + more)
            else:
                self._details.append(dict(detail))

    def _content_parts(self, content: Any) -> None:
        """Read content as a list of typed parts: some servers send text and thinking this way."""
        for part in content if isinstance(content, list) else [content]:
            if isinstance(part, str):
                self._text(part)
            elif thought := part.get("thinking"):
                self._reasoning(thought if isinstance(thought, str) else "".join(piece["text"] for piece in thought))
            elif text := part.get("text"):
                self._text(text)

    def _call_of(self, piece: Json, function: Json) -> Call:
        """Find the call that a piece belongs to, or open one. Without an index the piece belongs to the last call."""
        index, call_id = piece.get("index"), piece.get("id")
        name: Any = function.get("name")
        call = self._by_index.get(index) if index is not None else next(reversed(self._calls), None)
        if call and not (name and _is_another(call, piece, function)):
            return call
        for earlier in self._calls:
            if _is_complete(earlier):
                self._close_call(earlier)
        if self._is_wanted_back and not self._has_reasoning:
            self._is_reasoning = True  # empty, and required back all the same
        call = self._open_call(call_id or new_call_id(), name)
        self._by_index[index] = call
        return call


class ThinkingReader(ChatReader):
    """Reads a server that sends the reasoning as text in `<think>` tags."""

    def __init__(self, model: str, tags: ThinkTagsMode) -> None:
        super().__init__(model)
        self._tags = ThinkTags(tags)

    def _text(self, text: str) -> None:
        self._add_pieces(self._tags.feed(text))

    def _open_call(self, call_id: str, name: str) -> Call:
        self._add_pieces(self._tags.flush())
        return super()._open_call(call_id, name)

    def _close(self, reason: FinishReason) -> None:
        self._add_pieces(self._tags.flush())
        super()._close(reason)

    def _add_pieces(self, pieces: Iterable[tuple[bool, str]]) -> None:
        for is_reasoning, piece in pieces:
            (self._reasoning if is_reasoning else super()._text)(piece)


def _is_another(call: Call, piece: Json, function: Json) -> bool:
    """Whether a piece with a name opens another call: a server may repeat the name, the id or the index of a call.

    Without an id, another call has another name, or comes after the arguments of this one are complete.
    """
    if piece.get("id"):
        return bool(piece["id"] != call.sent_id)
    is_new = piece.get("index") is None or bool(function.get("arguments"))
    return bool(function["name"] != call.name) or (is_new and _is_complete(call))


def _is_complete(call: Call) -> bool:
    """Whether the arguments are valid JSON: nothing can be added to a closed object."""
    try:
        json.loads("".join(call.pieces))
    except ValueError:
        return False
    return True


def _usage(usage: Json) -> Usage:
    return Usage(
        input_tokens=token_count(usage.get("prompt_tokens")),
        output_tokens=token_count(usage.get("completion_tokens")),
        cached_input_tokens=token_count(counts_of(usage, "prompt_tokens_details").get("cached_tokens")),
        reasoning_tokens=token_count(counts_of(usage, "completion_tokens_details").get("reasoning_tokens")),
    )
