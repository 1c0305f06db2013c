"""Reads a tool's signature, and says what to write instead when it cannot be a tool."""

import inspect
import warnings
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, RootModel, create_model
from pydantic.errors import PydanticUserError

from omniagent.ai.context import RunContext
from omniagent.errors import ConfigurationError

_ORDINARY = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def read_signature(function: Callable[..., Any], name: str) -> tuple[type[BaseModel], str | None]:
    """Return the model of a function's arguments, and the parameter that takes the context."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"tool {name}: it yields: return one value, and use context.emit for progress")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as exc:
        raise ConfigurationError(
            f"tool {name}: the annotation {exc.name!r} is not known at run time: "
            "import it at the top of the module, outside of TYPE_CHECKING"
        ) from exc
    fields: dict[str, Any] = {}
    contexts: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
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
