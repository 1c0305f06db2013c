"""The wire format of the Responses API."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from local.model import tokens
from local.model.answer import Answer, Usage
from local.model.conversation import Call, Json
from local.model.frames import Frame, Reply, encode, event, half, opened, text_json

ERROR = {"code": "server_error", "message": "The model failed to generate a response."}
_ECHOED = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_p": 1.0,
    "truncation": "disabled",
}
_STATUS = {"stop": "completed", "tool_calls": "completed", "length": "incomplete", "failed": "failed"}


def build(request: Json, answer: Answer, usage: Usage) -> Reply:
    """Write an answer down as a response and as its events."""
    stream = _Stream(request, answer, usage)
    frames = stream.frames()
    return Reply(encode(stream.final()), frames)


class _Stream:
    """The events of one response, numbered in the order they are made."""

    def __init__(self, request: Json, answer: Answer, usage: Usage) -> None:
        self._answer = answer
        self._usage = usage
        self._frames: list[Frame] = []
        self._output: list[Json] = []
        self._base: Json = {
            "id": _new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": request["model"],
            "tools": [_tool(tool) for tool in request.get("tools") or []],
            **{name: request.get(name, default) for name, default in _ECHOED.items()},
        }
        self._sealed = "reasoning.encrypted_content" in (request.get("include") or [])

    def frames(self) -> list[Frame]:
        answer = self._answer
        self._emit("response.created", response=self._snapshot("in_progress"))
        self._emit("response.in_progress", response=self._snapshot("in_progress"))
        if answer.reasoning:
            self._reason(answer.reasoning)
        if answer.text or answer.refusal:
            self._say("output_text" if answer.text else "refusal", answer.text or answer.refusal)
        for call in answer.calls:
            self._call(call)
        if answer.finish == "failed":
            self._frames = list(half(self._frames))
            self._output = []
        self._emit(f"response.{_STATUS[answer.finish]}", response=self.final())
        return self._frames

    def final(self) -> Json:
        """The response as it stands at the end."""
        status = _STATUS[self._answer.finish]
        return self._snapshot(status) | {
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": ERROR if status == "failed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": self._output,
            "usage": None if status == "failed" else _usage(self._usage),
        }

    def _snapshot(self, status: str) -> Json:
        empty: Json = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        return {**self._base, "status": status, **empty}

    @property
    def _item_status(self) -> str:
        return "incomplete" if self._answer.finish == "length" else "completed"

    def _reason(self, text: str) -> None:
        item: Json = {"id": _new_id("rs"), "type": "reasoning", "summary": []}
        if self._sealed:
            item["encrypted_content"] = f"sealed-{uuid.uuid4().hex}"
        place = {"item_id": item["id"], "output_index": len(self._output)}
        at = {**place, "summary_index": 0}
        part = {"type": "summary_text", "text": text}
        self._emit("response.output_item.added", output_index=len(self._output), item=item)
        self._emit("response.reasoning_summary_part.added", **at, part={**part, "text": ""})
        self._deltas("response.reasoning_summary_text.delta", text, **at)
        self._emit("response.reasoning_summary_text.done", **at, text=text)
        self._emit("response.reasoning_summary_part.done", **at, part=part)
        self._finish_item({**item, "summary": [part]})

    def _say(self, kind: str, text: str) -> None:
        """A message with one part: text, or a refusal."""
        item: Json = {"id": _new_id("msg"), "type": "message", "role": "assistant"}
        at = {"item_id": item["id"], "output_index": len(self._output), "content_index": 0}
        extra: Json = {"logprobs": []} if kind == "output_text" else {}
        started = {**item, "status": "in_progress", "content": []}
        self._emit("response.output_item.added", output_index=len(self._output), item=started)
        self._emit("response.content_part.added", **at, part=_part(kind, ""))
        self._deltas(f"response.{kind}.delta", text, **at, **extra)
        cited = [_citation(*source, len(text)) for source in self._answer.sources]
        for index, annotation in enumerate(cited):
            self._emit("response.output_text.annotation.added", **at, annotation_index=index, annotation=annotation)
        self._emit(f"response.{kind}.done", **at, **extra, **{_field(kind): text})
        self._emit("response.content_part.done", **at, part=_part(kind, text, cited))
        self._finish_item({**item, "status": self._item_status, "content": [_part(kind, text, cited)]})

    def _call(self, call: Call) -> None:
        item = {"id": _new_id("fc"), "type": "function_call", "call_id": _new_id("call"), "name": call.name}
        at = {"item_id": item["id"], "output_index": len(self._output)}
        started = {**item, "status": "in_progress", "arguments": ""}
        self._emit("response.output_item.added", output_index=len(self._output), item=started)
        self._deltas("response.function_call_arguments.delta", call.arguments, **at)
        self._emit("response.function_call_arguments.done", **at, arguments=call.arguments)
        self._finish_item({**item, "status": self._item_status, "arguments": call.arguments})

    def _finish_item(self, item: Json) -> None:
        self._emit("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)

    def _emit(self, kind: str, **fields: Any) -> None:
        data = {"type": kind, "sequence_number": len(self._frames), **fields}
        self._frames.append(Frame(event(data, kind)))

    def _deltas(self, kind: str, text: str, **fields: Any) -> None:
        start = opened({"type": kind, **fields}, kind)
        for number, piece in enumerate(tokens.split(text), len(self._frames)):
            data = f'{start},"delta":{text_json(piece)},"sequence_number":{number}}}\n\n'
            self._frames.append(Frame(data.encode(), paced=True))


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _field(kind: str) -> str:
    return "text" if kind == "output_text" else "refusal"


def _citation(url: str, title: str, end: int) -> Json:
    return {"type": "url_citation", "url": url, "title": title, "start_index": 0, "end_index": end}


def _part(kind: str, text: str, annotations: Sequence[Json] = ()) -> Json:
    extra: Json = {"annotations": list(annotations), "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, _field(kind): text, **extra}


def _tool(tool: Json) -> Json:
    return {"parameters": None, "strict": None, **tool}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
