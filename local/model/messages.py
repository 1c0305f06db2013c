"""The wire format of Anthropic's Messages API."""

import json
import uuid
from typing import Any

from local.model import tokens
from local.model.answer import Answer, Usage
from local.model.conversation import Json
from local.model.errors import ApiError, planned
from local.model.frames import HOLE, Frame, Reply, around_hole, encode, event, half, text_json

_STOP = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "failed": None}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}
SIGNATURE = "signed-"


def build(request: Json, answer: Answer, usage: Usage) -> Reply:
    """Write an answer down as a message and as its events."""
    message = {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "usage": _usage(usage) | {"output_tokens": 1},
    }
    blocks = _blocks(answer)
    ending = {
        "stop_reason": "refusal" if answer.refusal else _STOP[answer.finish],
        "stop_sequence": None,
        "stop_details": {"type": "refusal", "category": None, "explanation": None} if answer.refusal else None,
    }
    frames = [_frame("message_start", message=message), _frame("ping")]
    for index, block in enumerate(blocks):
        frames += _block_frames(index, block)
    if answer.finish == "failed":
        error = event(error_body(ApiError("Overloaded", status=529)), "error")
        return Reply(encode(error_body(planned(500))), [*half(frames), Frame(error)])
    frames += [_frame("message_delta", delta=ending, usage=_usage(usage)), _frame("message_stop")]
    content = [_whole(block) for block in blocks]
    return Reply(encode({**message, **ending, "content": content, "usage": _usage(usage)}), frames)


def error_body(error: ApiError) -> Json:
    """The error as Anthropic words it: only its text names the field."""
    message, param = error.body["error"]["message"], error.body["error"]["param"]
    text = message if param is None else f"{param}: {message}"
    return {"type": "error", "error": {"type": _ERRORS.get(error.status, "api_error"), "message": text}}


def _blocks(answer: Answer) -> list[Json]:
    blocks: list[Json] = []
    if answer.reasoning:
        signature = f"{SIGNATURE}{uuid.uuid4().hex}"
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": signature})
    if text := answer.text or answer.refusal:
        cited = {"citations": [_citation(*source) for source in answer.sources]} if answer.sources else {}
        blocks.append({"type": "text", "text": text, **cited})
    calls = [
        {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex}", "name": call.name, "input": call.arguments}
        for call in answer.calls
    ]
    return [*blocks, *calls]


def _citation(url: str, title: str) -> Json:
    place = {"type": "web_search_result_location", "url": url, "title": title or None}
    return {**place, "cited_text": "", "encrypted_index": ""}


def _whole(block: Json) -> Json:
    if block["type"] != "tool_use":
        return block
    try:
        return {**block, "input": json.loads(block["input"])}
    except ValueError:
        return {**block, "input": {}}


def _block_frames(index: int, block: Json) -> list[Frame]:
    match block["type"]:
        case "thinking":
            start, kind, field = {**block, "thinking": "", "signature": ""}, "thinking_delta", "thinking"
        case "text":
            start, kind, field = {"type": "text", "text": ""}, "text_delta", "text"
        case _:
            start, kind, field = {**block, "input": {}}, "input_json_delta", "partial_json"
    text = block["input" if field == "partial_json" else field]
    before, after = around_hole(_delta(index, {"type": kind, field: HOLE}), "content_block_delta")
    frames = [Frame(f"{before}{text_json(piece)}{after}".encode(), paced=True) for piece in tokens.split(text)]
    if kind == "thinking_delta":
        signed = _delta(index, {"type": "signature_delta", "signature": block["signature"]})
        frames.append(Frame(event(signed, "content_block_delta")))
    for citation in block.get("citations", ()):
        cited = _delta(index, {"type": "citations_delta", "citation": citation})
        frames.append(Frame(event(cited, "content_block_delta")))
    stop = _frame("content_block_stop", index=index)
    return [_frame("content_block_start", index=index, content_block=start), *frames, stop]


def _delta(index: int, delta: Json) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _frame(kind: str, **fields: Any) -> Frame:
    return Frame(event({"type": kind, **fields}, kind))


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
