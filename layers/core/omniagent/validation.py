"""Options, checked by pydantic against their annotations when an object is created, and what is wrong with a value.

A class in an annotation requires an instance of it; `Annotated[…, check(function, …)]` adds a check with a text of its
own. The schemas are made here: pydantic's generator would look into every class, and costs a cold start milliseconds.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Protocol, Union, get_args, get_origin

from pydantic_core import CoreSchema, SchemaValidator, ValidationError, core_schema

from omniagent.errors import ConfigurationError

MAX_PROBLEMS = 5
_PLAIN: dict[Any, CoreSchema] = {
    str: core_schema.str_schema(strict=True),
    bool: core_schema.bool_schema(strict=True),
    int: core_schema.int_schema(strict=True),
    float: core_schema.float_schema(strict=True),
    Callable: core_schema.callable_schema(),
}


def check_fields(owner: str, options: Any) -> None:
    """Check the fields of a dataclass. Raises `ConfigurationError`, which says what to write."""
    check_declared(owner, type(options), {each.name: getattr(options, each.name) for each in fields(options)})


def check_declared(owner: str, declared: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Check options against the annotations of a class's fields or a function's parameters."""
    try:
        _validator(declared).validate_python(options, context=owner)
    except ValidationError as exc:
        raise ConfigurationError(f"{owner}: {first_problem(exc)}") from exc


def check(function: Callable[..., None], *parameters: str) -> Callable[[str, CoreSchema], CoreSchema]:
    """Have `function(where, value, *parameters)` check a value before its type is. An optional value may be None."""

    def add(name: str, schema: CoreSchema) -> CoreSchema:
        def checked(value: Any, info: core_schema.ValidationInfo) -> Any:
            function(f"{info.context}: {name}", value, *parameters)
            return value

        return core_schema.with_info_before_validator_function(checked, schema)

    return add


def check_rule(where: str, rule: Any, *parameters: str, kinds: str = "a function") -> None:
    """Refuse what is not a function of these parameters. `kinds` says what else it could have been."""
    if not callable(rule):
        raise ConfigurationError(f"{where} must be {kinds} of ({', '.join(parameters)}), not {rule!r:.100}")
    try:
        inspect.signature(rule).bind(*parameters)
    except TypeError as exc:
        raise ConfigurationError(f"{where} must take ({', '.join(parameters)})") from exc
    except ValueError:  # a built-in without a signature
        return


def check_async(where: str, callback: Any, *parameters: str) -> None:
    """Refuse a callback that is not async, or not called with these parameters."""
    is_function = inspect.isroutine(callback) or isinstance(callback, functools.partial)
    # Of another object that can be called, only the call would show whether it is async.
    if not (inspect.iscoroutinefunction(callback) if is_function else callable(callback)):
        raise ConfigurationError(f"{where} must be an async function: write `async def`")
    check_rule(where, callback, *parameters)


def check_sync(where: str, callback: Any, *parameters: str) -> None:
    """Refuse a callback that is async: nobody would await it."""
    if inspect.iscoroutinefunction(callback):
        raise ConfigurationError(f"{where} is not awaited: write `def`, without `async`")
    check_rule(where, callback, *parameters)


@functools.cache
def _validator(declared: Any) -> SchemaValidator:
    is_class = isinstance(declared, type)
    hints = {each.name: each.type for each in fields(declared)} if is_class else {**declared.__annotations__}
    hints.pop("return", None)
    schemas = {name: core_schema.typed_dict_field(_schema(name, hint)) for name, hint in hints.items()}
    return SchemaValidator(core_schema.typed_dict_schema(schemas))


def _schema(name: str, hint: Any) -> CoreSchema:
    """Return the schema of an annotation. What is quoted or generic is not checked."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        schema = inner[1](name, _schema(name, inner[0]))
        is_optional = NoneType in get_args(inner[0]) or getattr(inner[0], "__forward_arg__", "").endswith("| None")
        return core_schema.nullable_schema(schema) if is_optional else schema
    if kind in (Union, UnionType):
        kinds = tuple(get_origin(each) or each for each in inner)
        if NoneType in kinds and len(kinds) == 2:
            return core_schema.nullable_schema(_schema(name, inner[kinds[0] is NoneType]))
        kind = kinds if Callable not in kinds else Any
    if kind is Mapping:
        return core_schema.dict_schema(core_schema.str_schema(strict=True, min_length=1), _schema(name, inner[1]))
    if kind in _PLAIN:
        return _PLAIN[kind]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not all(isinstance(each, type) and each not in (Any, type) for each in kinds):
        return core_schema.any_schema()
    return core_schema.is_instance_schema(kinds, cls_repr=" or ".join(each.__name__ for each in kinds))


class Invalid(Protocol):
    """The error of pydantic, or FastAPI's of the same shape."""

    def errors(self) -> Sequence[Any]: ...


def problems_of(exc: Invalid, *, whole: str = "body", at: str = "") -> str:
    """Describe what is wrong and where, without repeating the input.

    `whole` names the value itself, and `at` is its place in a larger one.
    """
    prefix = [at] if at else []
    errors = [(".".join(map(str, (*prefix, *each["loc"]))), each["msg"]) for each in exc.errors()[:MAX_PROBLEMS]]
    return "; ".join(f"{place or whole}: {text.removeprefix('Value error, ')}" for place, text in errors)


def first_problem(exc: Invalid) -> str:
    """Describe the first mistake with the value, for the developer who wrote it."""
    error = exc.errors()[0]
    name, *keys = error["loc"]
    text = error["msg"].replace("Input should be", "must be")
    return f"{name}{keys[:1] or ''} {text}, not {error['input']!r:.100}"
