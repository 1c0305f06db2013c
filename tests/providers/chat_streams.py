"""Streams of Chat Completions, by their deltas, and what is read from them."""

from omniagent.ai.providers.llm_provider import ModelEvent, ModelToolCall, ModelToolDelta, ModelToolStart
from omniagent.ai.providers.openai.openai_chat import ChatReader
from tests.providers.canned import Json, chat_chunks, frames
from tests.providers.helpers import merged, read

ID, OTHER_ID = "call_PTLP8xhu3uwZk4l3nlnrrJha", "D681PevKs"


def chat(*deltas: Json, finish: str | None = "stop") -> list[ModelEvent]:
    return merged(read(ChatReader(), frames(chat_chunks(*deltas, finish=finish), done=True)))


def piece(arguments: str = "", **fields: object) -> Json:
    name = fields.pop("name", None)
    return {"tool_calls": [{**fields, "function": {"arguments": arguments} | ({"name": name} if name else {})}]}


def call_events(call_id: str, arguments: str) -> list[ModelEvent]:
    return [
        ModelToolStart(call_id, "add"),
        ModelToolDelta(call_id, arguments),
        ModelToolCall(call_id, "add", arguments),
    ]
