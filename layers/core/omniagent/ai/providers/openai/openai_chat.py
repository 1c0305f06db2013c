"""OpenAI's Chat Completions API, which most compatible servers support."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from omniagent.ai.providers.answer_reader import AnswerReader, Call, Json, counts_of, new_call_id, token_count
from omniagent.ai.providers.llm_provider import ModelEvent, ModelRequest, OutputFormat, ToolSpec
from omniagent.ai.providers.openai.openai_client import reported
from omniagent.ai.providers.openai.openai_provider import (
    OpenAIProvider,
    steps,
    to_json,
    tool_arguments,
    tool_name,
    tool_output,
)
from omniagent.messages import ChatMessage, FinishReason, TextPart, ToolPart, Usage

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content-filter",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
}


class OpenAIChat(OpenAIProvider):
    path: ClassVar[str] = "/chat/completions"
    max_tokens_field: ClassVar[str] = "max_completion_tokens"
    stream_fields: ClassVar[Json] = {"stream": True, "stream_options": {"include_usage": True}}

    def _body(self, request: ModelRequest) -> Json:
        return {
            "messages": list(_alternating(_messages(request))),
            **self._tool_parameters([_tool(tool) for tool in request.tools]),
            **_response_format(request.output),
            **self._parameters(request),
        }

    def _reader(self) -> AnswerReader:
        return ChatReader()


def _tool(tool: ToolSpec) -> Json:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    return {"type": "function", "function": function}


def _response_format(output: OutputFormat | None) -> Json:
    if output is None:
        return {}
    schema = {"name": output.name, "schema": output.schema, "strict": output.strict}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _messages(request: ModelRequest) -> Iterator[Json]:
    if request.instructions:
        yield {"role": "system", "content": request.instructions}
    for message in request.messages:
        if message.role == "assistant":
            yield from _answer_messages(message)
        elif message.text:
            yield {"role": "user", "content": message.text}


def _alternating(messages: Iterable[Json]) -> Iterator[Json]:
    """Join consecutive user messages: the templates of many open models refuse two in a row."""
    waiting: Json | None = None
    for message in messages:
        if waiting and waiting["role"] == message["role"] == "user":
            waiting["content"] += f"\n\n{message['content']}"
            continue
        if waiting:
            yield waiting
        waiting = message
    if waiting:
        yield waiting


def _answer_messages(message: ChatMessage) -> Iterator[Json]:
    """Yield one message per step, each followed by the outputs of its tools. Reasoning is not sent back."""
    for step in steps(message):
        text = "".join(part.text for part in step if isinstance(part, TextPart))
        tools = [part for part in step if isinstance(part, ToolPart)]
        if tools:
            yield {"role": "assistant", "content": text or None, "tool_calls": [_call(part) for part in tools]}
        elif text:
            yield {"role": "assistant", "content": text}
        for part in tools:
            yield {"role": "tool", "tool_call_id": part.call_id, "content": tool_output(part)}


def _call(part: ToolPart) -> Json:
    function = {"name": tool_name(part), "arguments": tool_arguments(part)}
    return {"id": part.call_id, "type": "function", "function": function}


class ChatReader(AnswerReader):
    """Reads OpenAI's events, and the variants that compatible servers send."""

    def __init__(self) -> None:
        super().__init__()
        self._reason: FinishReason | None = None
        self._usage = Usage()
        self._by_index: dict[Any, Call] = {}

    def end(self) -> list[ModelEvent]:
        """Finish without usage, which a server may leave out. A finish reason is required."""
        if self._reason and not self.finished:
            self._finish(self._reason, self._usage)
        return super().end()

    def _read(self, event: Json) -> None:
        if event.get("error"):
            raise reported(event["error"])
        for choice in event.get("choices") or ():
            self._take(choice.get("delta") or {})
            if reason := choice.get("finish_reason"):
                self._reason = _FINISH.get(reason, "other")
                self._close()
        if event.get("usage"):
            self._usage = _usage(counts_of(event, "usage"))
            if self._reason:  # the usage comes last
                self._finish(self._reason, self._usage)

    def _take(self, delta: Json) -> None:
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            self._reasoning(thought)
        if content := delta.get("content"):
            if isinstance(content, str):
                self._text(content)
            else:
                self._content_parts(content)
        if refusal := delta.get("refusal"):
            self._refusal(refusal)
        for piece in delta.get("tool_calls") or ():
            function = piece.get("function") or {}
            call = self._call_of(piece, function.get("name"))
            if arguments := function.get("arguments"):
                self._arguments(call, arguments if isinstance(arguments, str) else to_json(arguments))

    def _content_parts(self, content: Any) -> None:
        """Read content as a list of typed parts: some servers send text and thinking this way."""
        for part in content if isinstance(content, list) else [content]:
            if isinstance(part, str):
                self._text(part)
            elif thought := part.get("thinking"):
                self._reasoning(thought if isinstance(thought, str) else "".join(piece["text"] for piece in thought))
            elif text := part.get("text"):
                self._text(text)

    def _call_of(self, piece: Json, name: Any) -> Call:
        """Find the call that a piece belongs to, or open one.

        A name opens a call, unless the server repeats it with the same id. Without an index the piece belongs
        to the last call; without an id as well, a name opens another call once the last one is complete.
        """
        index, call_id = piece.get("index"), piece.get("id")
        call = self._by_index.get(index) if index is not None else next(reversed(self._calls), None)
        is_other = call and name and (call_id != call.sent_id if call_id else index is None and _is_complete(call))
        if call and not is_other:
            return call
        for earlier in self._calls:
            if _is_complete(earlier):
                self._close_call(earlier)
        call = self._open_call(call_id or new_call_id(), name)
        self._by_index[index] = call
        return call


def _is_complete(call: Call) -> bool:
    """Whether the arguments are valid JSON: nothing can be added to a closed object."""
    try:
        json.loads(call.arguments)
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
