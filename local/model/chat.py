"""The wire format of the Chat Completions API."""

import time
import uuid

from local.model import tokens
from local.model.answer import Answer, Usage
from local.model.conversation import Json
from local.model.errors import planned
from local.model.frames import HOLE, Frame, Reply, around_hole, encode, event, half, text_json

_DONE = Frame(b"data: [DONE]\n\n")


def build(request: Json, answer: Answer, usage: Usage) -> Reply:
    """Write an answer down as a completion and as its chunks."""
    ids = [f"call_{uuid.uuid4().hex}" for _ in answer.calls]
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": request["model"]}
    failed = answer.finish == "failed"
    body = planned(500).body if failed else _completion(head, answer, ids, usage)
    chunks = _Chunks(head, with_usage=bool((request.get("stream_options") or {}).get("include_usage")))
    frames = chunks.frames(answer, ids, usage)
    if failed:
        frames = [*half(frames), Frame(event(planned(500).body))]
    return Reply(encode(body), frames)


def _completion(head: Json, answer: Answer, ids: list[str], usage: Usage) -> Json:
    message: Json = {
        "role": "assistant",
        "content": answer.text if answer.text or not (answer.calls or answer.refusal) else None,
        "refusal": answer.refusal or None,
    }
    if answer.sources:
        message["annotations"] = _annotations(answer)
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call_id, call in zip(ids, answer.calls, strict=True)
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": _usage(usage)}


class _Chunks:
    """The chunks of one completion."""

    def __init__(self, head: Json, *, with_usage: bool) -> None:
        self._head = {**head, "object": "chat.completion.chunk"}
        self._usage: Json = {"usage": None} if with_usage else {}

    def frames(self, answer: Answer, ids: list[str], usage: Usage) -> list[Frame]:
        start = {"role": "assistant", "content": None if answer.calls and not answer.text else ""}
        frames = [Frame(self._chunk({**start, "refusal": None}))]
        frames += self._deltas({"reasoning_content": HOLE}, answer.reasoning)
        frames += self._deltas({"content": HOLE}, answer.text)
        frames += self._deltas({"refusal": HOLE}, answer.refusal)
        if answer.sources:
            frames.append(Frame(self._chunk({"annotations": _annotations(answer)})))
        for index, (call_id, call) in enumerate(zip(ids, answer.calls, strict=True)):
            opened = {"name": call.name, "arguments": ""}
            first = {"index": index, "id": call_id, "type": "function", "function": opened}
            frames.append(Frame(self._chunk({"tool_calls": [first]})))
            rest = {"tool_calls": [{"index": index, "function": {"arguments": HOLE}}]}
            frames += self._deltas(rest, call.arguments)
        frames.append(Frame(self._chunk({}, finish=answer.finish)))
        if self._usage:
            frames.append(Frame(event({**self._head, "choices": [], "usage": _usage(usage)})))
        return [*frames, _DONE]

    def _chunk(self, delta: Json, finish: str | None = None) -> bytes:
        return event(self._data(delta, finish))

    def _data(self, delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head, "choices": [choice], **self._usage}

    def _deltas(self, delta: Json, text: str) -> list[Frame]:
        before, after = around_hole(self._data(delta))
        pieces = tokens.split(text)
        return [Frame(f"{before}{text_json(piece)}{after}".encode(), paced=True) for piece in pieces]


def _annotations(answer: Answer) -> list[Json]:
    end = len(answer.text)
    return [
        {"type": "url_citation", "url_citation": {"url": url, "title": title, "start_index": 0, "end_index": end}}
        for url, title in answer.sources
    ]


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.input_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens": usage.output_tokens,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
