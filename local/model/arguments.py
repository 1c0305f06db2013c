"""Plausible arguments for any tool, from its JSON schema and the clues in the prompt."""

import re
from collections.abc import Sequence
from typing import Any

from local.model.clues import Clues
from local.model.conversation import Json, Tool

_NOTHING = object()
_KINDS = (
    ("sum", re.compile(r"expression|formula|calculation|equation|math")),
    ("zone", re.compile(r"time_?zone|\btz\b|iana")),
    ("place", re.compile(r"city|cities|place|location|country|town|region|destination|origin")),
    ("date", re.compile(r"date|day|when|deadline")),
    ("email", re.compile(r"e-?mail|recipient")),
    ("url", re.compile(r"\burl|link|website")),
    ("whole", re.compile(r"query|question|prompt|search|request|keywords")),
)


def kind_of(name: str, schema: Json) -> str:
    """What a text argument is for. Its name says it best, then its format, then its description."""
    for hint in (name.lower(), str(schema.get("format", "")), str(schema.get("description", "")).lower()):
        for kind, pattern in _KINDS:
            if pattern.search(hint):
                return kind
    return "text"


def derive(tool: Tool, texts: Sequence[str]) -> Json:
    """Fill in a tool's parameters from the first of the texts that says something about each of them."""
    return _Filler(tool.parameters, [Clues(text) for text in texts if text]).object(tool.parameters)


class _Filler:
    def __init__(self, root: Json, clues: list[Clues]) -> None:
        self._root = root
        self._clues = clues

    def object(self, schema: Json) -> Json:
        filled: Json = {}
        for name, given in (schema.get("properties") or {}).items():
            field, optional = self._field(given)
            value = self._value(name, field)
            if value is not _NOTHING:
                filled[name] = value
            elif "default" in given:
                filled[name] = given["default"]
            elif name in (schema.get("required") or []):
                filled[name] = None if optional else self._fallback(name, field)
        return filled

    def _field(self, schema: Json) -> tuple[Json, bool]:
        """The schema behind references and `null` options, and whether null is allowed."""
        optional = False
        while True:
            if ref := schema.get("$ref"):
                schema = self._root.get("$defs", {}).get(str(ref).rsplit("/", 1)[-1], {})
            elif options := schema.get("anyOf"):
                some = [option for option in options if option.get("type") != "null"]
                optional = optional or len(some) < len(options)
                schema = some[0] if some else {}
            elif isinstance(schema.get("type"), list):
                optional = optional or "null" in schema["type"]
                schema = {**schema, "type": next((t for t in schema["type"] if t != "null"), "string")}
            else:
                return ({"enum": [schema["const"]]} if "const" in schema else schema), optional

    def _value(self, name: str, schema: Json) -> Any:
        """What the texts say about a field, or `_NOTHING`."""
        for clues in self._clues:
            value = self._said(name, schema, clues)
            if value is not _NOTHING:
                return value
        return _NOTHING

    def _said(self, name: str, schema: Json, clues: Clues) -> Any:
        if "enum" in schema:
            return next((v for v in schema["enum"] if _mentions(clues.text, str(v))), _NOTHING)
        kind = schema.get("type", "string")
        if kind in {"integer", "number"}:
            return self._number(name, kind, clues)
        if kind == "array":
            return _many(name, self._field(schema.get("items") or {})[0], clues) or _NOTHING
        if kind == "boolean":
            return True if _mentions(clues.text, name.replace("_", " ")) else _NOTHING
        return self.object(schema) if kind == "object" else self._text(name, schema, clues)

    def _number(self, name: str, kind: str, clues: Clues) -> Any:
        """The number beside the field's name, as in "20 sides", else the next one that is free."""
        fitting = [number for number in clues.numbers if kind == "number" or isinstance(number, int)]
        named = re.search(rf"(\d+)[\s-]*{re.escape(name[:4])}|\b{re.escape(name)}\W+(\d+)", clues.text, re.IGNORECASE)
        number = int(named[1] or named[2]) if named else None
        chosen = number if number in fitting else next(iter(fitting), None)
        return _NOTHING if chosen is None else self._use_up("numbers", chosen)

    def _text(self, name: str, schema: Json, clues: Clues) -> Any:
        kind = kind_of(name, schema)
        if kind == "sum":
            return clues.expression or _NOTHING
        if kind in {"text", "whole"} and clues.quotes:
            return self._use_up("quotes", clues.quotes[0])
        if kind == "whole":
            return clues.text
        if kind == "date" and len(clues.dates) > 1:
            return self._use_up("dates", clues.dates[0])
        return next(iter(_listed(kind, clues)), _NOTHING)

    def _use_up(self, candidates: str, value: Any) -> Any:
        """A number, a quote or one of several dates fills one field only, in whichever of the texts it stands."""
        for clues in self._clues:
            if value in (found := getattr(clues, candidates)):
                found.remove(value)
        return value

    def _fallback(self, name: str, schema: Json) -> Any:
        """A valid value for a required field that nothing was said about."""
        if "enum" in schema:
            return schema["enum"][0]
        match schema.get("type", "string"):
            case "integer" | "number":
                return schema.get("minimum", 1)
            case "boolean":
                return False
            case "array":
                return []
            case "object":
                return self.object(schema)
        fixed = {"sum": "1 + 1", "zone": "UTC", "place": "London", "date": "2026-01-01"}
        addresses = {"email": "someone@example.com", "url": "https://example.com"}
        text = self._clues[0].text if self._clues else name
        return (fixed | addresses).get(kind_of(name, schema), text)


def _many(name: str, item: Json, clues: Clues) -> list[Any]:
    if "enum" in item:
        return [value for value in item["enum"] if _mentions(clues.text, str(value))]
    if item.get("type") in {"number", "integer"}:
        return list(clues.numbers)
    return _listed(kind_of(name, item), clues) or list(clues.quotes)


def _listed(kind: str, clues: Clues) -> list[str]:
    """The candidates of a kind that a text may name several of."""
    lists = {"place": clues.places, "zone": clues.zones, "date": clues.dates}
    return (lists | {"email": clues.emails, "url": clues.urls}).get(kind, [])


def _mentions(text: str, words: str) -> bool:
    return re.search(rf"\b{re.escape(words)}\b", text, re.IGNORECASE) is not None
