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
class Shown:
    """A piece of an answer: its events, and the parts that are stored."""

    events: Sequence[str]
    parts: Sequence[Json]


@dataclass(frozen=True)
class Scenario:
    """A prompt for the offline model, and the steps of its answer."""

    name: str
    prompt: str
    steps: Sequence[Sequence[Shown]]
    status: Status = "complete"
    reason: FinishReason = "stop"
    error: str | None = None
    settings: Json = field(default_factory=dict)

    @property
    def stream(self) -> list[str]:
        steps = [[event for piece in step for event in piece.events] for step in self.steps]
        events = [event for step in steps for event in ("start-step", *step, "finish-step")]
        failed = [f"error {self.error}"] if self.error else []
        return ["start", *events, f"finish {self.reason}", f"data-session {self.status}", *failed]

    @property
    def parts(self) -> list[Json]:
        steps = [[part for piece in step for part in piece.parts] for step in self.steps]
        return [part for step in steps for part in (STEP, *step)]


STEP: Json = {"type": "step-start"}


def text(words: str, block: int = 0) -> list[str]:
    """The events of a text."""
    return [f"text-start {block}", f"text-delta {block} {words}", f"text-end {block}"]


def said(words: str) -> Json:
    """The part of a text."""
    return {"type": "text", "text": words}


def says(words: str, block: int = 0) -> Shown:
    return Shown(text(words, block), [said(words)])


def thinks(words: str, block: int = 0) -> Shown:
    events = [f"reasoning-start {block}", f"reasoning-delta {block} {words}", f"reasoning-end {block}"]
    return Shown(events, [{"type": "reasoning", "text": words}])


def call(number: int, name: str, arguments: str) -> list[str]:
    """The events of a tool call up to its arguments."""
    return [f"tool-input-start #{number} {name}", f"tool-input-delta #{number} {arguments}"]


def used(name: str, arguments: Any, output: Any = None, *, error: str | None = None, public: str | None = None) -> Json:
    """The part of a tool call."""
    return {
        "type": "tool",
        "name": name,
        "input": arguments,
        "output": output,
        "error": error,
        "public_error": public,
        "done": True,
    }


def uses(
    number: int, name: str, arguments: str, output: Any = None, *, error: str | None = None, public: str | None = None
) -> Shown:
    result = f"available #{number} {json.dumps(output)}" if error is None else f"error #{number} {public}"
    available = f"tool-input-available #{number} {name} {arguments}"
    events = [*call(number, name, arguments), available, f"tool-output-{result}"]
    return Shown(events, [used(name, json.loads(arguments), output, error=error, public=public)])


def cites(url: str, title: str | None = None) -> Shown:
    part = {"type": "source", "url": url, "title": title, "media_type": None, "filename": None}
    return Shown([f"source-url {url} {title or ''}".rstrip()], [part])


THOUGHT = (
    "**Reading the request**\n\nThe user asks about Why. I can use add, explode, first, lookup, recite, second, sleep. "
    "0 results are in. I will answer briefly and stay with the facts."
)
ADDS = uses(1, "add", '{"a": 1, "b": 2}', 3)
BOTH = Shown(
    [
        *call(1, "first", "{}"),
        *call(2, "second", "{}"),
        "tool-input-available #1 first {}",
        "tool-input-available #2 second {}",
        'tool-output-available #2 "second"',
        'tool-output-available #1 "first"',
    ],
    [used("first", {}, "first"), used("second", {}, "second")],
)
NOT_JSON = Shown(
    [*call(1, "add", '{"broken": '), f'tool-input-error #1 add "{{\\"broken\\": " {INVALID}'],
    [
        used(
            "add",
            '{"broken": ',
            error="The arguments of add are not valid JSON: Expecting value: line 1 column 12 (char 11)",
            public=INVALID,
        )
    ],
)
CUT_OFF = Shown(
    [*call(1, "add", '{"a": 1,'), f'tool-input-error #1 add "" {ORPHAN_ERROR}'],
    [used("add", "", error=ORPHAN_ERROR, public=ORPHAN_ERROR)],
)
NO_CITY = "There is no city 'Atlantis': ask for another one."
NO_NUMBER = "Invalid arguments for add: a: Input should be a valid integer, unable to parse string as an integer"
NO_TOOL = "There is no tool 'fly'. Available: add, lookup, explode, sleep, recite, first, second."
CRASHED = "explode failed. Try something else or tell the user."
SORRY = [says(FALLBACK)]
BROKEN = [says("one two three"), says(f"\n\n{FALLBACK}", 1)]
FAILED: Json = {"status": "failed", "reason": "error", "error": MODEL_ERROR}

SCENARIOS = [
    Scenario("text", "[echo:Hello there.]", [[says("Hello there.")]]),
    Scenario("reasoning", "[reason] [echo:Because.] Why?", [[thinks(THOUGHT), says("Because.", 1)]]),
    Scenario("one tool", '[tool:add {"a": 1, "b": 2}] [then] [echo:Three.]', [[ADDS], [says("Three.")]]),
    Scenario(
        "text before a tool",
        '[echo:Let me see.] [tool:add {"a": 1, "b": 2}] [then] [echo:Three.]',
        [[says("Let me see."), ADDS], [says("Three.", 1)]],
    ),
    Scenario("parallel tools", "[tool:first {}] [tool:second {}] [then] [echo:Both.]", [[BOTH], [says("Both.")]]),
    Scenario(
        "chain",
        '[tool:add {"a": 1, "b": 2}] [then] [tool:add {"a": 3, "b": 3}] [then] [echo:Six.]',
        [[ADDS], [uses(2, "add", '{"a": 3, "b": 3}', 6)], [says("Six.")]],
    ),
    Scenario(
        "tool error",
        '[tool:lookup {"city": "Atlantis"}] [then] [echo:Which one?]',
        [
            [uses(1, "lookup", '{"city": "Atlantis"}', error=NO_CITY, public="The tool reported an error.")],
            [says("Which one?")],
        ],
    ),
    Scenario(
        "invalid arguments",
        '[tool:add {"a": "one", "b": 2}] [then] [echo:Hm.]',
        [[uses(1, "add", '{"a": "one", "b": 2}', error=NO_NUMBER, public=INVALID)], [says("Hm.")]],
    ),
    Scenario(
        "arguments that are not JSON, corrected",
        "[bad-args:add] Add 2 and 3. [then] [echo:Five.]",
        [[NOT_JSON], [uses(2, "add", '{"a": 2, "b": 3}', 5)], [says("Five.")]],
    ),
    Scenario(
        "unknown tool",
        "[tool:fly {}] [then] [echo:I cannot.]",
        [
            [uses(1, "fly", "{}", error=NO_TOOL, public="The model called a tool that does not exist.")],
            [says("I cannot.")],
        ],
    ),
    Scenario(
        "raising tool",
        '[tool:explode {"reason": "now"}] [then] [echo:Sorry.]',
        [[uses(1, "explode", '{"reason": "now"}', error=CRASHED, public="The tool failed.")], [says("Sorry.")]],
    ),
    Scenario(
        "tool timeout",
        '[tool:sleep {"forever": true}] [then] [echo:Too slow.]',
        [
            [
                uses(
                    *(1, "sleep", '{"forever": true}'),
                    error="sleep did not answer within 0.02 seconds.",
                    public="The tool took too long.",
                )
            ],
            [says("Too slow.")],
        ],
    ),
    Scenario(
        "output cap",
        '[tool:recite {"letters": 20030}] [then] [echo:Long.]',
        [
            [uses(1, "recite", '{"letters": 20030}', f"{'x' * 20_000}\n[cut: 30 more characters]")],
            [says("Long.")],
        ],
    ),
    Scenario(
        "sources",
        "[echo:As they say.] [cite:https://a.example/1 One] [cite:https://b.example] [cite:https://a.example/1 One]",
        [[says("As they say."), cites("https://a.example/1", "One"), cites("https://b.example")]],
    ),
    Scenario(
        "refusal", "[refuse]", [[says("I'm sorry, but I can't help with that request.")]], reason="content-filter"
    ),
    Scenario("length", "[length] [echo:one two three four five six]", [[says("one two three")]], reason="length"),
    Scenario("model failure before the stream", "[fail:500] Hello?", [SORRY], **FAILED),
    Scenario("model that refuses the key", "[fail:401] Hello?", [SORRY], **FAILED),
    Scenario("model failure in the middle of the stream", "[break] [echo:one two three four]", [BROKEN], **FAILED),
    Scenario(
        "model that reports a failure in the middle of the stream",
        "[failed] [echo:one two three four]",
        [BROKEN],
        **FAILED,
    ),
    Scenario(
        "model failure in the middle of a tool call",
        '[break] [tool:add {"a": 1, "b": 2}]',
        [[CUT_OFF, *SORRY]],
        **FAILED,
    ),
    Scenario(
        "model failure in the second step", '[tool:add {"a": 1, "b": 2}] [then] [fail:500]', [[ADDS], SORRY], **FAILED
    ),
    Scenario(
        "too many steps",
        "[loop:add] 1 and 2",
        [[ADDS], [uses(2, "add", '{"a": 1, "b": 2}', 3)], SORRY],
        status="failed",
        reason="error",
        error="The answer needed more steps than are allowed. Try a smaller request.",
        settings={"max_steps": 2},
    ),
    Scenario("empty answer", "[empty]", [SORRY], **FAILED),
]
