"""Anthropic's Messages API."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final
from urllib.parse import urlsplit

from omniagent.ai.providers.anthropic.message_reader import MessageReader
from omniagent.ai.providers.api_provider import AnswerTool, ApiProvider
from omniagent.ai.providers.llm_provider import Json, ModelRequest, OutputFormat, ToolSpec
from omniagent.ai.providers.model_rules import EFFORTS, ModelRules, fit, nearest_effort
from omniagent.ai.providers.sent_parts import SentCall, SentPart, instructions_of, sent_messages
from omniagent.messages import ReasoningPart, TextPart

DEFAULT_MAX_TOKENS: Final = 16_384
"""The API requires a limit; Bedrock reserves it from the account's quota."""
MIN_THINKING_TOKENS: Final = 1_024
MAX_STRICT_TOOLS: Final = 20
_CACHED: Final[Json] = {"type": "ephemeral"}
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")
_USER_ID = re.compile(r"[\w.@-]{1,256}", re.ASCII)


class AnthropicMessages(ApiProvider):
    """Claude. The options are those of `ApiOptions`.

    Everything before the conversation is cached, and so is the conversation up to its last message. Thinking is sent
    back within its turn, with its signature; `extra={"thinking": {"type": "adaptive", "display": "summarized"}}` shows
    it.
    """

    system = "anthropic"
    settings_prefix = "ANTHROPIC"
    url = "https://api.anthropic.com"
    path: ClassVar[str] = "/v1/messages"
    key_header = ("x-api-key", "")
    output_field = ("output_config", "format")
    _reader = MessageReader

    def _address(self) -> str:
        url = urlsplit(super()._address())
        return url._replace(path=url.path.rstrip("/").removesuffix("/v1")).geturl()  # with and without it are common

    def _headers(self) -> Mapping[str, str]:
        return {"anthropic-version": "2023-06-01"}

    def _body(self, request: ModelRequest) -> Json:
        parameters = {"max_tokens": DEFAULT_MAX_TOKENS, **self._parameters(request, "max_tokens")}
        output = request.output
        schema = {} if output is None else {"format": {"type": "json_schema", "schema": output.schema}}
        config = {**schema, **parameters.pop("output_config", {})}
        rules = self._rules(parameters["model"])
        tools, parallel = list(_tools(request.tools, rules)), self.options.parallel_tool_calls
        choice = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": not parallel}}
        body = {
            **_cached_prefix(*instructions_of(request), tools),
            "messages": list(_alternating(_messages(request))),
            "cache_control": _CACHED,
            **({} if parallel is None or not tools else choice),
            **({"metadata": {"user_id": _user_id(request.user_id)}} if request.user_id else {}),
            **({"output_config": config} if config else {}),
            **parameters,
        }
        return fitted_message(body, rules)

    def _takes_schema(self, output: OutputFormat, model: str) -> bool:
        return output.strict and super()._takes_schema(output, model)

    def _forcing(self, body: Json, tool: AnswerTool) -> Json:
        forced = {"type": "tool", "name": tool.name} if tool.is_only_tool else {"type": "any"}
        choice = {**body.get("tool_choice", {}), **forced}
        return fitted_message({**body, "tool_choice": choice}, self._rules(body["model"]))


def fitted_message(body: Json, rules: ModelRules) -> Json:
    """Return the request as the rules of its model want it."""
    effort = (body.get("output_config") or {}).get("effort")
    if effort is not None and nearest_effort(effort, rules) != effort:
        effort = nearest_effort(effort, rules)
        body = {**body, "output_config": {**body["output_config"], "effort": effort}}
    thinking = _fitted_thinking(body, rules, effort)
    body = {**{name: value for name, value in body.items() if name != "thinking"}, **thinking}
    thinks = bool(thinking) and thinking["thinking"].get("type") in {"adaptive", "enabled"}
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in {"any", "tool"} and (thinks or not rules.forced_tool):
        body = {**body, "tool_choice": {name: value for name, value in choice.items() if name != "name"}}
        body["tool_choice"]["type"] = "auto"
    return fit(body, rules, "max_tokens", reasons=thinks)


def _fitted_thinking(body: Json, rules: ModelRules, effort: str | None) -> Json:
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or rules.thinking is None:
        return {"thinking": thinking} if isinstance(thinking, dict) else {}
    match thinking.get("type"):
        case "disabled":
            is_above = effort in EFFORTS and EFFORTS.index(effort) > EFFORTS.index(rules.off_up_to)
            return {} if rules.thinking_off is None or is_above else {"thinking": rules.thinking_off}
        case "enabled" if not rules.takes_budget:
            kept = {name: value for name, value in thinking.items() if name != "budget_tokens"}
            return {"thinking": {**kept, "type": "adaptive"}}
        case "adaptive" if rules.thinking == "budget":
            limit = min(body["max_tokens"], rules.max_output or body["max_tokens"])
            budget = max(MIN_THINKING_TOKENS, limit // 2)
            return {"thinking": {"type": "enabled", "budget_tokens": budget}}
    return {"thinking": thinking}


def _cached_prefix(instructions: str, changing: str, tools: list[Json]) -> Json:
    """Return tools and instructions, with a breakpoint of the cache before those that may change."""
    system = [{"type": "text", "text": instructions, "cache_control": _CACHED}] if instructions.strip() else []
    if tools and not system:
        tools[-1] = {**tools[-1], "cache_control": _CACHED}
    system += [{"type": "text", "text": changing}] if changing else []
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


def _messages(request: ModelRequest) -> Iterator[Json]:
    """Yield the messages. Those of an answer are one per step, each followed by the results of its tools."""
    for message in sent_messages(request):
        if message.text.strip():
            mark = {"cache_control": _CACHED} if message.is_marked else {}
            yield {"role": message.role, "content": [{"type": "text", "text": message.text, **mark}]}
        for step in message.steps:
            content = [block for part in step if (block := _block(part, in_turn=message.in_turn))]
            if any(block["type"] in {"text", "tool_use"} for block in content):  # the API refuses thinking alone
                yield {"role": "assistant", "content": content}
            if results := [_result(part) for part in step if isinstance(part, SentCall)]:
                yield {"role": "user", "content": results}


def _block(part: SentPart, *, in_turn: bool) -> Json | None:
    if isinstance(part, SentCall):
        return {"type": "tool_use", "id": _id(part), "name": part.name, "input": part.arguments}
    if isinstance(part, TextPart) and part.text.strip():
        return {"type": "text", "text": part.text}
    if isinstance(part, ReasoningPart) and in_turn:
        data = part.provider_data or {}
        if "signature" in data:
            return {"type": "thinking", "thinking": part.text, "signature": data["signature"]}
        return data.get("block")
    return None


def _result(call: SentCall) -> Json:
    result = {"type": "tool_result", "tool_use_id": _id(call), "content": call.output}
    return {**result, "is_error": True} if call.is_error else result


def _id(call: SentCall) -> str:
    """Return the id of a call in the characters that the API accepts: another model may have chosen it."""
    return _NOT_IN_IDS.sub("_", call.call_id) or "unknown"
