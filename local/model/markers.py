"""Markers: what a prompt may ask of the offline model, in square brackets.

    [tool:NAME {"a": 1}]   call this tool with these arguments; several are called in parallel
    [tool:NAME]            call it with arguments taken from the prompt
    [then]                 what follows belongs to the next step
    [bad-args:NAME]        call it with broken JSON, and correct that in the next step
    [loop:NAME]            call it in every step, forever
    [echo:TEXT] [long:N]   answer with this text, or with N tokens
    [burst:N]              answer with N tokens as fast as they are read, for benchmarks
    [cite:URL TITLE]       cite this page in the answer of the step
    [empty] [refuse]       answer with nothing, or with a refusal
    [length]               stop half way at the length limit
    [reason]               reason first, in every step
    [slow] [slow:MS]       take 100 or MS milliseconds per token, in every step
    [stall] [stall:first]  go silent half way, or before the first byte, until the client leaves
    [break]                cut the connection half way
    [failed]               report a failure half way through the stream
    [fail:STATUS]          answer with this HTTP error
    [fail-once:STATUS]     do that at the first attempt, answer at the second

A marker acts on the step in which it stands; only markers in the last user message act. In a request for a summary
or a chat name, markers act only when they are addressed to it: [summary:fail:500], [title:empty].
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from local.model.legible import legible

PLAIN = frozenset({"then", "empty", "refuse", "length", "reason", "slow", "stall", "break", "failed"})
WITH_VALUE = frozenset(
    {
        "tool",
        "bad-args",
        "loop",
        "echo",
        "cite",
        "long",
        "burst",
        "slow",
        "stall",
        "fail",
        "fail-once",
        "summary",
        "title",
    }
)
MAX_MARKERS = 500
_START = re.compile(r"\[([a-z-]{1,20})([:\]])")
_NUMBER = re.compile(r"[0-9]{1,9}")
_BRACKET = re.compile(r"[\[\]]")
_LONGEST_ARGUMENTS = 100_000
_TOOL_HEAD = re.compile(r"[\w-]{1,64}\s{0,20}")


@dataclass(frozen=True)
class Marker:
    name: str
    value: str = ""


@dataclass(frozen=True)
class Segment:
    """One step's share of a prompt: its markers, and the text without them."""

    text: str
    markers: tuple[Marker, ...] = ()

    def has(self, name: str) -> bool:
        return any(marker.name == name for marker in self.markers)

    def value(self, name: str) -> str | None:
        return next((marker.value for marker in self.markers if marker.name == name), None)

    def number(self, name: str) -> int | None:
        value = self.value(name)
        return int(value) if value and _NUMBER.fullmatch(value) else None

    def all(self, name: str) -> list[str]:
        return [marker.value for marker in self.markers if marker.name == name]


def segments(prompt: str) -> list[Segment]:
    """Cut a prompt at its `[then]` markers."""
    found: list[Segment] = []
    text, markers = "", list[Marker]()
    for piece in _pieces(prompt):
        if isinstance(piece, str):
            text += piece
        elif piece.name == "then":
            found.append(Segment(_tidy(text), tuple(markers)))
            text, markers = "", []
        else:
            markers.append(piece)
    return [*found, Segment(_tidy(text), tuple(markers))]


def plain(prompt: str) -> str:
    """The prompt as a person would have written it."""
    return _tidy("".join(piece for piece in _pieces(prompt) if isinstance(piece, str)))


def addressed(task: str, text: str) -> Segment:
    """The markers inside `text` that are addressed to a summary or a title."""
    values = [piece.value for piece in _pieces(text) if isinstance(piece, Marker) and piece.name == task]
    return Segment("", tuple(Marker(*value.split(":", 1)) for value in values))


def _pieces(prompt: str) -> Iterator[str | Marker]:
    position = found = 0
    ends: dict[int, int] | None = None
    for start in _START.finditer(prompt):
        name, sign = start.groups()
        if found == MAX_MARKERS:
            break
        if start.start() < position or name not in (WITH_VALUE if sign == ":" else PLAIN):
            continue
        if sign == "]":
            end: int | None = start.end()
        else:
            ends = _closing_brackets(prompt) if ends is None else ends
            end = (name == "tool" and _end_of_arguments(prompt, start.end())) or ends.get(start.start())
        if end is None:
            continue
        found += 1
        yield prompt[position : start.start()]
        yield Marker(name, prompt[start.end() : end - 1].strip() if sign == ":" else "")
        position = end
    yield prompt[position:]


def _end_of_arguments(prompt: str, start: int) -> int | None:
    """Where `NAME {...}]` ends: JSON strings may hold any bracket."""
    head = _TOOL_HEAD.match(prompt, start)
    if head is None:
        return None
    arguments = prompt[head.end() : head.end() + _LONGEST_ARGUMENTS]
    try:
        _, after = json.JSONDecoder().raw_decode(arguments)
    except (ValueError, RecursionError):
        return None
    return head.end() + after + 1 if arguments[after : after + 1] == "]" else None


def _closing_brackets(prompt: str) -> dict[int, int]:
    """Where each opening bracket is closed: behind the bracket that is its own, others may be nested in between."""
    closed: dict[int, int] = {}
    waiting: list[int] = []
    for bracket in _BRACKET.finditer(prompt):
        if bracket[0] == "[":
            waiting.append(bracket.start())
        elif waiting:
            closed[waiting.pop()] = bracket.end()
    return closed


def _tidy(text: str) -> str:
    return re.sub(r"[ \t]{2,}", " ", legible(text)).strip()
