"""OpenAI's Chat Completions API, which most compatible servers support, each with its differences."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal, NoReturn

from omniagent.ai.providers.api_errors import reported
from omniagent.ai.providers.api_provider import AnswerTool, Conversation, SentMessage, to_json
from omniagent.ai.providers.llm_provider import OTHER_NAMES, Json, ModelEvent, ModelReasoningDone, ModelRequest
from omniagent.ai.providers.openai.openai_responses import CACHE_MARK, OpenAIProvider, ThinkTagsMode
from omniagent.ai.providers.stream_reader import DONE_EVENT, Call, ModelStreamReader, objects_of, usage_of
from omniagent.errors import ConfigurationError
from omniagent.messages import FinishReason, Part, ReasoningPart, TextPart, ToolPart, Usage

_OPENING: Final = "<think>"
_CLOSING: Final = "</think>"
_OPENAI_MODEL = re.compile(r"(?:.*[/.:])?(?:o\d|gpt-(?!oss)|chatgpt|codex)")
_MISTRAL_MODEL = re.compile(r"mi[sx]tral|(?:mini|dev|magi|code|pix|vox)stral", re.IGNORECASE)
_KIMI_MODEL = re.compile(r"\bkimi\b", re.IGNORECASE)
_REASONING_HOST = re.compile(r"https?://[^/]*\b(?:deepseek|moonshot|kimi)\b", re.IGNORECASE)
_MISTRAL_CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """What one model on one server wants differently."""

    model: str
    base_url: str = ""

    @property
    def limit_field(self) -> str:
        """OpenAI's field for the length of an answer. Other servers refuse or ignore it, but know its predecessor."""
        is_openai = not self.base_url or ".azure.com" in self.base_url or _OPENAI_MODEL.match(self.model)
        return "max_completion_tokens" if is_openai else "max_tokens"

    @property
    def needs_reasoning(self) -> bool:
        """Whether the server refuses a tool call without `reasoning_content`, also one by another model."""
        return bool(_REASONING_HOST.match(self.base_url))

    def sent_ids(self, messages: Iterable[SentMessage]) -> dict[str, str]:
        """Return the ids under which the calls of a conversation are sent, if they are not their own.

        Mistral's models accept nine letters and digits only. Kimi's stop calling tools if they see other ids than those
        that they were trained on.
        """
        parts = (part for message in messages for step in message.steps for part in step)
        calls = (part for part in parts if isinstance(part, ToolPart))
        if _KIMI_MODEL.search(self.model):
            return {call.call_id: f"functions.{call.name}:{number}" for number, call in enumerate(calls)}
        if _MISTRAL_MODEL.search(self.model):
            return {
                call.call_id: hashlib.sha256(call.call_id.encode("utf-8", "replace")).hexdigest()[:9]
                for call in calls
                if not _MISTRAL_CALL_ID.fullmatch(call.call_id)
            }
        return {}


class OpenAIChat(OpenAIProvider):
    path = "/chat/completions"
    effort_path = ("reasoning_effort",)
    output_field = ("response_format",)
    stream_fields: ClassVar[Json] = {"stream": True, "stream_options": {"include_usage": True}}

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        tags = self.options.think_tags
        self._reader = partial(ThinkingReader, tags) if tags else ChatReader

    def _limit_field(self, model: str) -> str:
        return self._dialect(model).limit_field

    def _dialect(self, model: str) -> ChatDialect:
        return ChatDialect(model, self.options.base_url or "")

    def _parameters(self, request: ModelRequest) -> Json:
        model = request.overrides.model or self.model
        parameters = super()._parameters(request)
        takes = self._rules(model).chat_tools if request.tools else "yes"
        if takes == "no":
            raise ConfigurationError(
                f"{model} calls tools only on the Responses API: set OPENAI_API=responses, "
                "and name it without openai-chat/"
            )
        if takes == "without reasoning" and "reasoning" not in parameters:
            parameters["reasoning_effort"] = "none"
        return parameters

    def _body(
        self, request: ModelRequest, parameters: Json, conversation: Conversation, tool: AnswerTool | None
    ) -> Json:
        dialect = self._dialect(parameters["model"])
        has_marks = self._is_identified and self._rules(dialect.model).cache_marks
        system = "\n\n".join(filter(None, (conversation.instructions, conversation.changing)))
        sent = [{"role": "system", "content": system}] if system else []
        sent += _messages(conversation.messages, dialect, has_marks=has_marks)
        body = {
            # A model with marks is OpenAI's own, which takes messages in any order.
            "messages": sent if has_marks else list(_alternating(sent)),
            **self._with_tools([_function(vars(spec)) for spec in request.tools], request, parameters),
        }
        if tool is not None:
            body["tool_choice"] = _function({"name": tool.name}) if tool.is_only_tool else "required"
        if request.output is not None:
            body.setdefault("response_format", {"type": "json_schema", "json_schema": vars(request.output)})
        return body


def _function(spec: Json) -> Json:
    return {"type": "function", "function": spec}


def _messages(messages: Sequence[SentMessage], dialect: ChatDialect, *, has_marks: bool) -> Iterator[Json]:
    ids = dialect.sent_ids(messages)
    for message in messages:
        if message.role == "assistant":
            yield from _answer_messages(message, dialect, ids)
        elif has_marks and message.is_marked:
            yield {"role": message.role, "content": [{"type": "text", "text": message.text, **CACHE_MARK}]}
        else:
            yield {"role": message.role, "content": message.text}


def _alternating(messages: Iterable[Json]) -> Iterator[Json]:
    """Arrange messages as the strictest servers and templates demand: one user message at a time, none after a tool's.

    The model has not answered a tool's output if its turn was stopped or a message joined it there.
    """
    held_back: Json | None = None
    for message in messages:
        role = held_back["role"] if held_back else ""
        if held_back and role == message["role"] == "user":
            held_back["content"] += f"\n\n{message['content']}"
            continue
        if held_back:
            yield held_back
        if role == "tool" and message["role"] == "user":
            yield {"role": "assistant", "content": "I have read the results."}
        held_back = message
    if held_back:
        yield held_back


def _answer_messages(message: SentMessage, dialect: ChatDialect, ids: Mapping[str, str]) -> Iterator[Json]:
    """Yield one message per step, each followed by the outputs of its tools. `ids` are from `ChatDialect.sent_ids`."""
    has_tools = any(isinstance(part, ToolPart) for step in message.steps for part in step)
    for step in message.steps:
        text = "".join(part.text for part in step if isinstance(part, TextPart))
        tools = [part for part in step if isinstance(part, ToolPart)]
        returned = _returned(step, dialect) if has_tools else {}
        extras = returned.pop("extra_content", {})
        if tools:
            calls = [
                {
                    "id": ids.get(part.call_id, part.call_id),
                    "type": "function",
                    "function": {"name": part.name, "arguments": to_json(part.input)},
                    **extras.get(part.call_id, {}),
                }
                for part in tools
            ]
            yield {"role": "assistant", "content": text or None, "tool_calls": calls, **returned}
        elif text:
            yield {"role": "assistant", "content": text, **returned}
        for part in tools:
            sent_id = ids.get(part.call_id, part.call_id)
            yield {"role": "tool", "tool_call_id": sent_id, "content": part.output}


def _returned(step: list[Part], dialect: ChatDialect) -> Json:
    """Return what the model requires back of its reasoning in later requests. No other model is sent it.

    DeepSeek and Kimi refuse a tool call without its `reasoning_content`, even an empty one; Gemini one without the
    signature in its `extra_content`, which OpenRouter sends in `reasoning_details`.
    """
    returned: Json = {}
    for part in step:
        if not isinstance(part, ReasoningPart) or (data := part.provider_data or {}).get("model") != dialect.model:
            continue
        if data.get("field") == "reasoning_content":
            returned["reasoning_content"] = returned.get("reasoning_content", "") + part.text
        if details := data.get("reasoning_details"):
            returned["reasoning_details"] = details
        if extra := data.get("extra_content"):
            returned.setdefault("extra_content", {})[data["call_id"]] = {"extra_content": extra}
    if dialect.needs_reasoning:
        returned["reasoning_content"] = returned.get("reasoning_content") or "."
    return returned


class ChatReader(ModelStreamReader):
    """Reads OpenAI's events, and the variants that compatible servers send."""

    _reason: FinishReason | None = None
    _usage = Usage()
    _is_wanted_back = False
    _has_reasoning = False

    def __init__(self, model: str = "") -> None:
        super().__init__(model)
        self._details: list[Json] = []

    def end(self) -> list[ModelEvent]:
        """Finish without usage, which a server may leave out. A finish reason is required."""
        if self._reason and not self.finished:
            self._finish(self._reason, self._usage)
        if self._details and self._calls:
            self._add_hidden(reasoning_details=self._details)
        return super().end()

    def _read(self, event: Json) -> None:
        if event is DONE_EVENT:
            # Some proxies leave the finish reason out.
            if self._reason is None and (self._has_text or self._calls) and all(map(_is_complete, self._calls)):
                self._reason = "stop"
            if self._reason and not self.finished:
                self._finish(self._reason, self._usage)
            return
        if event.get("error"):
            self._fail(event["error"])
        choices = event.get("choices") or ()
        for choice in choices:
            # A server that ignores `stream` sends the whole message.
            self._take((choice["delta"] if "delta" in choice else choice.get("message")) or {})
            if reason := choice.get("finish_reason"):
                if reason == "error":
                    self._fail(choice.get("error") or {})
                self._reason, self.has_ended = OTHER_NAMES.get(reason, "other"), True
        if event.get("usage"):
            self._usage = usage_of(event, "prompt", "completion")
            if self._reason and not choices:  # the usage comes last; with choices, it may come with each of them
                self._finish(self._reason, self._usage)

    def _fail(self, error: object) -> NoReturn:
        self._reason, self.has_ended = None, False
        raise reported(error)

    def _take(self, delta: Json) -> None:
        thought = delta.get("reasoning_content")
        if isinstance(thought, str):
            self._is_wanted_back = True
        if thought := thought or delta.get("reasoning"):
            self._reasoning(thought)
        if isinstance(details := delta.get("reasoning_details"), list):
            self._add_details(detail for detail in details if isinstance(detail, dict))
        content = delta.get("content")
        if isinstance(content, str):
            self._text(content)
        elif content:
            self._content_parts(content)
        if refusal := delta.get("refusal"):
            self._refusal(refusal)
        for annotation in objects_of(delta, "annotations"):
            if isinstance(cited := annotation.get("url_citation"), dict):
                self._cite(cited.get("url"), cited.get("title"))
        for piece in delta.get("tool_calls") or ():
            function = piece.get("function") or {}
            call = self._call_of(piece, function)
            if arguments := function.get("arguments"):
                self._delta(call, arguments if isinstance(arguments, str) else to_json(arguments))
            if extra := piece.get("extra_content"):
                self._add_hidden(call_id=call.call_id, extra_content=extra)

    def _end_reasoning(self, provider_data: dict[str, Any] | None = None) -> None:
        if self._is_reasoning and self._is_wanted_back:
            self._has_reasoning = True
            provider_data = {"model": self._model, "field": "reasoning_content"}
        super()._end_reasoning(provider_data)

    def _add_hidden(self, **data: Any) -> None:
        """Add reasoning that is not shown, but that the model requires back."""
        self._add(ModelReasoningDone({"model": self._model, **data}))

    def _add_details(self, details: Iterable[Json]) -> None:
        """Collect the details of the reasoning. The pieces of one text have the same type and index."""
        for detail in details:
            last = self._details[-1] if self._details else {}
            text, more = last.get("text"), detail.get("text")
            is_next = all(last.get(name) == detail.get(name) for name in ("type", "index"))
            if is_next and isinstance(text, str) and isinstance(more, str):
                last.update({name: value for name, value in detail.items() if value is not None}, text=text + more)
            else:
                self._details.append(dict(detail))

    def _content_parts(self, content: Any) -> None:
        """Read content as a list of typed parts: some servers send text and thinking this way."""
        for part in content if isinstance(content, list) else [content]:
            if isinstance(part, str):
                self._text(part)
            elif thought := part.get("thinking"):
                self._reasoning(thought if isinstance(thought, str) else "".join(piece["text"] for piece in thought))
            elif text := part.get("text"):
                self._text(text)

    def _call_of(self, piece: Json, function: Json) -> Call:
        """Find the call that a piece belongs to, or open one. Without an index the piece belongs to the last call."""
        index, call_id = piece.get("index"), piece.get("id")
        name: Any = function.get("name")
        call = self._by_index.get(index) if index is not None else next(reversed(self._calls), None)
        if call and not (name and _is_another(call, piece, function)):
            return call
        for earlier in self._calls:
            if _is_complete(earlier):
                self._close_call(earlier)
        if self._is_wanted_back and not self._has_reasoning:
            self._is_reasoning = True  # empty, and required back all the same
        return self._open_call(index, call_id or "", name)


class ThinkingReader(ChatReader):
    """Reads a server that sends the reasoning as text in `<think>` tags, because it has no parser for its model.

    Only tags at the beginning of an answer count: later ones are what the answer is about.
    """

    def __init__(self, mode: ThinkTagsMode, model: str = "") -> None:
        super().__init__(model)
        self._state: Literal["before", "inside", "text"] = "before" if mode == "both" else "inside"
        self._held = ""
        """Text that may be a part of a tag."""
        self._strips = False
        """Whether the space after a tag is still to be dropped."""

    def _text(self, text: str) -> None:
        text, self._held = self._held + text, ""
        if self._state == "before":
            start = text.lstrip()
            if start.startswith(_OPENING):
                self._state, self._strips, text = "inside", True, start[len(_OPENING) :]
            elif _OPENING.startswith(start):
                self._held = text
                return
            else:
                self._state = "text"
        if self._state == "inside":
            thought, closing, text = text.partition(_CLOSING)
            if not closing:
                self._held = _start_of_tag(thought)
            self._reasoning(self._stripped(thought[: len(thought) - len(self._held)]))
            if closing:
                self._state, self._strips = "text", True
        if self._state == "text":
            super()._text(self._stripped(text))

    def _stripped(self, text: str) -> str:
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        return text

    def _release(self) -> None:
        """Add what was held back: no tag follows."""
        held, self._held = self._held, ""
        if self._state == "inside":
            self._reasoning(held)
        else:
            self._state = "text"
            super()._text(held)

    def _open_call(self, index: object, call_id: str, name: str) -> Call:
        self._release()
        return super()._open_call(index, call_id, name)

    def _finish(self, reason: FinishReason, usage: Usage) -> None:
        self._release()
        super()._finish(reason, usage)


def _start_of_tag(text: str) -> str:
    """Return the end of a text that may be the start of a closing tag."""
    lengths = range(min(len(text), len(_CLOSING) - 1), 0, -1)
    return next((text[-length:] for length in lengths if _CLOSING.startswith(text[-length:])), "")


def _is_another(call: Call, piece: Json, function: Json) -> bool:
    """Whether a piece with a name opens another call: a server may repeat the name, the id or the index of a call.

    Without an id, another call has another name, or comes after the arguments of this one are complete.
    """
    if piece.get("id"):
        return bool(piece["id"] != call.sent_id)
    is_new = piece.get("index") is None or bool(function.get("arguments"))
    return bool(function["name"] != call.name) or (is_new and _is_complete(call))


def _is_complete(call: Call) -> bool:
    """Whether the arguments are valid JSON: nothing can be added to a closed object."""
    try:
        json.loads("".join(call.pieces))
    except ValueError:
        return False
    return True
