"""CPU per streamed text delta, from the model's bytes to an event: the SDK's typed iteration compared with ours.

    .venv/bin/python -m bench.providers

A child process sends prebuilt bytes over loopback, as fast as they are read. OpenAI sends each event in its own HTTP
chunk, which is the costliest framing for both; a proxy may join them.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from bench.figure import Figure
from omniagent.ai.providers import get_llm_provider
from omniagent.ai.providers.llm_provider import LLMProvider, ModelRequest, ModelText
from omniagent.messages import ChatMessage

Api = Literal["responses", "chat", "messages"]

DELTAS = 5_000
ROUNDS = 5
EVENTS_PER_CHUNK = (1, 20)
BURST = 20
IMPORT_MS = 15
WORDS = (" the", " quick", " brown", " fox", ",", " naïve", " 12", "\n")
IMPORTS = {
    "import of the Anthropic provider": "import omniagent.ai.providers.anthropic.anthropic_messages",
    "the same on Bedrock": "import omniagent.ai.providers.bedrock",
    "import of the OpenAI provider": "import omniagent.ai.providers.openai.openai_responses",
    "import of the anthropic SDK": "import anthropic",
}
REQUEST = ModelRequest("Be brief.", [ChatMessage.user("Go.")])


def responses_events() -> list[bytes]:
    """Return the stream of a Responses answer: the deltas and the final event."""
    head = {"item_id": "msg_68a1b2c3d4e5f60718293a4b5c6d7e8f", "output_index": 0, "content_index": 0}
    events = [
        {
            "type": "response.output_text.delta",
            "sequence_number": number,
            **head,
            "delta": WORDS[number % len(WORDS)],
            "logprobs": [],
            "obfuscation": "kJ3nQ8xW2p",
        }
        for number in range(DELTAS)
    ]
    usage = {"input_tokens": 9, "output_tokens": DELTAS, "total_tokens": DELTAS + 9}
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": [], "usage": usage}
    events.append({"type": "response.completed", "sequence_number": DELTAS, "response": response})
    return [f"event: {event['type']}\ndata: {_json(event)}\n\n".encode() for event in events]


def chat_events() -> list[bytes]:
    """Return the stream of a Chat Completions answer."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-6-luna"}
    head |= {"service_tier": "default", "system_fingerprint": "fp_1"}

    def chunk(delta: dict[str, str], finish: str | None = None) -> dict[str, object]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**head, "choices": [choice], "usage": None, "obfuscation": "kJ3nQ8xW2p"}

    events = [chunk({"content": WORDS[number % len(WORDS)]}) for number in range(DELTAS)]
    usage = {"prompt_tokens": 9, "completion_tokens": DELTAS, "total_tokens": DELTAS + 9}
    events += [chunk({}, "stop"), {**head, "choices": [], "usage": usage}]
    return [*(f"data: {_json(event)}\n\n".encode() for event in events), b"data: [DONE]\n\n"]


def message_events() -> list[bytes]:
    """Return the stream of a message of Anthropic's API."""
    usage = {"input_tokens": 9, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5-5", "content": []}
    events: list[dict[str, object]] = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    texts = (WORDS[number % len(WORDS)] for number in range(DELTAS))
    head = {"type": "content_block_delta", "index": 0}
    events += [{**head, "delta": {"type": "text_delta", "text": text}} for text in texts]
    events += [
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {**usage, "output_tokens": DELTAS},
        },
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {_json(event)}\n\n".encode() for event in events]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def http_response(events: list[bytes], per_chunk: int) -> bytes:
    """Return the events as one chunked HTTP response."""
    chunks = (b"".join(events[start : start + per_chunk]) for start in range(0, len(events), per_chunk))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


async def serve(per_chunk: int) -> None:
    """Answer every request from memory. The port is printed first."""
    answers = {
        "/responses": http_response(responses_events(), per_chunk),
        "/chat/completions": http_response(chat_events(), per_chunk),
        "/v1/messages": http_response(message_events(), per_chunk),
    }

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := (await _request_head(reader)).decode():
            length = next(line for line in head.lower().split("\r\n") if line.startswith("content-length:"))
            await reader.readexactly(int(length.partition(":")[2]))
            writer.write(answers[head.split(" ")[1]])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _request_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def read_typed(sdk: AsyncOpenAI, api: Api) -> str:
    """Iterate the SDK's own stream."""
    if api == "responses":
        events = await sdk.responses.create(model="gpt-6-luna", input="Go.", stream=True)
        return "".join([event.delta async for event in events if event.type == "response.output_text.delta"])
    chunks = await sdk.chat.completions.create(
        model="gpt-6-luna", messages=[{"role": "user", "content": "Go."}], stream=True
    )
    return "".join([choice.delta.content or "" async for chunk in chunks for choice in chunk.choices])


async def read_claude(sdk: AsyncAnthropic) -> str:
    """Iterate the stream of Anthropic's SDK."""
    events = await sdk.messages.create(
        model="claude-sonnet-5-5", max_tokens=16_384, messages=[{"role": "user", "content": "Go."}], stream=True
    )
    deltas = [event.delta async for event in events if event.type == "content_block_delta"]
    return "".join(delta.text for delta in deltas if delta.type == "text_delta")


async def read_ours(provider: LLMProvider) -> str:
    return "".join([event.text async for event in provider.stream(REQUEST) if isinstance(event, ModelText)])


async def cpu_per_delta(read: Callable[[], Awaitable[str]]) -> float:
    """Return the CPU microseconds per delta of the best round."""
    expected = "".join(WORDS[number % len(WORDS)] for number in range(DELTAS))
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        text = await read()
        best = min(best, time.process_time() - start)
        if text != expected:
            raise RuntimeError("the answer is not what was sent")
    return best / DELTAS * 1e6


async def compare(api: Api, base_url: str) -> tuple[float, float]:
    """Return the CPU per delta of the SDK and ours."""
    if api == "messages":
        claude = AsyncAnthropic(api_key="unused", base_url=base_url)
        typed = await cpu_per_delta(lambda: read_claude(claude))
        await claude.close()
        provider = get_llm_provider("anthropic/claude-sonnet-5-5", base_url=base_url)
    else:
        sdk = AsyncOpenAI(api_key="unused", base_url=base_url)
        typed = await cpu_per_delta(lambda: read_typed(sdk, api))
        await sdk.close()
        provider = get_llm_provider("gpt-6-luna", api=api, base_url=base_url)
    ours = await cpu_per_delta(lambda: read_ours(provider))
    await provider.aclose()
    return typed, ours


def figures() -> Iterator[Figure]:
    """Yield what `make bench` reports of Anthropic's API."""
    with served(BURST) as base_url:
        typed, ours = asyncio.run(compare("messages", base_url))
    note = f"bytes to events, {BURST} events in an HTTP chunk, best of {ROUNDS}"
    yield Figure("CPU per delta of Messages, burst", "µs", ours, {"anthropic SDK": typed}, ours / typed, 0.1, note)
    name = "import of the Anthropic provider"
    spent = import_cpu(IMPORTS[name])
    yield Figure(f"{name}, CPU", "ms", spent, {"bound": IMPORT_MS}, spent / IMPORT_MS, 1, "when it is used; else 0")


@contextmanager
def served(per_chunk: int) -> Iterator[str]:
    """Run the server, and return its address."""
    command = [sys.executable, "-m", "bench.providers", "serve", str(per_chunk)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()


def main() -> None:
    print(f"{'API':<10} {'events per chunk':>16} {'SDK, typed':>13} {'ours':>13} {'ratio':>8}")
    for per_chunk in EVENTS_PER_CHUNK:
        with served(per_chunk) as base_url:
            for api in get_args(Api):
                typed, ours = asyncio.run(compare(api, base_url))
                print(f"{api:<10} {per_chunk:>16} {typed:>10.1f} µs {ours:>10.1f} µs {ours / typed:>8.2f}")
    for name, after in IMPORTS.items():
        print(f"{name}: {import_cpu(after):.1f} ms of CPU")


def import_cpu(statements: str) -> float:
    """Return the CPU of importing in a process that has what a chat function has imported: the best of 5."""
    program = (
        "import time, httpcore2, omniagent.ai.providers.model_calls, omniagent.network, omniagent.tls\n"
        f"start = time.process_time()\n{statements}\nprint((time.process_time() - start) * 1000)"
    )
    command = [sys.executable, "-c", program]
    return min(float(subprocess.check_output(command, text=True)) for _ in range(5))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(int(sys.argv[2])))
    else:
        main()
