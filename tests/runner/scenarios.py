"""Every way a turn can go, as a table: what is asked, streamed and stored. Every provider gives the same."""

import asyncio
import json
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
    """A prompt for the offline model, and the events of each step of its answer."""

    name: str
    prompt: str
    steps: Sequence[Sequence[str]]
    status: Status = "complete"
    reason: FinishReason = "stop"
    error: str | None = None
    reads: Sequence[str] = ()
    """What the model reads of tool calls that failed."""
    settings: Json = field(default_factory=dict)

    @property
    def stream(self) -> list[str]:
        events = [event for step in self.steps for event in ("start-step", *step, "finish-step")]
        failed = [f"error {self.error}"] if self.error else []
        return ["start", *events, f"finish {self.reason}", f"data-session {self.status}", *failed]


def text(words: str, block: int = 0, *, kind: str = "text") -> list[str]:
    """The events of a text."""
    return [f"{kind}-start {block}", f"{kind}-delta {block} {words}", f"{kind}-end {block}"] if words else []


def call(number: int, name: str, arguments: str) -> list[str]:
    """The events of a tool call up to its arguments."""
    return [f"tool-input-start #{number} {name}", f"tool-input-delta #{number} {arguments}"]


def uses(number: int, name: str, arguments: str, output: Any = None, *, error: str | None = None) -> list[str]:
    result = f"available #{number} {json.dumps(output)}" if error is None else f"error #{number} {error}"
    available = f"tool-input-available #{number} {name} {arguments}"
    return [*call(number, name, arguments), available, f"tool-output-{result}"]


THOUGHT = (
    "**Reading the request**\n\nThe user asks about Why. I can use add, explode, first, lookup, recite, second, sleep. "
    "0 results are in. I will answer briefly and stay with the facts."
)
ADDS = uses(1, "add", '{"a": 1, "b": 2}', 3)
BOTH = [
    *call(1, "first", "{}"),
    *call(2, "second", "{}"),
    "tool-input-available #1 first {}",
    "tool-input-available #2 second {}",
    'tool-output-available #2 "second"',
    'tool-output-available #1 "first"',
]
NOT_JSON = "The arguments of add are not valid JSON: Expecting value: line 1 column 12 (char 11)"
NO_CITY = "There is no city 'Atlantis': ask for another one."
NO_NUMBER = "Invalid arguments for add: a: Input should be a valid integer, unable to parse string as an integer"
NO_TOOL = "There is no tool 'fly'. Available: add, lookup, explode, sleep, recite, first, second."
CRASHED = "explode failed. Try something else or tell the user."
BROKEN = [[*text("one two three"), *text(f"\n\n{FALLBACK}", 1)]]
FAILED: Json = {"status": "failed", "reason": "error", "error": MODEL_ERROR}

SCENARIOS = [
    Scenario("text", "[echo:Hello there.]", [text("Hello there.")]),
    Scenario("reasoning", "[reason] [echo:Because.] Why?", [[*text(THOUGHT, kind="reasoning"), *text("Because.", 1)]]),
    Scenario("one tool", '[tool:add {"a": 1, "b": 2}] [then] [echo:Three.]', [ADDS, text("Three.")]),
    Scenario(
        "text before a tool",
        '[echo:Let me see.] [tool:add {"a": 1, "b": 2}] [then] [echo:Three.]',
        [[*text("Let me see."), *ADDS], text("Three.", 1)],
    ),
    Scenario("parallel tools", "[tool:first {}] [tool:second {}] [then] [echo:Both.]", [BOTH, text("Both.")]),
    Scenario(
        "chain",
        '[tool:add {"a": 1, "b": 2}] [then] [tool:add {"a": 3, "b": 3}] [then] [echo:Six.]',
        [ADDS, uses(2, "add", '{"a": 3, "b": 3}', 6), text("Six.")],
    ),
    Scenario(
        "tool error",
        '[tool:lookup {"city": "Atlantis"}] [then] [echo:Which one?]',
        [uses(1, "lookup", '{"city": "Atlantis"}', error="The tool reported an error."), text("Which one?")],
        reads=[NO_CITY],
    ),
    Scenario(
        "invalid arguments",
        '[tool:add {"a": "one", "b": 2}] [then] [echo:Hm.]',
        [uses(1, "add", '{"a": "one", "b": 2}', error=INVALID), text("Hm.")],
        reads=[NO_NUMBER],
    ),
    Scenario(
        "arguments that are not JSON, corrected",
        "[bad-args:add] Add 2 and 3. [then] [echo:Five.]",
        [
            [*call(1, "add", '{"broken": '), f'tool-input-error #1 add "{{\\"broken\\": " {INVALID}'],
            uses(2, "add", '{"a": 2, "b": 3}', 5),
            text("Five."),
        ],
        reads=[NOT_JSON],
    ),
    Scenario(
        "unknown tool",
        "[tool:fly {}] [then] [echo:I cannot.]",
        [uses(1, "fly", "{}", error="The model called a tool that does not exist."), text("I cannot.")],
        reads=[NO_TOOL],
    ),
    Scenario(
        "raising tool",
        '[tool:explode {"reason": "now"}] [then] [echo:Sorry.]',
        [uses(1, "explode", '{"reason": "now"}', error="The tool failed."), text("Sorry.")],
        reads=[CRASHED],
    ),
    Scenario(
        "tool timeout",
        '[tool:sleep {"forever": true}] [then] [echo:Too slow.]',
        [uses(1, "sleep", '{"forever": true}', error="The tool took too long."), text("Too slow.")],
        reads=["sleep did not answer within 0.02 seconds."],
    ),
    Scenario(
        "output cap",
        '[tool:recite {"letters": 20030}] [then] [echo:Long.]',
        [uses(1, "recite", '{"letters": 20030}', f"{'x' * 20_000}\n[cut: 30 more characters]"), text("Long.")],
    ),
    Scenario(
        "sources",
        "[echo:As they say.] [cite:https://a.example/1 One] [cite:https://b.example] [cite:https://a.example/1 One]",
        [[*text("As they say."), "source-url https://a.example/1 One", "source-url https://b.example"]],
    ),
    Scenario("refusal", "[refuse]", [text("I'm sorry, but I can't help with that request.")], reason="content-filter"),
    Scenario("length", "[length] [echo:one two three four five six]", [text("one two three")], reason="length"),
    Scenario("model failure before the stream", "[fail:500] Hello?", [text(FALLBACK)], **FAILED),
    Scenario("model that refuses the key", "[fail:401] Hello?", [text(FALLBACK)], **FAILED),
    Scenario("model failure in the middle of the stream", "[break] [echo:one two three four]", BROKEN, **FAILED),
    Scenario(
        "model that reports a failure in the middle of the stream",
        "[failed] [echo:one two three four]",
        BROKEN,
        **FAILED,
    ),
    Scenario(
        "model failure in the middle of a tool call",
        '[break] [tool:add {"a": 1, "b": 2}]',
        [[*call(1, "add", '{"a": 1,'), f'tool-input-error #1 add "" {ORPHAN_ERROR}', *text(FALLBACK)]],
        reads=[ORPHAN_ERROR],
        **FAILED,
    ),
    Scenario(
        "model failure in the second step",
        '[tool:add {"a": 1, "b": 2}] [then] [fail:500]',
        [ADDS, text(FALLBACK)],
        **FAILED,
    ),
    Scenario(
        "too many steps",
        "[loop:add] 1 and 2",
        [ADDS, uses(2, "add", '{"a": 1, "b": 2}', 3), text(FALLBACK)],
        status="failed",
        reason="error",
        error="The answer needed more steps than are allowed. Try a smaller request.",
        settings={"max_steps": 2},
    ),
    Scenario("empty answer", "[empty]", [text(FALLBACK)], **FAILED),
]
