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
from itertools import count
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
            item = self._next(request)
            answer = item(request) if callable(item) else item
            if inspect.isawaitable(answer):
                answer = await answer
            beats = answer if isinstance(answer, Iterable) and not isinstance(answer, str) else (answer,)
            for event in _played(beats, request):
                if isinstance(event, asyncio.Event):
                    await event.wait()
                    continue
                yield event
                # A real model lets others run between two deltas.
                await asyncio.sleep(0)
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


def _played(beats: Iterable[Beat], request: ModelRequest) -> Iterator[ModelEvent | asyncio.Event]:
    """Yield the events of one answer, and its pauses."""
    parts = [part for message in request.messages for part in message.parts]
    taken = {part.call_id for part in parts if isinstance(part, ToolPart)}
    written = 0
    called = finished = False
    for beat in beats:
        if isinstance(beat, BaseException):
            raise beat
        if isinstance(beat, str):
            words = _WORD.findall(beat)
            written += len(words)
            yield from map(ModelText, words)
        elif isinstance(beat, ToolCall):
            called = True
            text = beat.arguments if isinstance(beat.arguments, str) else json.dumps(dict(beat.arguments))
            written += _words(f"{beat.name} {text}")
            new_ids = (f"call_{number}" for number in count(len(taken) + 1))
            call_id = beat.call_id or next(new_id for new_id in new_ids if new_id not in taken)
            taken.add(call_id)
            yield ModelToolStart(call_id, beat.name)
            if text:
                yield ModelToolDelta(call_id, text)
            yield ModelToolCall(call_id, beat.name, text or "{}")
        else:
            called = called or isinstance(beat, ModelToolCall)
            finished = finished or isinstance(beat, ModelFinish)
            yield beat
    if not finished:
        read = sum(map(_words, (request.instructions, *(message.text for message in request.messages))))
        yield ModelFinish("tool-calls" if called else "stop", Usage(read, written))


def _words(text: str) -> int:
    return len(text.split())
