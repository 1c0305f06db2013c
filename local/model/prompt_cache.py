"""How much of a prompt the vendors' caches would have had: its longest beginning that an earlier request had too."""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from local.model.conversation import Json

MIN_TOKENS = 1_024
"""No vendor caches less."""
_MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})
_REMEMBERED = 64


class PromptCache:
    """Remembers the prompts of one API."""

    def __init__(self) -> None:
        self._known: deque[list[str]] = deque(maxlen=_REMEMBERED)

    def read(self, body: Json, input_tokens: int) -> int:
        """Return how many of the prompt's tokens are cached, and remember it."""
        prompt = list(_pieces(body))
        shared = max((_shared(prompt, known) for known in self._known), default=0)
        self._known.append(prompt)
        cached = input_tokens * shared // max(1, sum(map(len, prompt)))
        return cached if cached >= MIN_TOKENS else 0


def _shared(prompt: Sequence[str], known: Sequence[str]) -> int:
    """Return how many characters both begin with, in whole messages."""
    pairs = zip(prompt, known, strict=False)
    return sum(len(piece) for piece, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _pieces(body: Json) -> Iterator[str]:
    """Yield the prompt in the order in which the caches compare it."""
    yield _written([body["model"], body.get("tools")])
    yield _written([body.get("instructions"), body.get("system")])
    messages = body.get("input") or body.get("messages")
    yield from map(_written, messages if isinstance(messages, list) else [messages])


def _written(value: Any) -> str:
    return json.dumps(_unmarked(value))


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        texts = [_unmarked(each) for each in value]
        return texts[0]["text"] if len(texts) == 1 and isinstance(texts[0], dict) and "text" in texts[0] else texts
    if isinstance(value, dict):
        return {name: _unmarked(each) for name, each in value.items() if name not in _MARKS}
    return value
