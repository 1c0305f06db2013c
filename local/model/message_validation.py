"""What Anthropic's Messages API refuses, refused here too, in its words."""

import re
from typing import Any

from local.model.errors import ApiError, Json
from local.model.messages import SIGNATURE
from local.model.sent_files import check_claude_block

_FIELDS = frozenset(
    {
        *("model", "max_tokens", "messages", "system", "tools", "tool_choice", "thinking", "output_config"),
        *("cache_control", "stop_sequences", "stream", "metadata", "service_tier", "container"),
        *("temperature", "top_p", "top_k"),
    }
)
_BLOCKS = {
    "user": frozenset({"text", "image", "document", "search_result", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use"}),
    "system": frozenset({"text"}),
}
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_USER_ID = re.compile(r"[\w.@-]{1,256}", re.ASCII)
_NO_SAMPLING = re.compile(r"(?:.*\.)?claude-(?:\w+-5|opus-4-[78])")
_NO_LATE_SYSTEM = re.compile(r"(?:.*\.)?claude-(?:haiku|sonnet|opus)-4-[1-7]")
_SAMPLING = ("temperature", "top_p", "top_k")
_MAX_BREAKPOINTS = 4


def check_messages(body: Json) -> None:
    """Raise the error that `POST /v1/messages` would answer with."""
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            raise ApiError("Field required", param=name)
    for name in body:
        if name not in _FIELDS:
            raise ApiError("Extra inputs are not permitted", param=name)
    if _NO_SAMPLING.match(body["model"]) and (refused := [name for name in _SAMPLING if name in body]):
        raise ApiError(f"`{refused[0]}` is deprecated for this model.")
    if not _USER_ID.fullmatch((body.get("metadata") or {}).get("user_id", "none")):
        raise ApiError("Request metadata contains a value that violates the regular expression", param="metadata")
    for index, tool in enumerate(body.get("tools") or []):
        _check_tool(index, tool)
    _check_conversation(body["messages"])
    _check_system_messages(body["model"], [message["role"] for message in body["messages"]])
    if _breakpoints(body) > _MAX_BREAKPOINTS:
        raise ApiError(f"A maximum of {_MAX_BREAKPOINTS} blocks with cache_control may be provided.")


def _check_tool(index: int, tool: Json) -> None:
    if not _TOOL_NAME.fullmatch(tool.get("name") or ""):
        raise ApiError("String should match pattern '^[a-zA-Z0-9_-]{1,128}$'", param=f"tools.{index}.custom.name")
    if (tool.get("input_schema") or {}).get("type") != "object":
        raise ApiError("Input should be 'object'", param=f"tools.{index}.custom.input_schema.type")


def _check_conversation(messages: list[Json]) -> None:
    if not messages:
        raise ApiError("at least one message is required", param="messages")
    if messages[0]["role"] != "user":
        raise ApiError("first message must use the user role", param="messages")
    waiting: list[str] = []
    for index, message in enumerate(messages):
        content: Any = message["content"]
        blocks: list[Json] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        _check_blocks(index, message["role"], blocks)
        _check_results(index, blocks, waiting)
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
    if waiting:
        raise _unanswered(len(messages) - 1, waiting)


def _check_system_messages(model: str, roles: list[str]) -> None:
    if "system" in roles and _NO_LATE_SYSTEM.match(model):
        raise ApiError("role 'system' is not supported on this model")
    for before, role, after in zip(["", *roles], roles, [*roles[1:], "assistant"], strict=False):
        if role == "system" and (before != "user" or after != "assistant"):
            raise ApiError("a system message must follow a user message, and an answer must follow it")


def _check_blocks(index: int, role: str, blocks: list[Json]) -> None:
    if not blocks:
        raise ApiError("all messages must have non-empty content", param=f"messages.{index}")
    for number, block in enumerate(blocks):
        param = f"messages.{index}.content.{number}"
        if block["type"] not in _BLOCKS[role]:
            raise ApiError(f"Input tag '{block['type']}' does not match any of the expected tags", param=param)
        check_claude_block(block, param)
        if block["type"] == "text" and not block["text"].strip():
            raise ApiError("text content blocks must contain non-whitespace text", param="messages")
        if block["type"] == "thinking" and not block["signature"].startswith(SIGNATURE):
            raise ApiError("Invalid `signature` in `thinking` block", param=param)
        if block["type"] == "tool_use" and not (_ID.fullmatch(block["id"]) and isinstance(block["input"], dict)):
            raise ApiError("Input should be a valid dictionary", param=f"{param}.tool_use.input")


def _check_results(index: int, blocks: list[Json], waiting: list[str]) -> None:
    """The results of all calls come first in the next message."""
    given = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    if unknown := [call_id for call_id in given if call_id not in waiting]:
        error = f"unexpected `tool_use_id` found in `tool_result` blocks: {unknown[0]}"
        raise ApiError(error, param=f"messages.{index}.content")
    if missing := [call_id for call_id in waiting if call_id not in given]:
        raise _unanswered(index - 1, missing)
    if any(block["type"] != "tool_result" for block in blocks[: len(given)]):
        raise ApiError("`tool_result` blocks must come first", param=f"messages.{index}.content")


def _unanswered(index: int, call_ids: list[str]) -> ApiError:
    error = f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(call_ids)}"
    return ApiError(error, param=f"messages.{index}")


def _breakpoints(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_breakpoints, value))
    if not isinstance(value, dict):
        return 0
    return ("cache_control" in value) + sum(map(_breakpoints, value.values()))
