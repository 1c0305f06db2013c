"""A request of any API in one shape: instructions, messages, tool calls with their outputs, tools."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from local.model import tokens

_SUMMARY = re.compile(r"<(\w*summary)>.*?</\1>\s*", re.DOTALL)

Json = dict[str, Any]
Role = Literal["user", "assistant"]


@dataclass(frozen=True)
class Message:
    role: Role
    text: str


@dataclass(frozen=True)
class Call:
    name: str
    arguments: str
    call_id: str = ""


@dataclass(frozen=True)
class Output:
    call_id: str
    text: str


Item = Message | Call | Output


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    parameters: Json


@dataclass(frozen=True)
class Conversation:
    """What the model is asked, whichever API it was asked by."""

    instructions: str = ""
    items: tuple[Item, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"  # auto, none, required, or the name of a tool
    parallel: bool = True
    max_tokens: int | None = None
    output: Json | None = None
    """The JSON schema that the answer has to fit."""

    @cached_property
    def prompt(self) -> str:
        """The last thing the user said."""
        return next((message.text for message in reversed(self.said("user"))), "")

    @cached_property
    def since_prompt(self) -> tuple[Item, ...]:
        """What happened after the user's last message: the steps of the running turn."""
        asked = [i for i, item in enumerate(self.items) if isinstance(item, Message) and item.role == "user"]
        return self.items[asked[-1] + 1 :] if asked else self.items

    @property
    def calls_made(self) -> int:
        return sum(isinstance(item, Call) for item in self.since_prompt)

    @property
    def results(self) -> list[tuple[str, str]]:
        """Name and output of every tool called since the prompt."""
        names = {item.call_id: item.name for item in self.since_prompt if isinstance(item, Call)}
        return [(names.get(item.call_id, "tool"), item.text) for item in self.since_prompt if isinstance(item, Output)]

    def said(self, role: Role) -> list[Message]:
        return [item for item in self.items if isinstance(item, Message) and item.role == role]

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    @cached_property
    def input_tokens(self) -> int:
        """Count everything the model reads. The same conversation costs the same through every API."""
        texts = [self.instructions]
        for item in self.items:
            texts += [item.name, item.arguments] if isinstance(item, Call) else [item.text]
        for tool in self.tools:
            texts += [tool.name, tool.description, json.dumps(tool.parameters, sort_keys=True)]
        return sum(tokens.count(text) for text in texts)


def from_responses(body: Json) -> Conversation:
    """Read the body of `POST /v1/responses`."""
    instructions = [body.get("instructions") or ""]
    asked = body["input"]
    given: list[Json] = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    items: list[Item] = []
    for item in given:
        match item.get("type", "message"):
            case "message":
                text = text_of(item["content"])
                if item["role"] in {"user", "assistant"}:
                    items.append(Message(item["role"], text))
                else:
                    instructions.append(text)
            case "function_call":
                items.append(Call(item["name"], item["arguments"], item["call_id"]))
            case "function_call_output":
                items.append(Output(item["call_id"], text_of(item["output"])))
    return Conversation(
        instructions=_joined(instructions),
        items=tuple(items),
        tools=tuple(_tool(tool) for tool in body.get("tools") or [] if tool.get("type") == "function"),
        tool_choice=_tool_choice(body.get("tool_choice")),
        parallel=body.get("parallel_tool_calls") is not False,
        max_tokens=body.get("max_output_tokens"),
        output=_schema((body.get("text") or {}).get("format")),
    )


def from_chat(body: Json) -> Conversation:
    """Read the body of `POST /v1/chat/completions`."""
    instructions: list[str] = []
    items: list[Item] = []
    for message in body["messages"]:
        text = text_of(message.get("content"))
        match message["role"]:
            case "system" | "developer":
                instructions.append(text)
            case "tool":
                items.append(Output(message["tool_call_id"], text))
            case role:
                if text or not message.get("tool_calls"):
                    items += [Message(role, said) for said in (_apart(text) if role == "user" else [text])]
                items.extend(
                    Call(call["function"]["name"], call["function"]["arguments"], call["id"])
                    for call in message.get("tool_calls") or []
                )
    return Conversation(
        instructions=_joined(instructions),
        items=tuple(items),
        tools=tuple(_tool(tool["function"]) for tool in body.get("tools") or []),
        tool_choice=_tool_choice(body.get("tool_choice")),
        parallel=body.get("parallel_tool_calls") is not False,
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        output=_schema((body.get("response_format") or {}).get("json_schema")),
    )


def from_messages(body: Json) -> Conversation:
    """Read the body of `POST /v1/messages`."""
    items: list[Item] = []
    instructions = [text_of(body.get("system"))]
    for message in body["messages"]:
        content = message["content"]
        if message["role"] == "system":
            instructions.append(text_of(content))
            continue
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            match block["type"]:
                case "text":
                    items.append(Message(message["role"], block["text"]))
                case "tool_use":
                    items.append(Call(block["name"], json.dumps(block["input"], ensure_ascii=False), block["id"]))
                case "tool_result":
                    items.append(Output(block["tool_use_id"], text_of(block.get("content"))))
    choice = body.get("tool_choice") or {}
    kind = str(choice.get("type", "auto"))
    return Conversation(
        instructions=_joined(instructions),
        items=tuple(items),
        tools=tuple(_tool({**tool, "parameters": tool["input_schema"]}) for tool in body.get("tools") or []),
        tool_choice=str(choice.get("name") or {"any": "required"}.get(kind, kind)),
        parallel=not choice.get("disable_parallel_tool_use"),
        max_tokens=body["max_tokens"],
        output=_schema((body.get("output_config") or {}).get("format")),
    )


def text_of(content: Any) -> str:
    """The text of a content: nothing, a string, or a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or part.get("refusal") or "" for part in content)
    return content or ""


def _apart(text: str) -> list[str]:
    """A summary that the application put before the user's words, and these words: two messages."""
    joined = _SUMMARY.match(text)
    return [joined[0].strip(), text[joined.end() :]] if joined and joined.end() < len(text) else [text]


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def _tool(spec: Json) -> Tool:
    return Tool(spec["name"], spec.get("description") or "", spec.get("parameters") or {})


def _schema(output: Json | None) -> Json | None:
    schema: Json | None = (output or {}).get("schema")
    return schema


def _tool_choice(choice: Any) -> str:
    if isinstance(choice, dict):
        return str(choice.get("name") or choice.get("function", {}).get("name") or "auto")
    return choice or "auto"
