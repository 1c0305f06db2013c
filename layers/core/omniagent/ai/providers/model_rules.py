"""What the families of models take, as data. Every provider fits its request to it before the call.

A model that is not listed is sent what its caller chose, and nothing else: a compatible server may refuse what it does
not know. What a listed model refuses is left out or replaced with the nearest value that it takes.
"""

import re
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import lru_cache
from typing import Final, Literal, get_args

from omniagent.ai.providers.llm_provider import Json

Sampling = Literal["yes", "without reasoning", "no"]
ChatTools = Literal["yes", "without reasoning", "no"]
Thinking = Literal["adaptive", "budget"]
FileKind = Literal["image", "pdf", "text", "audio"]

FILE_KINDS: Final[tuple[FileKind, ...]] = get_args(FileKind)
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SAMPLING_FIELDS: Final = frozenset({"temperature", "top_p", "top_k", "top_logprobs", "logprobs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRules:
    """The rules of one family. The defaults are those of a model that is not listed."""

    sampling: Sampling = "yes"
    """Takes `temperature` and the like: always, only at the effort `none`, or never."""
    reasons: bool = False
    """Reasons before it answers, if its effort is not `none`."""
    efforts: tuple[str, ...] = ()
    """The efforts that it takes. Empty: not known."""
    default_effort: str | None = None
    """Sent where the caller chose none: by its own default, the model would reason before every answer."""
    chat_tools: ChatTools = "yes"
    """Takes tools on Chat Completions: always, only at the effort `none`, or never."""
    thinking: Thinking | None = None
    """Claude: how thinking is asked for. Older models need a budget."""
    takes_budget: bool = False
    """Claude: takes a budget of thinking tokens."""
    thinking_off: Json | None = None
    """Claude: what turns thinking off, or what is nearest to that. None: nothing does."""
    off_up_to: str = "max"
    """Claude: the highest effort at which thinking can be off."""
    forced_tool: bool = True
    """Takes a `tool_choice` that demands a call."""
    native_output: bool = True
    """Takes the schema of its answer. Others are given a tool for the answer."""
    strict_tools: bool = True
    """Takes `strict` in a tool."""
    late_system: bool = False
    """Takes instructions after the question, where a change of them leaves what is before in the prompt cache."""
    cache_marks: bool = False
    """OpenAI: finds a cached prompt only at marks, of which its own is near the last message."""
    files: frozenset[FileKind] | None = None
    """The kinds of files that it reads. None: not known. No provider sends files: `make smoke MODEL=…` tries them."""
    cached_price: float = 1.0
    """What a cached token of the prompt costs, as a share of the price of any other. 1: not known."""
    max_output: int | None = None
    """The largest number of output tokens."""
    context_window: int | None = None
    """The largest number of input and output tokens together."""


_OFF: Final[Json] = {"type": "disabled"}
_SEEN: Final[frozenset[FileKind]] = frozenset({"image", "pdf", "text"})
_GPT_5 = ModelRules(sampling="no", reasons=True, late_system=True, files=_SEEN)
_GPT_5_1 = replace(_GPT_5, sampling="yes", max_output=128_000)
_GPT_6 = ModelRules(
    sampling="without reasoning",
    reasons=True,
    chat_tools="without reasoning",
    late_system=True,
    cache_marks=True,
    files=_SEEN,
    cached_price=0.1,
)
_ONLY_REASONING = replace(_GPT_6, sampling="no", efforts=EFFORTS[2:], chat_tools="no")
_CLAUDE = ModelRules(
    sampling="without reasoning",
    efforts=EFFORTS[2:],
    thinking="budget",
    takes_budget=True,
    thinking_off=_OFF,
    files=_SEEN,
    cached_price=0.1,
    max_output=64_000,
    context_window=200_000,
)
_CLAUDE_4_6 = replace(_CLAUDE, thinking="adaptive", max_output=128_000, context_window=None)
_CLAUDE_4_7 = replace(_CLAUDE_4_6, sampling="no")
_CLAUDE_5 = replace(_CLAUDE_4_7, late_system=True)
_CLAUDE_5_5 = replace(_CLAUDE_5, takes_budget=False, thinking_off=None, forced_tool=False)

FAMILIES: Final[dict[str, ModelRules]] = {
    "gpt-[0-9]*-chat*": ModelRules(),
    "gpt-6-astra*, gpt-6.1-sol*": _ONLY_REASONING,
    "gpt-6-luna*": replace(_GPT_6, default_effort="none", max_output=128_000, context_window=1_000_000),
    "gpt-[6-9]*": _GPT_6,
    "gpt-5.[6-9]*": replace(_GPT_5_1, cache_marks=True),
    "gpt-5.*": _GPT_5_1,
    "gpt-5*": _GPT_5,
    "o[0-9]*, codex*": replace(_GPT_5, files=None),
    "claude-sonnet-5-5*": replace(_CLAUDE_5_5, thinking_off={"type": "between_tools"}, off_up_to="high"),
    "claude-opus-5-5*, claude-fable-5-[1-9]*": _CLAUDE_5_5,
    "claude-haiku-5-5*": replace(_CLAUDE_5, takes_budget=False, off_up_to="high"),
    "claude-fable-5*": replace(_CLAUDE_5, takes_budget=False, thinking_off=None),
    "claude-opus-5*": replace(_CLAUDE_5, off_up_to="high"),
    "claude-sonnet-5*, claude-opus-4-8*": _CLAUDE_5,
    "claude-opus-4-7*": _CLAUDE_4_7,
    "claude-sonnet-4-6*, claude-opus-4-6*": _CLAUDE_4_6,
    "claude-haiku-4-5*, claude-sonnet-4-5*, claude-opus-4-5*": _CLAUDE,
    "claude*": ModelRules(sampling="no", thinking="adaptive", max_output=64_000),
}
"""The first family with a pattern that fits a model's name has its rules."""
_PATTERNS: Final = [
    (re.compile(rf"(?:.*[/.:])?(?:{'|'.join(map(translate, names.split(', ')))})"), rules)
    for names, rules in FAMILIES.items()
]


@lru_cache(maxsize=64)
def rules_of(model: str) -> ModelRules:
    """Return the rules of a model, also behind a vendor's prefix: `openai/gpt-6-luna`, `global.anthropic.claude-…`."""
    return next((rules for family, rules in _PATTERNS if family.match(model)), ModelRules())


def nearest_effort(effort: str, rules: ModelRules) -> str:
    """Return the effort, or the nearest one that the model takes."""
    if not rules.efforts or effort in rules.efforts or effort not in EFFORTS:
        return effort
    return min(rules.efforts, key=lambda known: abs(EFFORTS.index(known) - EFFORTS.index(effort)))


def fit(body: Json, rules: ModelRules, limit_field: str, *, reasons: bool) -> Json:
    """Return the request without sampling fields that the model refuses, and with at most the output it can make."""
    limit, most = body.get(limit_field), rules.max_output
    if most is not None and isinstance(limit, int) and limit > most:
        body = {**body, limit_field: most}
    if rules.sampling == "yes" or (rules.sampling == "without reasoning" and not reasons):
        return body
    return {name: value for name, value in body.items() if name not in SAMPLING_FIELDS}
