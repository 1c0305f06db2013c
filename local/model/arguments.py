"""Plausible values for any JSON schema, a tool's or an answer's, from the clues in the prompt."""

import re
from collections.abc import Sequence
from typing import Any

from local.model.clues import Clues
from local.model.conversation import Json, Tool

_NOTHING = object()
_MAX_DEPTH = 4
_MAX_REFERENCES = 20
_FORMATS = {
    "date-time": "2026-01-01T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "uuid": "6f1ed002-ab5f-4d2e-9c1b-0a1b2c3d4e5f",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}
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
        self._depth = 0

    def object(self, schema: Json) -> Json:
        self._depth += 1
        try:
            return self._filled(schema)
        finally:
            self._depth -= 1

    def _filled(self, schema: Json) -> Json:
        filled: Json = {}
        for name, given in (schema.get("properties") or {}).items():
            field, optional = self._field(given)
            too_deep = optional and self._depth > _MAX_DEPTH
            value = _NOTHING if too_deep else self._value(name, field)
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
        for _ in range(_MAX_REFERENCES):
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
        return {}, optional

    def _value(self, name: str, schema: Json) -> Any:
        """What the texts say about a field, or `_NOTHING`."""
        for clues in self._clues:
            value = _mentioned(schema["enum"], clues) if "enum" in schema else self._said(name, schema, clues)
            if value is not _NOTHING:
                return value
        return _NOTHING

    def _said(self, name: str, schema: Json, clues: Clues) -> Any:
        match schema.get("type", "string"):
            case "integer" | "number" as kind:
                return self._number(name, kind, schema, clues)
            case "array":
                return self._items(name, schema, clues) or _NOTHING
            case "boolean" if _mentions(clues.text, name.replace("_", " ")):
                return True
            case "object":
                return self.object(schema)
            case "string" if schema.get("format") not in _FORMATS:
                return self._text(name, schema, clues)
        return _NOTHING

    def _items(self, name: str, schema: Json, clues: Clues) -> list[Any]:
        item, _ = self._field(schema.get("items") or {})
        if item.get("type") == "object":
            count = max(1, schema.get("minItems", 0)) if self._depth <= _MAX_DEPTH else 0
            return [self.object(item) for _ in range(count)]
        if item.get("type") in {"array", "boolean", "null"}:
            return []
        found = [value for value in _many(name, item, clues) if _is_within(value, item)][: schema.get("maxItems")]
        return found if len(found) >= schema.get("minItems", 0) else []

    def _number(self, name: str, kind: str, schema: Json, clues: Clues) -> Any:
        """The number beside the field's name, as in "20 sides", else the next one that is free."""
        typed = [number for number in clues.numbers if kind == "number" or isinstance(number, int)]
        fitting = [number for number in typed if _is_within(number, schema)]
        named = re.search(rf"(\d+)[\s-]*{re.escape(name[:4])}|\b{re.escape(name)}\W+(\d+)", clues.text, re.IGNORECASE)
        number = int(named[1] or named[2]) if named else None
        chosen = number if number in fitting else next(iter(fitting), None)
        return _NOTHING if chosen is None else self._use_up("numbers", chosen)

    def _text(self, name: str, schema: Json, clues: Clues) -> Any:
        text = self._quoted(name, schema, clues)
        return _sized(text, schema) if isinstance(text, str) else text

    def _quoted(self, name: str, schema: Json, clues: Clues) -> Any:
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
                return _smallest(schema)
            case "boolean" | "null" as kind:
                return False if kind == "boolean" else None
            case "array":
                item, _ = self._field(schema.get("items") or {})
                return [self._fallback(name, item) for _ in range(schema.get("minItems", 0))]
            case "object":
                return self.object(schema)
        fixed = {"sum": "1 + 1", "zone": "UTC", "place": "London", "date": "2026-01-01"}
        addresses = {"email": "someone@example.com", "url": "https://example.com"}
        text = self._clues[0].text if self._clues else name
        said = (fixed | addresses).get(kind_of(name, schema), text)
        return _sized(_FORMATS.get(schema.get("format", ""), said), schema)


def _mentioned(values: Sequence[Any], clues: Clues) -> Any:
    return next((value for value in values if _mentions(clues.text, str(value))), _NOTHING)


def _is_within(value: Any, schema: Json) -> bool:
    """Whether a value of the right type is inside the schema's bounds."""
    if not isinstance(value, int | float):
        return not isinstance(value, str) or _sized(value, schema) == value
    is_multiple: bool = value % schema.get("multipleOf", value or 1) == 0
    is_above: bool = schema.get("minimum", value) <= value and schema.get("exclusiveMinimum", value - 1) < value
    is_below: bool = value <= schema.get("maximum", value) and value < schema.get("exclusiveMaximum", value + 1)
    return is_multiple and is_above and is_below


def _smallest(schema: Json) -> Any:
    """A number inside the bounds, 1 if it may be."""
    step = schema.get("multipleOf", 1)
    low = schema.get("minimum", schema.get("exclusiveMinimum", -step) + step)
    candidates = (1, 0, step, low, schema.get("maximum", 0), schema.get("exclusiveMaximum", 0) - step)
    return next((number for number in candidates if _is_within(number, schema)), low)


def _sized(text: str, schema: Json) -> str:
    """The text, cut or filled up to the length that the schema allows."""
    return text[: schema.get("maxLength")].ljust(schema.get("minLength", 0), ".")


def _many(name: str, item: Json, clues: Clues) -> list[Any]:
    if "enum" in item:
        return [value for value in item["enum"] if _mentions(clues.text, str(value))]
    if item.get("type") in {"number", "integer"}:
        return [number for number in clues.numbers if item["type"] == "number" or isinstance(number, int)]
    return _listed(kind_of(name, item), clues) or list(clues.quotes)


def _listed(kind: str, clues: Clues) -> list[str]:
    """The candidates of a kind that a text may name several of."""
    lists = {"place": clues.places, "zone": clues.zones, "date": clues.dates}
    return (lists | {"email": clues.emails, "url": clues.urls}).get(kind, [])


def _mentions(text: str, words: str) -> bool:
    return re.search(rf"\b{re.escape(words)}\b", text, re.IGNORECASE) is not None
