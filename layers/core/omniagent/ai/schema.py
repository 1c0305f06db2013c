"""JSON schemas of what a team writes: a tool's signature, read or refused with what to write instead, and models.

Strict schemas are in the subset that the OpenAI APIs accept.
"""

import inspect
import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, RootModel, create_model
from pydantic.errors import PydanticUserError

from omniagent.ai.context import RunContext
from omniagent.errors import ConfigurationError, OmniAgentError
from omniagent.protocol.plain_json import plain
from omniagent.team_code import team_code

_ORDINARY = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

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


def read_signature(function: Callable[..., Any], name: str) -> tuple[type[BaseModel], str | None]:
    """Return the model of a function's arguments, and the parameter that takes the context."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"tool {name}: it yields: return one value, and use context.emit for progress")
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except NameError as exc:
        raise ConfigurationError(
            f"tool {name}: the annotation {exc.name!r} is not known at run time: "
            "import it at the top of the module, outside of TYPE_CHECKING"
        ) from exc
    except Exception as exc:  # an annotation in quotes may be any code, and a built-in may have no signature
        raise ConfigurationError(f"tool {name}: its signature cannot be read: {exc}") from exc
    fields: dict[str, Any] = {}
    contexts: list[str] = []
    for parameter in parameters:
        _check_parameter(parameter, hints, name)
        hint = hints[parameter.name]
        if _is_context(hint):
            contexts.append(parameter.name)
        elif parameter.default is None:
            fields[parameter.name] = (_or_none(hint), None)
        else:
            fields[parameter.name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
    if len(contexts) > 1:
        raise ConfigurationError(f"tool {name}: only one parameter may be a RunContext, not {' and '.join(contexts)}")
    return _arguments(fields, name), contexts[0] if contexts else None


def check_model(owner: str, attribute: str, model: Any) -> None:
    """Check that a class describes one JSON object: model APIs take nothing else."""
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        name = attribute.capitalize()
        raise ConfigurationError(
            f"{owner} needs a pydantic model as its {attribute}, not {model!r:.100}: write `class {name}(BaseModel)`"
        )
    if issubclass(model, RootModel):
        raise ConfigurationError(f"{owner}: its {attribute} is a RootModel: put the value in a field of a BaseModel")


def check_call(cls: type) -> bool:
    """Check the `__call__` of a tool's class and return whether it takes the context."""
    call, owner = cls.__call__, f"tool {cls.__name__}"
    expected = "write `async def __call__(self, arguments, context)`, or without the context"
    if not inspect.iscoroutinefunction(call):
        raise ConfigurationError(f"{owner}: its __call__ is not async: {expected}")
    signature = inspect.signature(call)
    if any("RunContext" in str(each.annotation) for each in list(signature.parameters.values())[1:2]):
        raise ConfigurationError(f"{owner}: its __call__ takes the context first: {expected}")
    for takes_context, values in ((True, ("self", "arguments", "context")), (False, ("self", "arguments"))):
        try:
            signature.bind(*values)
        except TypeError:
            continue
        return takes_context
    raise ConfigurationError(f"{owner}: its __call__ has other parameters: {expected}")


def _check_parameter(parameter: inspect.Parameter, hints: dict[str, Any], name: str) -> None:
    if parameter.kind not in _ORDINARY:
        raise ConfigurationError(f"tool {name}: parameter {parameter.name!r} must be an ordinary one")
    if parameter.name not in hints:
        if parameter.name == "self":
            raise ConfigurationError(f"tool {name} is a method: decorate a function, or write tool(instance.{name})")
        raise ConfigurationError(f"tool {name}: annotate the parameter {parameter.name!r} with its type")


def _or_none(hint: Any) -> Any:
    """Return the annotation of a parameter whose default is None: `limit: int = None` means `int | None`.

    What `Annotated` says, such as a description, stays that of the whole parameter.
    """
    if get_origin(hint) is Annotated:
        inner, *said = get_args(hint)
        return Annotated[(_or_none(inner), *said)]
    return hint if hint is Any else hint | None


def _is_context(hint: Any) -> bool:
    """Whether an annotation is `RunContext` or `RunContext[…]`, also inside `Annotated`, a union or a type alias."""
    hint = getattr(hint, "__value__", hint)
    kind = get_origin(hint)
    if kind in (Annotated, Union, UnionType):
        return any(map(_is_context, get_args(hint)))
    return RunContext in (hint, kind)


def _arguments(fields: dict[str, Any], name: str) -> type[BaseModel]:
    with warnings.catch_warnings():
        # A parameter may have the name of a method of BaseModel, such as `copy` or `json`.
        warnings.filterwarnings("ignore", message="Field name .* shadows an attribute", category=UserWarning)
        try:
            model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        except (NameError, TypeError, ValueError, PydanticUserError) as exc:
            raise ConfigurationError(f"tool {name}: its parameters make no schema: {exc}") from exc
    if left_out := sorted(fields.keys() - model.model_fields.keys()):  # such as `_city`, or `model_config` of pydantic
        raise ConfigurationError(f"tool {name}: {left_out[0]!r} cannot be a parameter: give it another name")
    return model
