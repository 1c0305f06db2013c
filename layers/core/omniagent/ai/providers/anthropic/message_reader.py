"""Reads the events of Anthropic's Messages API."""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from omniagent.ai.providers.api_errors import reported
from omniagent.ai.providers.llm_provider import OTHER_NAMES, Json
from omniagent.ai.providers.sent_parts import to_json
from omniagent.ai.providers.stream_reader import Call, ModelStreamReader, objects_of, tokens_at
from omniagent.errors import ModelStreamBroken
from omniagent.messages import Usage

MAX_PAUSES: Final = 10
"""How often an answer may pause to be continued."""


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
