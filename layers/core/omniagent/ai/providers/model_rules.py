"""What the families of models take, as data. Every provider fits its request to it before the call.

A model that is not listed is sent what its caller chose, and nothing else: a compatible server may refuse what it does
not know. What a listed model refuses is left out or replaced with the nearest value that it takes.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import lru_cache
from typing import Final, Literal, get_args

from omniagent.ai.providers.llm_provider import Json
from omniagent.errors import ModelError

FieldPath = tuple[str, ...]
"""A field of the request, or a field of that; `("tools", "strict")` is the field of every tool."""

Sampling = Literal["yes", "without reasoning", "no"]
ChatTools = Literal["yes", "without reasoning", "no"]
Thinking = Literal["adaptive", "budget"]
FileKind = Literal["image", "pdf", "text", "audio"]

FILE_KINDS: Final[tuple[FileKind, ...]] = get_args(FileKind)
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
EFFORT_FIELDS: Final = frozenset({"reasoning", "reasoning_effort"})
"""The fields in which a caller chooses the effort: OpenAI's of either API, and OpenRouter's of Chat Completions."""
LIMIT_FIELDS: Final = frozenset({"max_tokens", "max_output_tokens", "max_completion_tokens"})
SAMPLING_FIELDS: Final = frozenset({"temperature", "top_p", "top_k", "top_logprobs", "logprobs"})
MIN_THINKING_TOKENS: Final = 1_024
DEFAULT_MAX_TOKENS: Final = 16_384
"""Of an API that requires a limit. Bedrock reserves it from the account's quota."""

SYSTEM_MESSAGE: Final[FieldPath] = ("messages", "system")
"""The role `system` after the first message. Without it, the instructions of the turn come first."""
_REFUSALS: Final = frozenset({400, 422})
_NEEDED: Final = frozenset(
    {"model", "input", "messages", "instructions", "system", "tools", "stream", "store", "max_tokens"}
)
"""Without these, the answer would be another one, or be stored at the vendor."""
_OF_TOOLS: Final = {
    "strict": "strict",
    "cache_control": "cache_control",
    # A schema that strict mode cannot express.
    "parameters": "strict",
    "input_schema": "strict",
}
_NAMED = re.compile(r"""[`'"]([\w.\[\]]+)[`'"]|(?:^|\s)([\w.\[\]]+):\s""")


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


@lru_cache(maxsize=64)
def rules_of(model: str) -> ModelRules:
    """Return the rules of a model, also behind a vendor's prefix: `openai/gpt-6-luna`, `global.anthropic.claude-…`."""
    return next((rules for family, rules in FAMILIES.items() if _is_of(family, model)), ModelRules())


def _is_of(family: str, model: str) -> bool:
    """Whether a family has a model. Patterns are compiled when they are used: all of them cost a cold start 2 ms."""
    names = "|".join(map(translate, family.split(", ")))
    return re.match(rf"(?:.*[/.:])?(?:{names})", model) is not None


def fit(parameters: Json, rules: ModelRules, effort_path: FieldPath) -> Json:
    """Return the parameters of a request as the model takes them. `effort_path` is where this API has the effort."""
    body = dict(parameters)
    field, *inner = effort_path
    options = body.get(field, {}) if inner else body
    effort = options.get(effort_path[-1]) if isinstance(options, dict) else None
    wanted = None if effort is None else _nearest_effort(effort, rules)
    if field in EFFORT_FIELDS and not EFFORT_FIELDS & body.keys():
        wanted = rules.default_effort
    if wanted != effort:
        effort = wanted
        body[field] = {**options, effort_path[-1]: effort} if inner else effort
    for limit in LIMIT_FIELDS & body.keys():
        if rules.max_output is not None and isinstance(body[limit], int):
            body[limit] = min(body[limit], rules.max_output)
    if rules.thinking is not None and "thinking" in body:
        thinking = _fitted_thinking(body.pop("thinking"), body, rules, effort)
        body |= {} if thinking is None else {"thinking": thinking}
    reasons = effort != "none"
    if rules.thinking is not None:  # Claude thinks only if it is asked to: through OpenAI's APIs, by an effort
        reasons = is_thinking(body) or (effort is not None and field in EFFORT_FIELDS)
    if rules.sampling == "yes" or (rules.sampling == "without reasoning" and not reasons):
        return body
    return {name: value for name, value in body.items() if name not in SAMPLING_FIELDS}


def is_thinking(body: Json) -> bool:
    """Return whether a request asks Claude to think."""
    thinking = body.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") in {"adaptive", "enabled"}


def _nearest_effort(effort: str, rules: ModelRules) -> str:
    if not rules.efforts or effort in rules.efforts or effort not in EFFORTS:
        return effort
    return min(rules.efforts, key=lambda known: abs(EFFORTS.index(known) - EFFORTS.index(effort)))


def _fitted_thinking(thinking: object, body: Json, rules: ModelRules, effort: str | None) -> Json | None:
    """Return how the model is asked to think, or None: not at all."""
    if not isinstance(thinking, dict):
        return None
    match thinking.get("type"):
        case "disabled":
            is_above = effort in EFFORTS and EFFORTS.index(effort) > EFFORTS.index(rules.off_up_to)
            return None if is_above else rules.thinking_off
        case "enabled" if not rules.takes_budget:
            kept = {name: value for name, value in thinking.items() if name != "budget_tokens"}
            return {**kept, "type": "adaptive"}
        case "adaptive" if rules.thinking == "budget":
            limit = body.get("max_tokens", DEFAULT_MAX_TOKENS)
            budget = max(MIN_THINKING_TOKENS, limit // 2)
            return {"type": "enabled", "budget_tokens": budget} if budget < limit else None
    return thinking


def refused_fields(error: ModelError, body: Json) -> set[FieldPath]:
    """Return the fields that the API's refusal names and that the request can do without.

    OpenAI names one in `param`; Anthropic, Bedrock and compatible servers only in their text: "`temperature` is
    deprecated for this model", "output_config.format: Extra inputs are not permitted", `{"loc": ["body", "top_k"], …}`.
    """
    if error.api_status not in _REFUSALS:
        return set()
    found = [quoted or labelled for quoted, labelled in _NAMED.findall(error.api_text)]
    names = [error.param] if error.param else found
    return {path for name in names if (path := _path(name, body))}


def without(body: Json, fields: Collection[FieldPath]) -> Json:
    """Return the request without these fields. An object that this empties goes too."""
    for first, *rest in fields:
        if (first, *rest) == SYSTEM_MESSAGE or first not in body:  # the first is left out when the request is made
            continue
        value = body[first]
        if first == "tools" and rest:
            value = [_without_leaf(tool, rest[0]) for tool in value]
        else:
            value = _without_leaf(value, rest[0]) if rest and isinstance(value, dict) else None
        body = {name: value if name == first else held for name, held in body.items() if name != first or value}
    return body


def _path(name: str, body: Json) -> FieldPath | None:
    first, *rest = [piece for piece in re.split(r"[.\[\]]+", name) if piece and not piece.isdigit()] or [""]
    if name == "system" or rest[-1:] == ["role"]:
        messages = body.get("messages") or body.get("input")
        late = messages[1:] if isinstance(messages, list) else ()
        if any(message.get("role") in {"system", "developer"} for message in late):
            return SYSTEM_MESSAGE
    if first == "tools" and rest:
        leaf = _OF_TOOLS.get(rest[-1], "")
        return ("tools", leaf) if any(leaf in {**tool, **tool.get("function", {})} for tool in body["tools"]) else None
    if first not in body or first in _NEEDED:
        return None
    nested = body[first]
    return (first, rest[0]) if rest and isinstance(nested, dict) and rest[0] in nested else (first,)


def _without_leaf(holder: Json, leaf: str) -> Json:
    return {
        name: _without_leaf(value, leaf) if name == "function" else value
        for name, value in holder.items()
        if name != leaf
    }
