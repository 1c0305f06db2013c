"""OpenAI's Responses API."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import aclosing
from dataclasses import fields
from typing import Any, ClassVar

from omniagent.ai.providers.api_errors import reported
from omniagent.ai.providers.llm_provider import LLMProvider, ModelEvent, ModelRequest
from omniagent.ai.providers.model_rules import rules_of
from omniagent.ai.providers.openai.openai_provider import CACHE_MARK, OpenAIProvider, function_of, schema_of
from omniagent.ai.providers.sent_parts import SentCall, cached_questions, split_system, steps, to_json
from omniagent.ai.providers.stream_reader import Call, Json, ModelStreamReader, counts_of, objects_of, token_count
from omniagent.errors import ModelRejected
from omniagent.messages import ChatMessage, FinishReason, ReasoningPart, TextPart, Usage

_LIMIT_FIELD = "max_output_tokens"
_SEALED = ("id", "summary", "encrypted_content")
_ABSENT = frozenset({404, 405, 501})
_INCOMPLETE: dict[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "content-filter"}


class OpenAIResponses(OpenAIProvider):
    """Stores nothing at OpenAI: reasoning is received encrypted and sent back within the turn.

    A compatible server that has no Responses API is called through Chat Completions from then on.
    """

    path: ClassVar[str] = "/responses"
    output_field = ("text", "format")
    effort_path = ("reasoning", "effort")
    _speaker: LLMProvider | None = None
    """What has answered at this address: this provider, or that of Chat Completions. None: nothing yet."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        if self._speaker is None and self.options.base_url:
            return self._first_stream(request)
        return super().stream(request) if self._speaker in {None, self} else self._speaker.stream(request)

    async def _first_stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Find out whether the server has this API. If it has neither, the first refusal is raised."""
        try:
            async for event in self._heard(self, super().stream(request)):
                yield event
        except ModelRejected as exc:
            if self._speaker is not None or exc.api_status not in _ABSENT:
                raise
            refusal = exc
        else:
            return
        from omniagent.ai.providers.openai.openai_chat import OpenAIChat  # most servers have this API

        options = {each.name: getattr(self.options, each.name) for each in fields(self.options)}
        chat = OpenAIChat(self.model, client=self._client, **options)
        try:
            async for event in self._heard(chat, chat.stream(request)):
                yield event
        except ModelRejected as exc:
            raise refusal if exc.api_status in _ABSENT and self._speaker is None else exc from None

    async def _heard(
        self, speaker: LLMProvider, events: AsyncGenerator[ModelEvent, None]
    ) -> AsyncGenerator[ModelEvent, None]:
        async with aclosing(events):
            async for event in events:
                self._speaker = speaker
                yield event

    def _body(self, request: ModelRequest) -> Json:
        is_marked = self._is_identified and rules_of(self.model_for(request.overrides)).cache_marks
        marked = cached_questions(request.messages) if is_marked else ()
        tools = [{"type": "function", **function_of(tool)} for tool in request.tools]
        body: Json = {
            "instructions": "\n\n".join(filter(None, split_system(request))),
            "input": list(_input(request, marked)),
            "store": False,
            **self._parameters(request, _LIMIT_FIELD, tools),
        }
        if request.output is not None:
            body.setdefault("text", {"format": {"type": "json_schema", **schema_of(request.output)}})
        # Models that do not reason refuse a request for encrypted reasoning.
        if "reasoning" in body or rules_of(body["model"]).reasons:
            body.setdefault("include", ["reasoning.encrypted_content"])
        return self._fitted(body, _LIMIT_FIELD)

    def _reader(self, model: str) -> ModelStreamReader:
        return ResponseReader(model)

    def _forced_tool(self, name: str) -> Json:
        return {"type": "function", "name": name}


def _input(request: ModelRequest, marked: Collection[int]) -> Iterator[Json]:
    questions = [number for number, message in enumerate(request.messages) if message.role == "user"]
    turn_start = questions[-1] if questions else 0
    for number, message in enumerate(request.messages):
        if message.role == "assistant":
            yield from _answer_items(message, in_turn=number > turn_start)
        elif message.role == "system":
            if number:
                yield {"type": "message", "role": "developer", "content": message.text}
        elif message.text:
            content = [{"type": "input_text", "text": message.text, **CACHE_MARK}] if number in marked else message.text
            yield {"type": "message", "role": "user", "content": content}


def _answer_items(message: ChatMessage, *, in_turn: bool) -> Iterator[Json]:
    """Yield the items of each step in order, then the outputs of its tools.

    Reasoning is sent back only within its turn, and only before the item that it led to: the API refuses it alone.
    """
    for step in steps(message):
        reasoned: list[Json] = []
        outputs: list[Json] = []
        for part in step:
            if isinstance(part, ReasoningPart):
                data = part.provider_data or {}
                if in_turn and "encrypted_content" in data:
                    reasoned.append({"type": "reasoning"} | {name: data[name] for name in _SEALED if name in data})
            elif isinstance(part, SentCall):
                call: Json = {"call_id": part.call_id, "name": part.name, "arguments": to_json(part.arguments)}
                yield from reasoned
                yield {"type": "function_call", **call}
                outputs.append({"type": "function_call_output", "call_id": part.call_id, "output": part.output})
                reasoned.clear()
            elif isinstance(part, TextPart) and part.text:
                yield from reasoned
                yield {"type": "message", "role": "assistant", "content": part.text}
                reasoned.clear()
        yield from outputs


class ResponseReader(ModelStreamReader):
    """Reads the events of a response."""

    def __init__(self, model: str = "") -> None:
        super().__init__(model)
        self._by_index: dict[Any, Call] = {}
        self._thought: tuple[Any, ...] | None = None
        self._has_text = False

    def _read(self, event: Json) -> None:
        if "type" not in event and event.get("object") == "response":  # from a server that ignores `stream`
            event = {"type": f"response.{event['status']}", "response": event}
        handle = _HANDLERS.get(event["type"] if "type" in event or "error" not in event else "error")
        if handle:
            handle(self, event)

    def text_delta(self, event: Json) -> None:
        self._has_text = True
        self._text(event["delta"])

    def refusal_delta(self, event: Json) -> None:
        self._has_text = True
        self._refusal(event["delta"])

    def reasoning_delta(self, event: Json) -> None:
        """Add reasoning. The parts of one item are numbered; a blank line separates them."""
        thought = (event["type"], event.get("output_index"), event.get("summary_index"), event.get("content_index"))
        if self._is_reasoning and thought != self._thought:
            self._reasoning("\n\n")
        self._thought = thought
        self._reasoning(event["delta"])

    def item_added(self, event: Json) -> None:
        item = event["item"]
        if item["type"] == "function_call":
            self._by_index[event["output_index"]] = self._open_call(item["call_id"], item["name"])

    def arguments_delta(self, event: Json) -> None:
        self._arguments(self._by_index[event["output_index"]], event["delta"])

    def annotated(self, event: Json) -> None:
        """Note a source. A `file_path` is the answer's own file."""
        annotation = event["annotation"]
        if annotation.get("type") != "file_path":
            self._cite(annotation.get("url"), annotation.get("title"), annotation.get("filename"))

    def item_done(self, event: Json) -> None:
        item = event["item"]
        if item["type"] == "reasoning":
            self._end_reasoning(_sealed(item))
        elif item["type"] == "function_call":
            if event["output_index"] not in self._by_index:
                self.item_added(event)
            call = self._by_index[event["output_index"]]
            if (arguments := item["arguments"]) and not call.pieces:
                self._arguments(call, arguments if isinstance(arguments, str) else to_json(arguments))
            self._close_call(call)

    def completed(self, event: Json) -> None:
        self._read_unstreamed(event["response"])
        self._finish("stop", _usage(event["response"]))

    def incomplete(self, event: Json) -> None:
        response = event["response"]
        self._read_unstreamed(response)
        reason = (response.get("incomplete_details") or {}).get("reason")
        self._finish(_INCOMPLETE.get(str(reason), "other"), _usage(response))

    def _read_unstreamed(self, response: Json) -> None:
        """Read the calls and the text of the whole response, unless they were streamed: some bridges stream neither."""
        items = response.get("output")
        has_text, has_calls = self._has_text, bool(self._calls)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            if item["type"] == "function_call" and not has_calls:
                self.item_done({"item": item, "output_index": index})
            elif item["type"] == "message" and not has_text:
                for part in item["content"]:
                    if text := part.get("text"):
                        self._text(text)
                        for annotation in objects_of(part, "annotations"):
                            self.annotated({"annotation": annotation})
                    elif refusal := part.get("refusal"):
                        self._refusal(refusal)

    def failed(self, event: Json) -> None:
        raise reported(event["response"].get("error"))

    def error(self, event: Json) -> None:
        raise reported(event.get("error") or event)


_HANDLERS: dict[str, Callable[[ResponseReader, Json], None]] = {
    "response.output_text.delta": ResponseReader.text_delta,
    "response.refusal.delta": ResponseReader.refusal_delta,
    "response.reasoning_summary_text.delta": ResponseReader.reasoning_delta,
    "response.reasoning_text.delta": ResponseReader.reasoning_delta,
    "response.output_item.added": ResponseReader.item_added,
    "response.function_call_arguments.delta": ResponseReader.arguments_delta,
    "response.output_item.done": ResponseReader.item_done,
    "response.output_text.annotation.added": ResponseReader.annotated,
    "response.completed": ResponseReader.completed,
    "response.incomplete": ResponseReader.incomplete,
    "response.failed": ResponseReader.failed,
    "error": ResponseReader.error,
}


def _sealed(item: Json) -> Json | None:
    """Return what is sent back of a reasoning item, or None if the API has not encrypted it."""
    if not item.get("encrypted_content"):
        return None
    summary = item.get("summary") or []  # the API requires the field, but accepts an empty list
    return dict(zip(_SEALED, (item["id"], summary, item["encrypted_content"]), strict=True))


def _usage(response: Json) -> Usage:
    usage = counts_of(response, "usage")
    return Usage(
        input_tokens=token_count(usage.get("input_tokens")),
        output_tokens=token_count(usage.get("output_tokens")),
        cached_input_tokens=token_count(counts_of(usage, "input_tokens_details").get("cached_tokens")),
        reasoning_tokens=token_count(counts_of(usage, "output_tokens_details").get("reasoning_tokens")),
        cache_write_tokens=token_count(counts_of(usage, "input_tokens_details").get("cache_write_tokens")),
    )
