"""Every way a turn can go, as a table: what is asked, streamed and stored. Every provider gives the same."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omniagent import Agent, Tool, ToolError, tool
from omniagent.messages import ORPHAN_ERROR, FinishReason, Status

Json = dict[str, Any]
FALLBACK = "Sorry, I could not answer that. Please try again."
MODEL_ERROR = "The model could not answer. Try again in a moment."
INVALID = "The model called the tool with invalid arguments."


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def lookup(city: str) -> str:
    """Look a city up."""
    raise ToolError(f"There is no city {city!r}: ask for another one.")


@tool
async def explode(reason: str) -> str:
    """Break."""
    raise RuntimeError(f"secret of the tool: {reason}")


@tool(timeout_seconds=0.02)
async def sleep(forever: bool) -> str:
    """Never answer."""
    await asyncio.Event().wait()
    return "awake"


@tool
def recite(letters: int) -> str:
    """Recite a long text."""
    return "x" * letters


def relay() -> Sequence[Tool]:
    """Two tools of which the first waits for the second: run one after the other they would never end."""
    second_is_done = asyncio.Event()

    @tool
    async def first() -> str:
        """Wait for the second."""
        await second_is_done.wait()
        return "first"

    @tool
    async def second() -> str:
        """Let the first go on."""
        second_is_done.set()
        return "second"

    return first, second


def agent() -> Agent:
    return Agent("helper", "Be helpful.", [add, lookup, explode, sleep, recite, *relay()])


@dataclass(frozen=True)
class Scenario:
    """A prompt for the offline model, the steps of the stream that answers it, and the parts that are stored."""

    name: str
    prompt: str
    steps: Sequence[Sequence[str]]
    parts: Sequence[Json]
    status: Status = "complete"
    reason: FinishReason = "stop"
    error: str | None = None
    settings: Json = field(default_factory=dict)

    @property
    def stream(self) -> list[str]:
        steps = [line for step in self.steps for line in ("start-step", *step, "finish-step")]
        failed = [f"error {self.error}"] if self.error else []
        return ["start", *steps, f"finish {self.reason}", f"data-session {self.status}", *failed]


def text(words: str, block: int = 0) -> list[str]:
    return [f"text-start {block}", f"text-delta {block} {words}", f"text-end {block}"]


def reasoning(words: str, block: int = 0) -> list[str]:
    return [f"reasoning-start {block}", f"reasoning-delta {block} {words}", f"reasoning-end {block}"]


def call(number: int, name: str, arguments: str) -> list[str]:
    return [f"tool-input-start #{number} {name}", f"tool-input-delta #{number} {arguments}"]


def called(number: int, name: str, arguments: str, result: str) -> list[str]:
    kind, _, value = result.partition(" ")
    available = f"tool-input-available #{number} {name} {arguments}"
    return [*call(number, name, arguments), available, f"tool-output-{kind} #{number} {value}"]


STEP: Json = {"type": "step-start"}


def said(words: str) -> Json:
    return {"type": "text", "text": words}


def cited(url: str, title: str | None = None) -> Json:
    return {"type": "source", "url": url, "title": title, "media_type": None, "filename": None}


def used(name: str, arguments: Any, output: Any = None, *, error: str | None = None, public: str | None = None) -> Json:
    return {
        "type": "tool",
        "name": name,
        "input": arguments,
        "output": output,
        "error": error,
        "public_error": public,
        "done": True,
    }


THOUGHT = (
    "**Reading the request**\n\nThe user asks about Why. I can use add, explode, first, lookup, recite, second, sleep. "
    "0 results are in. I will answer briefly and stay with the facts."
)

SCENARIOS = [
    Scenario(
        "text",
        "[echo:Hello there.]",
        [text("Hello there.")],
        [STEP, said("Hello there.")],
    ),
    Scenario(
        "reasoning",
        "[reason] [echo:Because.] Why?",
        [[*reasoning(THOUGHT), *text("Because.", 1)]],
        [STEP, {"type": "reasoning", "text": THOUGHT}, said("Because.")],
    ),
    Scenario(
        "one tool",
        '[tool:add {"a": 1, "b": 2}] [then] [echo:Three.]',
        [called(1, "add", '{"a": 1, "b": 2}', "available 3"), text("Three.")],
        [STEP, used("add", {"a": 1, "b": 2}, 3), STEP, said("Three.")],
    ),
    Scenario(
        "text before a tool",
        '[echo:Let me see.] [tool:add {"a": 1, "b": 2}] [then] [echo:Three.]',
        [[*text("Let me see."), *called(1, "add", '{"a": 1, "b": 2}', "available 3")], text("Three.", 1)],
        [STEP, said("Let me see."), used("add", {"a": 1, "b": 2}, 3), STEP, said("Three.")],
    ),
    Scenario(
        "parallel tools",
        "[tool:first {}] [tool:second {}] [then] [echo:Both.]",
        [
            [
                *call(1, "first", "{}"),
                *call(2, "second", "{}"),
                "tool-input-available #1 first {}",
                "tool-input-available #2 second {}",
                'tool-output-available #2 "second"',
                'tool-output-available #1 "first"',
            ],
            text("Both."),
        ],
        [STEP, used("first", {}, "first"), used("second", {}, "second"), STEP, said("Both.")],
    ),
    Scenario(
        "chain",
        '[tool:add {"a": 1, "b": 2}] [then] [tool:add {"a": 3, "b": 3}] [then] [echo:Six.]',
        [
            called(1, "add", '{"a": 1, "b": 2}', "available 3"),
            called(2, "add", '{"a": 3, "b": 3}', "available 6"),
            text("Six."),
        ],
        [STEP, used("add", {"a": 1, "b": 2}, 3), STEP, used("add", {"a": 3, "b": 3}, 6), STEP, said("Six.")],
    ),
    Scenario(
        "tool error",
        '[tool:lookup {"city": "Atlantis"}] [then] [echo:Which one?]',
        [called(1, "lookup", '{"city": "Atlantis"}', "error The tool reported an error."), text("Which one?")],
        [
            STEP,
            used(
                "lookup",
                {"city": "Atlantis"},
                error="There is no city 'Atlantis': ask for another one.",
                public="The tool reported an error.",
            ),
            STEP,
            said("Which one?"),
        ],
    ),
    Scenario(
        "invalid arguments",
        '[tool:add {"a": "one", "b": 2}] [then] [echo:Hm.]',
        [called(1, "add", '{"a": "one", "b": 2}', f"error {INVALID}"), text("Hm.")],
        [
            STEP,
            used(
                "add",
                {"a": "one", "b": 2},
                error="Invalid arguments for add: "
                "a: Input should be a valid integer, unable to parse string as an integer",
                public=INVALID,
            ),
            STEP,
            said("Hm."),
        ],
    ),
    Scenario(
        "arguments that are not JSON, corrected",
        "[bad-args:add] Add 2 and 3. [then] [echo:Five.]",
        [
            [*call(1, "add", '{"broken": '), f'tool-input-error #1 add "{{\\"broken\\": " {INVALID}'],
            called(2, "add", '{"a": 2, "b": 3}', "available 5"),
            text("Five."),
        ],
        [
            STEP,
            used(
                "add",
                '{"broken": ',
                error="The arguments of add are not valid JSON: Expecting value: line 1 column 12 (char 11)",
                public=INVALID,
            ),
            STEP,
            used("add", {"a": 2, "b": 3}, 5),
            STEP,
            said("Five."),
        ],
    ),
    Scenario(
        "unknown tool",
        "[tool:fly {}] [then] [echo:I cannot.]",
        [called(1, "fly", "{}", "error The model called a tool that does not exist."), text("I cannot.")],
        [
            STEP,
            used(
                "fly",
                {},
                error="There is no tool 'fly'. Available: add, lookup, explode, sleep, recite, first, second.",
                public="The model called a tool that does not exist.",
            ),
            STEP,
            said("I cannot."),
        ],
    ),
    Scenario(
        "raising tool",
        '[tool:explode {"reason": "now"}] [then] [echo:Sorry.]',
        [called(1, "explode", '{"reason": "now"}', "error The tool failed."), text("Sorry.")],
        [
            STEP,
            used(
                "explode",
                {"reason": "now"},
                error="explode failed. Try something else or tell the user.",
                public="The tool failed.",
            ),
            STEP,
            said("Sorry."),
        ],
    ),
    Scenario(
        "tool timeout",
        '[tool:sleep {"forever": true}] [then] [echo:Too slow.]',
        [called(1, "sleep", '{"forever": true}', "error The tool took too long."), text("Too slow.")],
        [
            STEP,
            used(
                "sleep",
                {"forever": True},
                error="sleep did not answer within 0.02 seconds.",
                public="The tool took too long.",
            ),
            STEP,
            said("Too slow."),
        ],
    ),
    Scenario(
        "output cap",
        '[tool:recite {"letters": 20030}] [then] [echo:Long.]',
        [
            called(1, "recite", '{"letters": 20030}', f'available "{"x" * 20_000}\\n[cut: 30 more characters]"'),
            text("Long."),
        ],
        [STEP, used("recite", {"letters": 20030}, f"{'x' * 20_000}\n[cut: 30 more characters]"), STEP, said("Long.")],
    ),
    Scenario(
        "sources",
        "[echo:As they say.] [cite:https://a.example/1 One] [cite:https://b.example] [cite:https://a.example/1 One]",
        [[*text("As they say."), "source-url https://a.example/1 One", "source-url https://b.example"]],
        [STEP, said("As they say."), cited("https://a.example/1", "One"), cited("https://b.example")],
    ),
    Scenario(
        "refusal",
        "[refuse]",
        [text("I'm sorry, but I can't help with that request.")],
        [STEP, said("I'm sorry, but I can't help with that request.")],
        reason="content-filter",
    ),
    Scenario(
        "length",
        "[length] [echo:one two three four five six]",
        [text("one two three")],
        [STEP, said("one two three")],
        reason="length",
    ),
    Scenario(
        "model failure before the stream",
        "[fail:500] Hello?",
        [text(FALLBACK)],
        [STEP, said(FALLBACK)],
        status="failed",
        reason="error",
        error=MODEL_ERROR,
    ),
    Scenario(
        "model that refuses the key",
        "[fail:401] Hello?",
        [text(FALLBACK)],
        [STEP, said(FALLBACK)],
        status="failed",
        reason="error",
        error=MODEL_ERROR,
    ),
    Scenario(
        "model failure in the middle of the stream",
        "[break] [echo:one two three four]",
        [[*text("one two three"), *text(f"\n\n{FALLBACK}", 1)]],
        [STEP, said("one two three"), said(f"\n\n{FALLBACK}")],
        status="failed",
        reason="error",
        error=MODEL_ERROR,
    ),
    Scenario(
        "model that reports a failure in the middle of the stream",
        "[failed] [echo:one two three four]",
        [[*text("one two three"), *text(f"\n\n{FALLBACK}", 1)]],
        [STEP, said("one two three"), said(f"\n\n{FALLBACK}")],
        status="failed",
        reason="error",
        error=MODEL_ERROR,
    ),
    Scenario(
        "model failure in the middle of a tool call",
        '[break] [tool:add {"a": 1, "b": 2}]',
        [[*call(1, "add", '{"a": 1,'), f'tool-input-error #1 add "" {ORPHAN_ERROR}', *text(FALLBACK)]],
        [STEP, used("add", "", error=ORPHAN_ERROR, public=ORPHAN_ERROR), said(FALLBACK)],
        status="failed",
        reason="error",
        error=MODEL_ERROR,
    ),
    Scenario(
        "model failure in the second step",
        '[tool:add {"a": 1, "b": 2}] [then] [fail:500]',
        [called(1, "add", '{"a": 1, "b": 2}', "available 3"), text(FALLBACK)],
        [STEP, used("add", {"a": 1, "b": 2}, 3), STEP, said(FALLBACK)],
        status="failed",
        reason="error",
        error=MODEL_ERROR,
    ),
    Scenario(
        "too many steps",
        "[loop:add] 1 and 2",
        [
            called(1, "add", '{"a": 1, "b": 2}', "available 3"),
            called(2, "add", '{"a": 1, "b": 2}', "available 3"),
            text(FALLBACK),
        ],
        [STEP, used("add", {"a": 1, "b": 2}, 3), STEP, used("add", {"a": 1, "b": 2}, 3), STEP, said(FALLBACK)],
        status="failed",
        reason="error",
        error="The answer needed more steps than are allowed. Try a smaller request.",
        settings={"max_steps": 2},
    ),
    Scenario(
        "empty answer",
        "[empty]",
        [text(FALLBACK)],
        [STEP, said(FALLBACK)],
        status="failed",
        reason="error",
        error=MODEL_ERROR,
    ),
]
