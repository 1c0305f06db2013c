"""A model that plays a script, for testing an agent without a network or a key.

    model = ScriptedModel(ToolCall("refund", {"order": "42"}), "Done.", ModelUnavailable())

Each call of the model takes the next item of the script:

    "Hello there."                      text, streamed word by word
    ToolCall("refund", {"order": "42"}) a tool call
    ["One moment.", ToolCall(...)]      one answer made of several things: texts, tool calls, `ModelEvent`s
    ["Hello", gate, " there."]          a pause until the `Gate` (or any `asyncio.Event`) is set
    ["Hel", ModelStreamBroken()]        a failure in the middle; alone, an exception fails the whole call
    lambda request: ...                 a function of the `ModelRequest` that returns one of these, or an awaitable

Summaries and names are not part of the script: they have their own answers.
"""

import asyncio
import inspect
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from omniagent.ai.providers.llm_provider import (
    LLMProvider,
    ModelEvent,
    ModelFinish,
    ModelRequest,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
)
from omniagent.errors import ConfigurationError
from omniagent.messages import ToolPart, Usage

_WORD = re.compile(r"\s*\S+|\s+$")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the script. Arguments given as text are sent as they are, also when they are not JSON."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    call_id: str = ""
    """Empty: an id that no earlier call of the conversation has."""


class Gate(asyncio.Event):
    """A pause in a script. `await gate.reached()` returns once the model waits there; `gate.set()` resumes it."""

    def __init__(self) -> None:
        super().__init__()
        self._reached = asyncio.Event()

    async def wait(self) -> bool:  # type: ignore[override] # typeshed says Literal[True]
        self._reached.set()
        return await super().wait()

    async def reached(self) -> None:
        await self._reached.wait()


Beat = str | ToolCall | ModelEvent | asyncio.Event | BaseException
"""One thing that happens within an answer."""
Answer = Beat | Iterable[Beat]
ScriptItem = Answer | Callable[[ModelRequest], Answer | Awaitable[Answer]]


class ScriptedModel(LLMProvider):
    """Plays the given answers in order and keeps every request in `requests`.

    `default` answers when the script is used up; without it, the call raises `ConfigurationError`. Tokens are counted
    as words, unless the script has its own `ModelFinish`. `running` is the number of calls that have not ended.

    A tool that raises anything but a `ToolError` fails the test: `Runner.run` and `AnswerStream.result` raise
    `ToolFailed` from it. With `tools_may_crash`, the model reads that the tool failed, as a real one would.
    """

    system = "scripted"

    def __init__(
        self,
        *script: ScriptItem,
        default: ScriptItem | None = None,
        summary: ScriptItem = "A summary.",
        name: ScriptItem = "A chat",
        model: str = "scripted",
        tools_may_crash: bool = False,
    ) -> None:
        super().__init__(model)
        self.tools_may_crash = tools_may_crash
        for item in (*script, summary, name, *(() if default is None else (default,))):
            _check_item(item)
        self.requests: list[ModelRequest] = []
        self.running = 0
        self._script = script
        self._default = default
        self._own_answers: dict[str, ScriptItem] = {"summary": summary, "name": name}
        self._played = 0

    @property
    def remaining(self) -> int:
        """The number of items that were not played yet: 0 at the end of a test whose script was right."""
        return len(self._script) - self._played

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(request)
        self.running += 1
        try:
            performance = _Performance(request)
            for beat in _beats(await _resolved(self._next(request), request)):
                if isinstance(beat, asyncio.Event):
                    await beat.wait()
                    continue
                for event in performance.events(beat):
                    yield event
                    # A real model lets others run between two deltas.
                    await asyncio.sleep(0)
            for event in performance.end():
                yield event
        finally:
            self.running -= 1

    def _next(self, request: ModelRequest) -> ScriptItem:
        if request.purpose in self._own_answers:
            return self._own_answers[request.purpose]
        if self._played < len(self._script):
            self._played += 1
            return self._script[self._played - 1]
        if self._default is not None:
            return self._default
        last = request.messages[-1].text if request.messages else ""
        raise ConfigurationError(
            f"ScriptedModel: the script has {len(self._script)} answers and the model was called once more. "
            f"Add an answer or `default=...`. The last message of the request: {last!r}"
        )


def _check_item(item: object) -> None:
    for beat in item if isinstance(item, list | tuple) else (item,):
        is_iterator = beat is item and isinstance(beat, Iterable) and not isinstance(beat, dict | bytes)
        if not (isinstance(beat, Beat) or is_iterator or callable(beat)):
            raise ConfigurationError(
                f"ScriptedModel: {beat!r:.100} is no answer: write text, ToolCall(…), an event such as ModelText(…), "
                "an exception, a function of the request, or a list of these"
            )


async def _resolved(item: ScriptItem, request: ModelRequest) -> Answer:
    if not callable(item):
        return item
    answer = item(request)
    return await answer if inspect.isawaitable(answer) else answer


def _beats(answer: Answer) -> Iterator[Beat]:
    if isinstance(answer, Iterable) and not isinstance(answer, str):
        yield from answer
    else:
        yield answer


class _Performance:
    """One answer as it is played."""

    def __init__(self, request: ModelRequest) -> None:
        parts = [part for message in request.messages for part in message.parts]
        self._call_ids = {part.call_id for part in parts if isinstance(part, ToolPart)}
        self._input_tokens = sum(_words(text) for text in (request.instructions, *(m.text for m in request.messages)))
        self._output_tokens = 0
        self._called = False
        self._finished = False

    def events(self, beat: Beat) -> Iterator[ModelEvent]:
        if isinstance(beat, BaseException):
            raise beat
        if isinstance(beat, str):
            for word in _WORD.findall(beat):
                self._output_tokens += 1
                yield ModelText(word)
        elif isinstance(beat, ToolCall):
            yield from self._call(beat)
        elif not isinstance(beat, asyncio.Event):
            self._called = self._called or isinstance(beat, ModelToolCall)
            self._finished = self._finished or isinstance(beat, ModelFinish)
            yield beat

    def end(self) -> Iterator[ModelEvent]:
        if not self._finished:
            usage = Usage(self._input_tokens, self._output_tokens)
            yield ModelFinish("tool-calls" if self._called else "stop", usage)

    def _call(self, call: ToolCall) -> Iterator[ModelEvent]:
        self._called = True
        text = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
        self._output_tokens += _words(f"{call.name} {text}")
        call_id = call.call_id or self._new_id()
        yield ModelToolStart(call_id, call.name)
        if text:
            yield ModelToolDelta(call_id, text)
        yield ModelToolCall(call_id, call.name, text or "{}")

    def _new_id(self) -> str:
        number = len(self._call_ids) + 1
        while (call_id := f"call_{number}") in self._call_ids:
            number += 1
        self._call_ids.add(call_id)
        return call_id


def _words(text: str) -> int:
    return len(text.split())
