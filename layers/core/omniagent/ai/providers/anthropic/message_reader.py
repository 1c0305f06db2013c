"""Reads the events of Anthropic's Messages API."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from omniagent.ai.providers.api_errors import reported
from omniagent.ai.providers.sent_parts import to_json
from omniagent.ai.providers.stream_reader import Call, Json, ModelStreamReader, counts_of, objects_of, token_count
from omniagent.errors import ModelStreamBroken
from omniagent.messages import FinishReason, Usage

MAX_PAUSES: Final = 10
"""How often an answer may pause to be continued."""
_FINISH: Final[dict[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool-calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content-filter",
}


@dataclass(slots=True)
class _Block:
    """A block of the answer that is being read: what it began with, and the pieces that followed."""

    start: Json
    call: Call | None = None
    pieces: list[str] = field(default_factory=list)
    signature: str = ""

    @property
    def kind(self) -> str:
        return str(self.start["type"])

    def sent_back(self) -> Json:
        """Return the block as the API expects it back."""
        text = "".join(self.pieces)
        if self.kind == "text":
            return {"type": "text", "text": text}
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": text, "signature": self.signature}
        return {**self.start, "input": _object(text)} if text else self.start


class MessageReader(ModelStreamReader):
    """Reads one answer, also over the requests that continue it after a pause.

    Blocks of an unknown kind, such as a server tool's, are not shown; within the turn they are sent back unchanged.
    """

    def __init__(self, model: str = "") -> None:
        super().__init__(model)
        self._blocks: dict[Any, _Block] = {}
        self._content: list[_Block] = []
        self._counts: Json = {}
        self._usage = Usage()
        self._pauses = 0
        self._is_paused = False
        self._has_text = False

    def continuation(self, body: Json) -> Json | None:
        if not self._is_paused:
            return None
        if self._pauses == MAX_PAUSES:
            raise ModelStreamBroken(f"the model's answer paused more than {MAX_PAUSES} times")
        self._pauses += 1
        self._is_paused, self.finished = False, None
        content = [block.sent_back() for block in self._content]
        self._content.clear()
        *before, last = body["messages"]
        if last["role"] == "assistant":
            return {**body, "messages": [*before, {**last, "content": [*last["content"], *content]}]}
        return {**body, "messages": [*before, last, {"role": "assistant", "content": content}]}

    def _read(self, event: Json) -> None:
        if handle := _HANDLERS.get(event["type"] if "type" in event or "error" not in event else "error"):
            handle(self, event)

    def message_started(self, event: Json) -> None:
        self._counts = counts_of(event["message"], "usage")
        self._blocks = {}

    def whole_message(self, event: Json) -> None:
        """Read the answer of a server that ignores `stream`."""
        self.message_started({"message": event})
        for index, block in enumerate(event["content"]):
            self.block_started({"index": index, "content_block": block})
            self.block_stopped({"index": index})
        self.message_ended({"delta": event, "usage": event.get("usage")})

    def block_started(self, event: Json) -> None:
        start: Json = event["content_block"]
        block = self._blocks[event["index"]] = _Block(start)
        match start["type"]:
            case "text":
                self._add_text(block, start.get("text") or "")
                for citation in objects_of(start, "citations"):
                    self._add_citation(citation)
            case "thinking":
                self._add_thinking(block, start.get("thinking") or "")
                block.signature = start.get("signature") or ""
            case "tool_use":
                block.call = self._open_call(start["id"], start["name"])

    def block_delta(self, event: Json) -> None:
        block, delta = self._blocks[event["index"]], event["delta"]
        match delta["type"]:
            case "text_delta":
                self._add_text(block, delta["text"])
            case "thinking_delta":
                self._add_thinking(block, delta["thinking"])
            case "input_json_delta":
                block.pieces.append(delta["partial_json"])
                if block.call is not None:
                    self._arguments(block.call, delta["partial_json"])
            case "signature_delta":
                block.signature += delta["signature"]
            case "citations_delta":
                self._add_citation(delta["citation"])

    def block_stopped(self, event: Json) -> None:
        block = self._blocks[event["index"]]
        if block.call is not None:
            if block.start.get("input") and not block.call.pieces:
                self._arguments(block.call, to_json(block.start["input"]))
            self._close_call(block.call)
        elif block.kind == "thinking":
            self._end_reasoning({"signature": block.signature} if block.signature else None)
        elif block.kind != "text":
            self._end_reasoning({"block": block.sent_back()})
        self._content.append(block)

    def message_ended(self, event: Json) -> None:
        delta = event["delta"]
        reason = delta.get("stop_reason")
        if reason is None:
            return
        self._counts |= {name: count for name, count in counts_of(event, "usage").items() if count is not None}
        self._usage += _usage(self._counts)
        self._is_paused = reason == "pause_turn"
        if reason == "refusal" and not self._has_text:
            self._text((delta.get("stop_details") or {}).get("explanation") or "")
        self._finish(_FINISH.get(reason, "other"), self._usage)

    def failed(self, event: Json) -> None:
        raise reported(event.get("error") or event)

    def _add_text(self, block: _Block, text: str) -> None:
        if text:
            self._has_text = True
            block.pieces.append(text)
            self._text(text)

    def _add_citation(self, citation: Json) -> None:
        """Note the page or the document that a citation names. Documents without a title are numbered."""
        title = citation.get("title") or citation.get("document_title")
        if title is None and isinstance(index := citation.get("document_index"), int):
            title = f"Document {index + 1}"
        media_type = "application/pdf" if citation.get("type") == "page_location" else "text/plain"
        self._cite(citation.get("url") or citation.get("source"), title, media_type=media_type)

    def _add_thinking(self, block: _Block, text: str) -> None:
        if text:
            block.pieces.append(text)
            self._reasoning(text)


_HANDLERS: Final[dict[str, Callable[[MessageReader, Json], None]]] = {
    "message_start": MessageReader.message_started,
    "content_block_start": MessageReader.block_started,
    "content_block_delta": MessageReader.block_delta,
    "content_block_stop": MessageReader.block_stopped,
    "message_delta": MessageReader.message_ended,
    "message": MessageReader.whole_message,
    "error": MessageReader.failed,
}


def _object(text: str) -> Json:
    """Return the arguments of a server's tool, or {} if they were cut off."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _usage(counts: Json) -> Usage:
    """Return the usage of a message. The API does not count cached tokens as input."""
    read = token_count(counts.get("cache_read_input_tokens"))
    written = token_count(counts.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=token_count(counts.get("input_tokens")) + read + written,
        output_tokens=token_count(counts.get("output_tokens")),
        cached_input_tokens=read,
        reasoning_tokens=token_count(counts_of(counts, "output_tokens_details").get("thinking_tokens")),
        cache_write_tokens=written,
    )
