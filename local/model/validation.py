"""What the real API refuses, refused here too: a request that passes the tests passes there.

The wording follows OpenAI's own messages, so that a developer finds them when searching.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from local.model.errors import ApiError, Json
from local.model.sent_files import check_openai_part

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_IDENTIFIER = 64
_ID_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
_NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}
_USER_PARTS = frozenset({"input_text", "input_image", "input_file"})
_ASSISTANT_PARTS = frozenset({"output_text", "refusal"})
_CHAT_PARTS = frozenset({"text", "refusal", "image_url", "input_audio", "file"})
_NOT_IN_STRICT = ("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "default")


def check_responses(body: Json) -> None:
    """Raise the error that `POST /v1/responses` would answer with."""
    _check_model(body)
    if body.get("previous_response_id"):
        message = f"Previous response with id '{body['previous_response_id']}' not found."
        raise ApiError(message, param="previous_response_id", code="previous_response_not_found")
    if body.get("input") is None:
        raise _missing("input")
    if not isinstance(body["input"], str | list):
        raise ApiError("Invalid type for 'input': expected a string or an array.", param="input", code="invalid_type")
    items = [] if isinstance(body["input"], str) else body["input"]
    for index, item in enumerate(items):
        _check_item(index, item, body["model"])
    _check_pairs(items)
    _check_reasoning(items)
    for index, tool in enumerate(body.get("tools") or []):
        if tool.get("type") == "function":
            _check_tool(tool, f"tools[{index}]")
    output = (body.get("text") or {}).get("format") or {}
    if output.get("type") == "json_schema":
        _check_output(output, "text.format")


def check_chat(body: Json) -> None:
    """Raise the error that `POST /v1/chat/completions` would answer with."""
    _check_model(body)
    if not body.get("messages"):
        raise _missing("messages")
    for index, message in enumerate(body["messages"]):
        _check_message(index, message, body["model"])
    _check_tool_messages(body["messages"])
    if body.get("tools") == []:
        raise _empty("tools")
    for index, tool in enumerate(body.get("tools") or []):
        _check_tool(tool["function"], f"tools[{index}].function")
    output = body.get("response_format") or {}
    if output.get("type") == "json_schema":
        if not output.get("json_schema"):
            raise _missing("response_format.json_schema")
        _check_output(output["json_schema"], "response_format.json_schema")


def _check_model(body: Json) -> None:
    if not body.get("model"):
        raise ApiError("you must provide a model parameter")
    for name in ("prompt_cache_key", "safety_identifier"):
        if len(value := body.get(name) or "") > _MAX_IDENTIFIER:
            message = (
                f"Invalid '{name}': string too long. Expected a string with maximum length {_MAX_IDENTIFIER}, "
                f"but got a string with length {len(value)} instead."
            )
            raise ApiError(message, param=name, code="string_above_max_length")


def _missing(param: str) -> ApiError:
    return ApiError(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def _empty(param: str) -> ApiError:
    message = (
        f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty array instead."
    )
    return ApiError(message, param=param, code="empty_array")


def _check_item(index: int, item: Json, model: str) -> None:
    kind = item.get("type", "message")
    prefix = _ID_PREFIXES.get(kind)
    item_id = item.get("id")
    if prefix and item_id and not item_id.startswith(prefix):
        message = f"Invalid 'input[{index}].id': '{item_id}'. Expected an ID that begins with '{prefix}'."
        raise ApiError(message, param=f"input[{index}].id", code="invalid_value")
    for field in _NEEDED.get(kind, ()):
        if item.get(field) is None:
            raise _missing(f"input[{index}].{field}")
    if kind == "message" and isinstance(item["content"], list):
        allowed = _ASSISTANT_PARTS if item["role"] == "assistant" else _USER_PARTS
        _check_parts(item["content"], allowed, model, f"input[{index}].content")


def _check_parts(parts: list[Json], allowed: frozenset[str], model: str, param: str) -> None:
    for index, part in enumerate(parts):
        if part.get("type") not in allowed:
            names = ", ".join(f"'{name}'" for name in sorted(allowed))
            message = f"Invalid value: '{part.get('type')}'. Supported values are: {names}."
            raise ApiError(message, param=f"{param}[{index}]", code="invalid_value")
        check_openai_part(part, model, f"{param}[{index}]")


def _check_pairs(items: list[Json]) -> None:
    """A function call has its output in the input, and an output comes after its call."""
    called: list[str] = []
    answered = set()
    for item in items:
        if item.get("type") == "function_call":
            called.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            if item["call_id"] not in called:
                message = f"No tool call found for function call output with call_id {item['call_id']}."
                raise ApiError(message, param="input")
            answered.add(item["call_id"])
    for call_id in called:
        if call_id not in answered:
            raise ApiError(f"No tool output found for function call {call_id}.", param="input")


def _check_reasoning(items: list[Json]) -> None:
    """A reasoning item stands before the item that it led to."""
    for item, following in pairwise([*items, {}]):
        led_to = following.get("type", "message") in {"function_call", "reasoning"}
        if item.get("type") == "reasoning" and not led_to and following.get("role") != "assistant":
            message = f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
            raise ApiError(message, param="input")


def _check_message(index: int, message: Json, model: str) -> None:
    if not message.get("role"):
        raise _missing(f"messages[{index}].role")
    param = f"messages[{index}].content"
    content = message.get("content")
    if message.get("tool_calls") == []:
        raise _empty(f"messages[{index}].tool_calls")
    if content is None and not (message.get("tool_calls") or message.get("refusal")):
        error = "Invalid value for 'content': expected a string, got null."
        raise ApiError(error, param=f"messages.[{index}].content")
    if isinstance(content, list):
        _check_parts(content, _CHAT_PARTS, model, param)


def _check_tool_messages(messages: list[Json]) -> None:
    """Directly after an assistant message with tool calls come the tool messages that answer each of them."""
    waiting: list[str] = []
    for index, message in enumerate([*messages, {"role": "end"}]):
        param = f"messages.[{index}].role"
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                error = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                raise ApiError(f"Invalid parameter: {error}", param=param)
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            error = (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id'. The following tool_call_ids did not have response messages: "
            )
            raise ApiError(error + ", ".join(waiting), param=param)
        waiting = [call["id"] for call in message.get("tool_calls") or []]


def _check_tool(tool: Json, param: str) -> None:
    name = tool.get("name") or ""
    if not _TOOL_NAME.fullmatch(name):
        message = f"Invalid '{param}.name': string does not match pattern. Expected '^[a-zA-Z0-9_-]+$'."
        raise ApiError(message, param=f"{param}.name", code="invalid_value")
    schema = tool.get("parameters")
    if schema is None:
        return
    problem = next(_problems(schema, ()), None) if tool.get("strict") else None
    if schema.get("type") != "object":
        problem = f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'."
    if problem:
        message = f"Invalid schema for function '{name}': {problem}"
        raise ApiError(message, param=f"{param}.parameters", code="invalid_function_parameters")


def _check_output(output: Json, param: str) -> None:
    """The schema that the answer has to fit."""
    name = output.get("name")
    if not name:
        raise _missing(f"{param}.name")
    if not _TOOL_NAME.fullmatch(name):
        message = f"Invalid '{param}.name': string does not match pattern. Expected '^[a-zA-Z0-9_-]+$'."
        raise ApiError(message, param=f"{param}.name", code="invalid_value")
    schema = output.get("schema")
    if not isinstance(schema, dict):
        raise _missing(f"{param}.schema")
    problem = next(_problems(schema, ()), None) if output.get("strict") else None
    if output.get("strict") and schema.get("type") != "object":
        problem = f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'."
    if problem:
        message = f"Invalid schema for response_format '{name}': {problem}"
        raise ApiError(message, param=f"{param}.schema", code="invalid_json_schema")


def _problems(schema: Any, path: tuple[str, ...]) -> Iterator[str]:
    """What strict mode does not allow in a schema, with the place where it was found."""
    if not isinstance(schema, dict):
        return
    for keyword in _NOT_IN_STRICT:
        if keyword in schema:
            yield f"In context={path}, '{keyword}' is not permitted."
    if "$ref" in schema and len(schema) > 1:
        yield f"context={path}, $ref cannot have keywords {set(schema) - {'$ref'}}."
    if "object" in _types(schema):
        yield from _object_problems(schema, path)
    for keyword in ("properties", "$defs"):
        for name, nested in (schema.get(keyword) or {}).items():
            yield from _problems(nested, (*path, keyword, name))
    for index, option in enumerate(schema.get("anyOf") or []):
        yield from _problems(option, (*path, "anyOf", str(index)))
    yield from _problems(schema.get("items"), (*path, "items"))


def _object_problems(schema: Json, path: tuple[str, ...]) -> Iterator[str]:
    if schema.get("additionalProperties") is not False:
        yield f"In context={path}, 'additionalProperties' is required to be supplied and to be false."
    for name in schema.get("properties") or {}:
        if name not in (schema.get("required") or []):
            yield (
                f"In context={path}, 'required' is required to be supplied and to be an array including every key "
                f"in properties. Missing '{name}'."
            )


def _types(schema: Json) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)
