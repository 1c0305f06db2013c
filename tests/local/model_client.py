"""Asks the offline model through the real OpenAI client, the same way for both APIs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from local.model import OfflineModel
from omniagent.tls import tls_context

Api = Literal["responses", "chat"]
Json = dict[str, Any]
APIS: tuple[Api, ...] = ("responses", "chat")


@dataclass
class Answer:
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    call_ids: list[str] = field(default_factory=list)
    finish: str = ""
    usage: tuple[int, int, int, int] | None = None  # input, output, reasoning, total
    pieces: int = 0


def function(name: str, description: str = "", *, strict: bool = False, **properties: Json) -> Json:
    """A tool, as the Responses API wants it."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": schema,
        "strict": strict,
    }


class Asker:
    """One conversation's client. `steps` are the tool calls of the running turn, each with its output."""

    def __init__(self, client: AsyncOpenAI, api: Api, *, stream: bool) -> None:
        self.client = client
        self.api = api
        self.stream = stream

    async def ask(
        self,
        prompt: str,
        tools: Sequence[Json] = (),
        *,
        instructions: str = "You are helpful.",
        history: Sequence[tuple[str, str]] = (),
        steps: Sequence[tuple[str, str, str]] = (),
        **options: Any,
    ) -> Answer:
        said = [{"role": role, "content": text} for role, text in [*history, ("user", prompt)]]
        if self.api == "responses":
            return await self._responses(instructions, said, list(tools), steps, options)
        return await self._chat(instructions, said, list(tools), steps, options)

    async def ask_to_the_end(self, prompt: str, tools: Sequence[Json], output: str = "ok") -> list[Answer]:
        """Play the runner: give each tool call an output, until the model answers without one."""
        steps: list[tuple[str, str, str]] = []
        answers = [await self.ask(prompt, tools)]
        while answers[-1].calls:
            steps += [(name, arguments, output) for name, arguments in answers[-1].calls]
            answers.append(await self.ask(prompt, tools, steps=steps))
        return answers

    async def _responses(
        self,
        instructions: str,
        said: list[Json],
        tools: list[Json],
        steps: Sequence[tuple[str, str, str]],
        options: Json,
    ) -> Answer:
        items: list[Json] = list(said)
        for number, (name, arguments, output) in enumerate(steps):
            call_id = f"call_{number}"
            items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})
            items.append({"type": "function_call_output", "call_id": call_id, "output": output})
        request: Json = {
            "model": "gpt-6-luna",
            "instructions": instructions,
            "input": items,
            "tools": tools,
            **options,
        }
        if self.stream:
            return await _read_events(await self.client.responses.create(**request, stream=True))
        return _read_response((await self.client.responses.create(**request)).model_dump())

    async def _chat(
        self,
        instructions: str,
        said: list[Json],
        tools: list[Json],
        steps: Sequence[tuple[str, str, str]],
        options: Json,
    ) -> Answer:
        messages: list[Json] = [{"role": "system", "content": instructions}, *said]
        for number, (name, arguments, output) in enumerate(steps):
            call_id = f"call_{number}"
            call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        request: Json = {"model": "gpt-6-luna", "messages": messages, **options}
        if tools:
            request["tools"] = [{"type": "function", "function": _without_type(tool)} for tool in tools]
        if self.stream:
            streamed: Json = {"stream": True, "stream_options": {"include_usage": True}}
            return await _read_chunks(await self.client.chat.completions.create(**request, **streamed))
        return _read_completion((await self.client.chat.completions.create(**request)).model_dump())


@asynccontextmanager
async def connect(model: OfflineModel, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    http = DefaultAsyncHttpxClient(verify=tls_context())
    async with AsyncOpenAI(base_url=model.base_url, api_key="none", http_client=http, **options) as client:
        yield client


def _without_type(tool: Json) -> Json:
    return {name: value for name, value in tool.items() if name != "type"}


def _read_response(response: Json) -> Answer:
    answer = Answer(finish=response["status"])
    for item in response["output"]:
        match item["type"]:
            case "reasoning":
                answer.reasoning += "".join(part["text"] for part in item["summary"])
            case "function_call":
                answer.calls.append((item["name"], item["arguments"]))
                answer.call_ids.append(item["call_id"])
            case "message":
                answer.text += "".join(part.get("text", "") for part in item["content"])
                answer.refusal += "".join(part.get("refusal", "") for part in item["content"])
    if usage := response["usage"]:
        reasoning = usage["output_tokens_details"]["reasoning_tokens"]
        answer.usage = (usage["input_tokens"], usage["output_tokens"], reasoning, usage["total_tokens"])
    return answer


async def _read_events(stream: Any) -> Answer:
    """Put the answer together from the deltas, and hold it against the final response."""
    deltas = Answer()
    fields = {"output_text": "text", "refusal": "refusal", "reasoning_summary_text": "reasoning"}
    arguments: dict[str, str] = {}
    async for event in stream:
        name, _, kind = event.type.removeprefix("response.").rpartition(".")
        if kind == "delta":
            deltas.pieces += 1
            if name in fields:
                setattr(deltas, fields[name], getattr(deltas, fields[name]) + event.delta)
            else:
                arguments[event.item_id] = arguments.get(event.item_id, "") + event.delta
    final = _read_response(event.response.model_dump())
    if final.finish != "failed":
        assert (deltas.text, deltas.reasoning, deltas.refusal) == (final.text, final.reasoning, final.refusal)
        assert list(arguments.values()) == [given for _, given in final.calls if given]
    final.text, final.pieces = deltas.text, deltas.pieces
    return final


def _read_completion(completion: Json) -> Answer:
    choice, usage = completion["choices"][0], completion["usage"]
    message = choice["message"]
    calls = message["tool_calls"] or []
    return Answer(
        text=message["content"] or "",
        reasoning=message.get("reasoning_content", ""),
        refusal=message["refusal"] or "",
        calls=[(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        call_ids=[call["id"] for call in calls],
        finish=choice["finish_reason"],
        usage=_chat_usage(usage),
    )


async def _read_chunks(stream: Any) -> Answer:
    answer = Answer()
    async for chunk in stream:
        if chunk.usage:
            answer.usage = _chat_usage(chunk.usage.model_dump())
        for choice in chunk.choices:
            delta = choice.delta
            answer.finish = choice.finish_reason or answer.finish
            answer.text += delta.content or ""
            answer.refusal += delta.refusal or ""
            answer.reasoning += getattr(delta, "reasoning_content", None) or ""
            answer.pieces += bool(delta.content or delta.refusal or getattr(delta, "reasoning_content", None))
            for call in delta.tool_calls or []:
                if call.id:
                    answer.calls.append((call.function.name, ""))
                    answer.call_ids.append(call.id)
                name, before = answer.calls[call.index]
                answer.calls[call.index] = (name, before + call.function.arguments)
                answer.pieces += bool(call.function.arguments)
    return answer


def _chat_usage(usage: Json) -> tuple[int, int, int, int]:
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"], reasoning, usage["total_tokens"]
