"""Strict JSON schemas, in the subset that the OpenAI APIs accept, and validation of a model's JSON."""

import json
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError
from typing_extensions import TypeVar

from omniagent.errors import ConfigurationError, OmniAgentError
from omniagent.protocol.plain_json import plain
from omniagent.team_code import team_code
from omniagent.validation import problems_of

Model = TypeVar("Model", bound=BaseModel, default=BaseModel)
Output_co = TypeVar("Output_co", bound=BaseModel, covariant=True, default=BaseModel)
"""The model of `Agent(output=Model)`."""

# Keywords that strict mode refuses or ignores. Pydantic still enforces them when the arguments arrive.
_DROPPED = {"title", "default", "examples", "discriminator", "minLength", "maxLength", "uniqueItems"}
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_TYPED = {"type", "$ref", "anyOf", "oneOf", "enum", "const"}


def strict_schema(arguments: type[BaseModel]) -> tuple[dict[str, Any], bool]:
    """Return the schema of the arguments, and whether strict mode can express it.

    Strict mode wants every property required and no others; a default is told in the description. Free-form
    mappings, tuples and `Any` cannot be expressed: such a schema is returned as it is, for use without strict mode.
    Raises `ConfigurationError` for types that have no JSON schema, such as functions.
    """
    try:
        schema = arguments.model_json_schema()
    except PydanticUserError as exc:
        raise ConfigurationError(
            f"{arguments.__qualname__} makes no JSON schema ({exc.message}): "
            "use types that JSON can express, such as str, list[int] or a pydantic model"
        ) from exc
    if "$ref" in schema:  # arguments that refer to themselves; the API wants an object at the top
        schema = {**schema["$defs"][schema["$ref"].rpartition("/")[2]], "$defs": schema["$defs"]}
    schema = json.loads(json.dumps(schema, default=str), parse_constant=str)  # a default of `math.inf` is not JSON
    return (_strict(schema), True) if _expressible(schema) else (schema, False)


class InvalidJson(ValueError):
    """The text is not what the schema asks for. Its own text tells the model what to correct."""


def validated(model: type[Model], text: str) -> Model:
    """Validate JSON that a model wrote. Raises `InvalidJson`, also if a team's validator fails."""
    unchecked = InvalidJson("they could not be checked. Try other values.")
    try:
        with team_code("validator failed", unchecked, passes=(ValidationError,), model=model.__name__):
            return model.model_validate_json(text)
    except ValidationError as exc:
        raise InvalidJson(problems_of(exc, whole="JSON")) from exc


def json_output(output: BaseModel) -> Any:
    """Return a validated answer as JSON, with the names that its schema has. None if a team's serializer fails."""
    with suppress(OmniAgentError), team_code("serializer failed", model=type(output).__name__):
        return plain(output.model_dump(mode="json", by_alias=True))
    return None


def _expressible(node: dict[str, Any]) -> bool:
    if node.get("additionalProperties") or "prefixItems" in node or not _TYPED & node.keys():
        return False
    return all(_expressible(child) for child in _children(node))


def _children(node: dict[str, Any]) -> list[dict[str, Any]]:
    children = [*node.get("properties", {}).values(), *node.get("$defs", {}).values()]
    children += node.get("anyOf", []) + node.get("oneOf", [])
    return [*children, node["items"]] if "items" in node else children


def _strict(node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        reference = {"$ref": node["$ref"]}  # keywords beside a reference are refused, beside `anyOf` they are not
        extra = {key: node[key] for key in ("description", "default") if node.get(key) is not None}
        return _strict({"anyOf": [reference], **extra}) if extra else reference
    strict = {key: value for key, value in node.items() if key not in _DROPPED}
    if node.get("format") not in _FORMATS:
        strict.pop("format", None)
    if "(?" in node.get("pattern", ""):  # it looks ahead or behind
        del strict["pattern"]
    if "oneOf" in strict:
        strict["anyOf"] = strict.pop("oneOf")
    for key in ("properties", "$defs"):
        if key in strict:
            strict[key] = {name: _strict(child) for name, child in strict[key].items()}
    if "anyOf" in strict:
        strict["anyOf"] = [_strict(child) for child in strict["anyOf"]]
    if "items" in strict:
        strict["items"] = _strict(strict["items"])
    if strict.get("type") == "object":
        strict["required"] = list(strict.setdefault("properties", {}))
        strict["additionalProperties"] = False
    if node.get("default") is not None:
        default = f"Default: {json.dumps(node['default'], ensure_ascii=False)}."
        strict["description"] = f"{strict['description']} {default}" if "description" in strict else default
    return strict
