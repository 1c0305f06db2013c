"""Decide what to answer: a pure function of the conversation."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Literal

from local.model import choice, demo, memory, prose, tokens
from local.model.answer import Answer, Delivery, Stall
from local.model.conversation import Call, Conversation
from local.model.legible import legible
from local.model.markers import Segment, addressed, segments

Task = Literal["answer", "summary", "title"]

BROKEN_ARGUMENTS = '{"broken": '
SLOW_SECONDS = 0.1
_TRANSCRIPT = re.compile(r"^(?:#|user:|assistant:)", re.IGNORECASE | re.MULTILINE)
_SPEECH = ("echo", "long", "burst", "empty", "refuse")
_ASKS_SUMMARY = re.compile(
    r"(?:^|[.!?:]\s)\W*(?:please )?(?:now )?summari[sz]e\b"
    r"|\b(?:write|produce|create|generate|return|update|give|(?:answer|reply|respond) with)\b[^.?!]{0,60}\bsummary\b",
    re.IGNORECASE | re.MULTILINE,
)
_CALLS_NOTHING = re.compile(r"\bcall no tools?\b", re.IGNORECASE)
_CONVERSATION = re.compile(r"\b(?:conversation|chat|messages|transcript|dialogue|exchange|so far)\b", re.IGNORECASE)
_ASKS_TITLE = re.compile(
    r"\b(?:name|title) (?:this|the|a|each|these)? ?(?:chat|conversation|session)s?\b"
    r"|\b(?:write|produce|create|generate|return|suggest|give|choose|find|(?:answer|reply|respond) with)\b"
    r"[^.?!]{0,60}\b(?:title|name)\b[^.?!]{0,60}\b(?:chat|conversation|session|exchange)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Step:
    """One request's share of a turn: its part of the prompt, and the tools to call."""

    segment: Segment
    calls: tuple[Call, ...] = ()


def decide(conversation: Conversation) -> tuple[Answer, Delivery]:
    """Say what comes next in a conversation."""
    task = task_of(conversation)
    if task == "answer":
        step = _current(conversation)
        answer = replace(_answer(step, conversation), sources=_sources(step.segment))
    else:
        said = (message.text for message in conversation.said("user"))
        step = _Step(addressed(task, "\n".join([conversation.instructions, *said])))
        text = memory.summary(conversation) if task == "summary" else memory.title(conversation)
        answer = _spoken(step.segment) or Answer(text=text)
    return _limited(answer, step.segment, conversation.max_tokens), _delivery(step.segment)


def task_of(conversation: Conversation) -> Task:
    """Tell a request for a summary or a chat name from a turn of the conversation, which has tools or a schema.

    A summary that begins with the prompt of a turn has its tools, and says that none may be called.
    """
    if conversation.tools or conversation.output:
        asked = conversation.prompt
        return "summary" if _CALLS_NOTHING.search(asked) and _ASKS_SUMMARY.search(asked) else "answer"
    # What a summary or a transcript in it says asks for nothing.
    texts = (conversation.instructions, conversation.prompt)
    told, asked = (legible(_TRANSCRIPT.split(text, maxsplit=1)[0]) for text in texts)
    if _ASKS_TITLE.search(told) or _ASKS_TITLE.search(asked):
        return "title"
    if _ASKS_SUMMARY.search(told) or (_ASKS_SUMMARY.search(asked) and _CONVERSATION.search(asked)):
        return "summary"
    return "answer"


def _current(conversation: Conversation) -> _Step:
    """The step the turn has come to: as many calls as were planned before it have been made."""
    made = conversation.calls_made
    parts = segments(conversation.prompt)
    for step in _steps(parts, conversation):
        if not step.calls or made < len(step.calls):
            return step if conversation.tool_choice != "none" else replace(step, calls=())
        made -= len(step.calls)
    lasting = (m for m in chain.from_iterable(part.markers for part in parts) if m.name in {"reason", "slow"})
    return _Step(Segment(parts[-1].text, tuple(lasting)))


def _steps(parts: list[Segment], conversation: Conversation) -> Iterator[_Step]:
    for index, part in enumerate(parts):
        planned = list(_planned(part, conversation))
        if not conversation.parallel:
            planned = [(call,) for calls in planned for call in calls]
        yield from (_Step(part, calls) for calls in planned)
        if name := part.value("loop"):
            while True:
                yield _Step(part, (choice.call_of(name, conversation, part.text),))
        if not planned and (index > 0 or part.markers):
            yield _Step(part)


def _planned(part: Segment, conversation: Conversation) -> Iterator[tuple[Call, ...]]:
    """The calls that one part of the prompt asks for."""
    for name in part.all("bad-args"):
        yield (Call(name, BROKEN_ARGUMENTS),)
        yield (choice.call_of(name, conversation, part.text),)
    if named := [_named(value, part, conversation) for value in part.all("tool")]:
        yield tuple(named)
    if part.has("tool") or part.has("bad-args") or part.has("loop"):
        return
    wanted = choice.steps(part.text, conversation)
    forced = {"required": [tool.name for tool in conversation.tools][:1], "auto": [], "none": []}
    names = forced.get(conversation.tool_choice, [conversation.tool_choice])
    if not wanted and names and not conversation.calls_made:
        wanted = [(choice.call_of(names[0], conversation, part.text),)]
    yield from wanted


def _named(value: str, part: Segment, conversation: Conversation) -> Call:
    name, _, arguments = value.partition(" ")
    return Call(name, arguments.strip()) if arguments.strip() else choice.call_of(name, conversation, part.text)


def _answer(step: _Step, conversation: Conversation) -> Answer:
    spoken = _spoken(step.segment)
    text = step.segment.text
    reasoning = prose.reasoning(text, conversation) if step.segment.has("reason") else ""
    if step.calls:
        return replace(spoken or Answer(), reasoning=reasoning, calls=step.calls, finish="tool_calls")
    if spoken:
        return replace(spoken, reasoning=reasoning) if reasoning else spoken
    results = conversation.results
    if conversation.output is not None:
        return Answer(reasoning=reasoning, text=choice.fitting(conversation.output, text, results))
    written = demo.answer(text, results) or (prose.report(results) if results else prose.reply(text, conversation))
    return Answer(reasoning=reasoning, text=written)


def _spoken(segment: Segment) -> Answer | None:
    """The answer that a marker dictates."""
    said = next((marker for marker in segment.markers if marker.name in _SPEECH), None)
    if said is None:
        return None
    match said.name:
        case "echo":
            return Answer(text=said.value)
        case "refuse":
            return Answer(refusal=prose.REFUSAL)
        case "empty":
            return Answer()
    return _of_length(segment.number(said.name) or 0)


def _sources(segment: Segment) -> tuple[tuple[str, str], ...]:
    cited = (value.partition(" ") for value in segment.all("cite"))
    return tuple((url, title.strip()) for url, _, title in cited)


@lru_cache(maxsize=16)  # a benchmark asks for the same answer again and again
def _of_length(length: int) -> Answer:
    return Answer(text=prose.long(length))


def _limited(answer: Answer, segment: Segment, limit: int | None) -> Answer:
    """Cut the answer where the length limit, or a marker, ends it."""
    if segment.has("failed"):
        return replace(answer, finish="failed")
    if segment.has("length"):
        if answer.calls:
            return replace(answer, calls=(*answer.calls[:-1], _halved(answer.calls[-1])), finish="length")
        return replace(answer, text=tokens.cut(answer.text, tokens.count(answer.text) // 2), finish="length")
    if limit is not None and answer.text and answer.output_tokens > limit:
        return replace(answer, text=tokens.cut(answer.text, limit - answer.reasoning_tokens), calls=(), finish="length")
    return answer


def _halved(call: Call) -> Call:
    return replace(call, arguments=call.arguments[: len(call.arguments) // 2])


def _delivery(segment: Segment) -> Delivery:
    slow = segment.number("slow")
    stall: Stall | None = None
    if segment.has("stall"):
        stall = "first" if segment.value("stall") == "first" else "middle"
    return Delivery(
        fail=segment.number("fail") or segment.number("fail-once"),
        only_once=segment.has("fail-once"),
        stall=stall,
        breaks=segment.has("break"),
        burst=segment.has("burst"),
        token_seconds=(slow / 1000 if slow is not None else SLOW_SECONDS) if segment.has("slow") else None,
    )
