"""What the model says in one step, and how it delivers that."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from local.model import tokens
from local.model.conversation import Call

Finish = Literal["stop", "tool_calls", "length", "failed"]
Stall = Literal["first", "middle"]


@dataclass(frozen=True)
class Answer:
    """The content of one response. At most one of text and refusal is there."""

    reasoning: str = ""
    text: str = ""
    refusal: str = ""
    sources: tuple[tuple[str, str], ...] = ()
    """The address and the title of each page that the text cites."""
    calls: tuple[Call, ...] = ()
    finish: Finish = "stop"

    @cached_property
    def reasoning_tokens(self) -> int:
        return tokens.count(self.reasoning)

    @cached_property
    def output_tokens(self) -> int:
        called = [text for call in self.calls for text in (call.name, call.arguments)]
        return self.reasoning_tokens + sum(tokens.count(text) for text in (self.text, self.refusal, *called))


@dataclass(frozen=True)
class Delivery:
    """How the answer goes out."""

    fail: int | None = None
    only_once: bool = False
    stall: Stall | None = None
    breaks: bool = False
    burst: bool = False
    token_seconds: float | None = None


@dataclass(frozen=True)
class Usage:
    """Exact token counts, as the APIs report them."""

    input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens
