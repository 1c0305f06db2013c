"""The fields of a request that an API refuses by name, found in its error.

OpenAI names one in `param`; Anthropic, Bedrock and compatible servers only in their text: "`temperature` is deprecated
for this model", "output_config.format: Extra inputs are not permitted", `{"loc": ["body", "top_k"], …}`.
"""

import re
from collections.abc import Collection, Iterator
from typing import Final

from omniagent.ai.providers.llm_provider import Json
from omniagent.errors import ModelError

FieldPath = tuple[str, ...]
"""A field of the request, or a field of that; `("tools", "strict")` is the field of every tool."""

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


def refused_fields(error: ModelError, body: Json) -> set[FieldPath]:
    """Return the fields that the API's refusal names and that the request can do without."""
    if error.api_status not in _REFUSALS:
        return set()
    return {path for name in _names(error) if (path := _path(name, body))}


def without(body: Json, fields: Collection[FieldPath]) -> Json:
    """Return the request without these fields. An object that this empties goes too."""
    for path in fields:
        if path != SYSTEM_MESSAGE:  # left out when the request is made
            body = _without_one(body, path)
    return body


def _names(error: ModelError) -> Iterator[str]:
    if error.param:
        yield error.param
        return
    for quoted, labelled in _NAMED.findall(error.api_text):
        yield quoted or labelled


def _path(name: str, body: Json) -> FieldPath | None:
    first, *rest = [piece for piece in re.split(r"[.\[\]]+", name) if piece and not piece.isdigit()] or [""]
    if (name == "system" or rest[-1:] == ["role"]) and _has_late_system(body):
        return SYSTEM_MESSAGE
    if first == "tools" and rest:
        leaf = _OF_TOOLS.get(rest[-1], "")
        return ("tools", leaf) if any(leaf in {**tool, **tool.get("function", {})} for tool in body["tools"]) else None
    if first not in body or first in _NEEDED:
        return None
    nested = body[first]
    return (first, rest[0]) if rest and isinstance(nested, dict) and rest[0] in nested else (first,)


def _has_late_system(body: Json) -> bool:
    messages = body.get("messages") or body.get("input")
    late = messages[1:] if isinstance(messages, list) else ()
    return any(message.get("role") in {"system", "developer"} for message in late)


def _without_one(body: Json, path: FieldPath) -> Json:
    first, *rest = path
    if first not in body:
        return body
    if first == "tools" and rest:
        return {**body, "tools": [_without_leaf(tool, rest[0]) for tool in body["tools"]]}
    kept = _without_leaf(body[first], rest[0]) if rest and isinstance(body[first], dict) else None
    return {name: kept if name == first else value for name, value in body.items() if name != first or kept}


def _without_leaf(holder: Json, leaf: str) -> Json:
    return {
        name: _without_leaf(value, leaf) if name == "function" else value
        for name, value in holder.items()
        if name != leaf
    }
