"""How much of each prompt repeats the one before, over 200 turns of the real runner, and what that saves.

    .venv/bin/python -m bench.prompt_cache

A turn asks, calls a tool and answers. Prompts are compared as the Responses API gets them, in whole items.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from bench import report
from bench.figure import Figure
from omniagent import Agent, InMemorySessionManager, Runner, Settings, tool
from omniagent.ai.prompts import SUMMARIZE_ABOVE
from omniagent.ai.providers.http_client import ApiOptions, HttpClient, KeyHeader
from omniagent.ai.providers.openai.openai_responses import OpenAIResponses
from omniagent.testing import InMemoryStore

Json = dict[str, Any]

TURNS = 200
SHARES = {200: 0.85, 500: 0.85, 1_000: 0.85, 2_000: 0.8}
"""The least share of a prompt that should repeat, by the tokens of a turn."""
PRICE = 0.10
CACHED_PRICE = 0.01
"""Dollars per million tokens of input, as of gpt-6-luna."""
SUMMARY_TOKENS = 300
QUESTION, RESULT, ANSWER = 0.3, 0.2, 0.5
"""What a turn is made of."""


def words(tokens: float) -> str:
    """A text of about so many tokens, like no other."""
    text = f"{uuid.uuid4().hex} " + "word " * int(tokens)
    return text[: int(tokens) * 4]


@dataclass
class Prompt:
    """One request, in the pieces in which caches compare it."""

    pieces: list[str]
    is_summary: bool = False
    cached: int = 0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.pieces)) // 4

    def shared_with(self, other: "Prompt") -> int:
        """Return how many tokens both begin with."""
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(self.pieces, other.pieces, strict=False))
        return sum(len(piece) for piece, _ in pairs) // 4

    def continues(self, other: "Prompt") -> bool:
        return self.pieces[: len(other.pieces)] == other.pieces


@dataclass
class Recording(HttpClient):
    """Answers every request here, and keeps the prompts: those of each turn, and those of summaries."""

    tokens: int
    prompts: list[list[Prompt]] = field(default_factory=list)
    summaries: list[Prompt] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__("http://127.0.0.1", ApiOptions(), KeyHeader("authorization", "unused"), {})

    async def open(self, path: str, body: Json) -> AsyncGenerator[Iterator[Json], None]:  # noqa: ARG002
        items = body["input"]
        pieces = [json.dumps(body.get("tools")), body["instructions"], *map(json.dumps, items)]
        prompt = Prompt(pieces, is_summary=items[-1].get("content") == SUMMARIZE_ABOVE)
        before = [each for turn in self.prompts for each in turn][-2:] + self.summaries[-1:]
        prompt.cached = max((prompt.shared_with(each) for each in before), default=0)
        if prompt.is_summary:
            self.summaries.append(prompt)
            return _said(words(SUMMARY_TOKENS))
        self.prompts[-1].append(prompt)
        return _said(words(self.tokens * ANSWER)) if len(self.prompts[-1]) > 1 else _called()

    @property
    def share(self) -> float:
        """The share of the first prompts of turns that had been sent before."""
        firsts = [turn[0] for turn in self.prompts]
        return sum(prompt.cached for prompt in firsts) / sum(prompt.tokens for prompt in firsts)

    @property
    def breaks(self) -> int:
        """How many prompts do not continue the one before in the same turn."""
        return sum(not second.continues(first) for first, second in self.prompts)

    @property
    def dollars(self) -> float:
        """What the input of 1,000 turns costs, with the summaries."""
        prompts = [prompt for turn in self.prompts for prompt in turn] + self.summaries
        return sum(map(_price, prompts)) * 1_000 / len(self.prompts)


def _price(prompt: Prompt) -> float:
    return (PRICE * (prompt.tokens - prompt.cached) + CACHED_PRICE * prompt.cached) / 1e6


async def _said(text: str) -> AsyncGenerator[Iterator[Json], None]:
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": text}
    yield iter([delta, {"type": "response.completed", "response": {"status": "completed"}}])


async def _called() -> AsyncGenerator[Iterator[Json], None]:
    call = {"type": "function_call", "call_id": f"call_{uuid.uuid4().hex}", "name": "look_up", "arguments": "{}"}
    done = {"type": "response.output_item.done", "output_index": 0, "item": call}
    yield iter([done, {"type": "response.completed", "response": {"status": "completed"}}])


async def recorded(tokens: int, turns: int = TURNS) -> Recording:
    """Run turns of so many tokens each."""

    @tool
    def look_up() -> str:
        """Look it up."""
        return words(tokens * RESULT)

    client = Recording(tokens)
    agent = Agent("helper", words(200), [look_up])
    session = InMemorySessionManager("ada", "bench", store=InMemoryStore(), settings=Settings(name_sessions=False))
    runner = Runner(
        agent, session, provider=OpenAIResponses("gpt-6-luna", client=client, api_key="unused", identifiers=True)
    )
    for _ in range(turns):
        client.prompts.append([])
        answer = await runner.start(words(tokens * QUESTION))
        await answer.ended()
        if (await answer.result()).status != "complete":
            raise RuntimeError("a turn has failed")
    return client


def sliding(prompts: list[list[Prompt]], tokens: int) -> float:
    """Return the input cost of 1,000 turns if the window moved by one turn per turn."""
    settings = Settings()
    size = min(settings.context_max_turns, settings.context_max_tokens // tokens)
    fixed, total = 250, 0.0
    for number in range(len(prompts)):
        shown = min(number, size)
        first = fixed + shown * tokens + int(tokens * QUESTION)
        cached = first - tokens if 0 < number <= size else fixed
        second = first + int(tokens * RESULT)
        total += PRICE * (first - cached + second - first) + CACHED_PRICE * (cached + first)
        if number > size and number % (size // 2 or 1) == 0:
            total += PRICE * (size // 2 * tokens + SUMMARY_TOKENS)
    return total * 1_000 / len(prompts) / 1e6


def figures() -> Iterator[Figure]:
    """Yield what `make bench` reports of the prompt cache."""
    measured = {tokens: asyncio.run(recorded(tokens)) for tokens in SHARES}
    for tokens, run in measured.items():
        name, bound = f"prompt that repeats, turns of {tokens:,} tokens", SHARES[tokens]
        yield Figure(name, "%", 100 * run.share, {"bound": 100 * bound}, bound / run.share, 1, f"over {TURNS} turns")
    breaks = sum(run.breaks for run in measured.values())
    yield Figure("breaks of the prompt within a turn", "", breaks, {}, breaks, 0, f"of {TURNS * len(SHARES)} turns")
    for tokens, run in measured.items():
        before = sliding(run.prompts, tokens)
        name = f"input cost of 1,000 turns of {tokens:,} tokens"
        note = f"${PRICE} and cached ${CACHED_PRICE} per million tokens, with the summaries"
        yield Figure(name, "$", run.dollars, {"window that slides": before}, run.dollars / before, None, note)


if __name__ == "__main__":
    print(report.table(list(figures())))
