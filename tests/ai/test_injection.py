"""The context in tools: injected where a parameter asks for it, and never shown to the model."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, assert_type

import pytest
from pydantic import BaseModel, Field, field_validator

from omniagent import ConfigurationError, RunContext, Tool, tool
from omniagent.errors import InvalidArguments


@dataclass
class Orders:
    owners: dict[str, str]


Context = RunContext[Orders]


@tool
async def order(number: str, context: RunContext[Orders]) -> str:
    """Look an order up."""
    return f"{context.deps.owners[number]} {context.call_id}"


@tool
def sync_order(context: Context, number: str = "7") -> str:
    """Look an order up, in a thread."""
    return f"{context.deps.owners[number]} {context.call_id}"


@tool
async def annotated_order(number: str, ctx: Annotated[RunContext | None, "the run"] = None) -> str:
    """Look an order up."""
    return f"{ctx.deps.owners[number]} {ctx.call_id}" if ctx else ""


class Order(Tool):
    """Look an order up."""

    class Arguments(BaseModel):
        number: str

    async def __call__(self, arguments: Arguments, context: RunContext[Orders]) -> str:
        return f"{context.deps.owners[arguments.number]} {context.call_id}"


TOOLS: list[Tool] = [order, sync_order, annotated_order, Order()]


@pytest.mark.parametrize("each", TOOLS, ids=lambda each: type(each).__name__ + each.name)
async def test_a_tool_gets_the_context_and_the_model_does_not_see_it(each: Tool) -> None:
    context: RunContext[Orders] = RunContext(user="ada", deps=Orders({"7": "ada"}))
    assert await each.invoke(each.parse('{"number": "7"}'), replace(context, call_id="call-1")) == "ada call-1"
    assert list(each.spec.parameters["properties"]) == ["number"]


def test_the_model_cannot_write_the_context() -> None:
    with pytest.raises(InvalidArguments, match="context: Extra inputs are not permitted"):
        order.parse('{"number": "7", "context": {"user": "eve"}}')


def traced(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A decorator that hides the signature."""

    async def wrapper(*args: Any) -> Any:
        return await call(*args)

    return wrapper


async def test_a_class_tool_with_a_decorated_call_gets_the_context() -> None:
    class Decorated(Tool):
        """Decorated."""

        class Arguments(BaseModel):
            number: str

        @traced
        async def __call__(self, arguments: Arguments, context: RunContext) -> str:
            return f"{arguments.number} {context.user}"

    each = Decorated()
    assert await each.invoke(each.parse('{"number": "7"}'), RunContext(user="ada")) == "7 ada"


async def test_a_decorated_function_can_still_be_called_as_a_function() -> None:
    context: RunContext[Orders] = RunContext(user="ada", deps=Orders({"7": "ada"}))
    assert assert_type(await order("7", context), str) == "ada None"
    assert assert_type(sync_order(context), str) == "ada None"


async def test_parameters_may_be_named_like_methods_of_pydantic() -> None:
    @tool
    async def export(json: str, copy: bool, schema: str = "public") -> str:
        """Export something."""
        return f"{json} {copy} {schema}"

    assert await export.invoke(export.parse('{"json": "a", "copy": true}'), RunContext(user="ada")) == "a True public"


async def test_a_bound_method_can_be_a_tool() -> None:
    class Shop:
        async def price(self, item: str, context: RunContext) -> str:
            """Tell a price."""
            return f"{item} for {context.user}"

    price = tool(Shop().price)
    assert await price.invoke(price.parse('{"item": "tea"}'), RunContext(user="ada")) == "tea for ada"


async def two_contexts(a: RunContext, b: RunContext[Orders]) -> str:
    return ""


async def unknown_type(city: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821 - that is the mistake
    return ""


async def yields(city: str) -> Any:
    yield city


async def method(self, city: str) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001 - that is the mistake
    return ""


async def underscored(_city: str) -> str:
    return ""


async def schemaless(city: threading.Event) -> str:
    return ""


async def unreadable(city: "1 / 0") -> str:  # type: ignore[valid-type]  # noqa: UP037 - that is the mistake
    return ""


async def pydantics_own(model_config: str) -> str:
    return ""


def unannotated(city) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001 - that is the mistake
    return str(city)


def variadic(*cities: str) -> str:
    return str(cities)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (two_contexts, "two_contexts: only one parameter may be a RunContext, not a and b"),
        (unknown_type, "unknown_type: the annotation 'Missing' is not known at run time: import it"),
        (yields, "yields: it yields: return one value"),
        (method, "method is a method: decorate a function, or write tool"),
        (underscored, "underscored: '_city' cannot be a parameter: give it another name"),
        (schemaless, "schemaless: its parameters make no schema"),
        (unreadable, "unreadable: its signature cannot be read: division by zero"),
        (max, "max: its signature cannot be read: no signature found"),
        (pydantics_own, "pydantics_own: 'model_config' cannot be a parameter: give it another name"),
        (unannotated, "annotate the parameter 'city' with its type"),
        (variadic, "parameter 'cities' must be an ordinary one"),
        ("weather", "@tool takes a function, not 'weather'"),
        (order, "@tool takes a function"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_with_what_to_write(function: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        tool(function)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(({"name": name}, "tool name .* may hold only letters") for name in (5, "two words", "ü", "x" * 65)),
        ({"description": 5}, "f: description must be text, not 5"),
        ({"retry_safe": "no"}, "f: retry_safe must be True or False, not 'no'"),
        ({"approval": 1}, r"f: approval must be True, False or a function of \(context, arguments\), not 1"),
        ({"approval": 0}, r"f: approval must be True, False or a function of \(context, arguments\), not 0"),
        *(
            ({"timeout_seconds": limit}, f"f: timeout_seconds must be a number more than 0, not {limit!r}")
            for limit in (True, 0, -1, "5")
        ),
    ],
)
def test_an_option_of_another_type_is_refused(options: dict[str, Any], said: str) -> None:
    def f() -> str:
        """Do nothing."""
        return ""

    with pytest.raises(ConfigurationError, match=said):
        tool(**options)(f)


async def test_a_parameter_whose_default_is_none_may_be_none_whatever_its_annotation_says() -> None:
    @tool
    async def search(
        words: str,
        limit: int = None,  # type: ignore[assignment]  # noqa: RUF013 - the point
        first: Annotated[int, Field(ge=1, description="From 1.")] = None,  # type: ignore[assignment]  # noqa: RUF013
        last: Annotated[int | None, Field(description="To the end.")] = None,
    ) -> str:
        """Search."""
        return f"{words} {limit} {first} {last}"

    shown = search.spec.parameters["properties"]
    assert shown["limit"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    from_one = {"anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}], "description": "From 1."}
    assert shown["first"] == from_one
    assert shown["last"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "To the end."}
    arguments = search.parse('{"words": "tea", "limit": null}')
    assert await search.invoke(arguments, RunContext(user="ada")) == "tea None None None"
    with pytest.raises(InvalidArguments, match="first"):
        search.parse('{"words": "tea", "first": 0}')


class Arguments(BaseModel): ...


async def fitting(self: Tool, arguments: Any) -> Any: ...


def sync(self: Tool, arguments: Any) -> Any: ...


async def turned(self: Tool, context: RunContext, arguments: Any) -> Any: ...


async def wide(self: Tool, city: str, days: int, context: RunContext) -> Any: ...


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"__call__": fitting}, "needs a pydantic model as its Arguments"),
        ({"__call__": fitting, "Arguments": dict}, "needs a pydantic model as its Arguments"),
        ({"__call__": sync, "Arguments": Arguments}, "its __call__ is not async: write `async def __call__"),
        ({"__call__": turned, "Arguments": Arguments}, "its __call__ takes the context first: write `async def"),
        ({"__call__": wide, "Arguments": Arguments}, "its __call__ has other parameters"),
    ],
)
def test_a_class_that_cannot_be_a_tool_is_refused_with_what_to_write(members: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"tool Shop:? {said}"):
        type("Shop", (Tool,), members)


class Strange(BaseModel):
    city: str

    @field_validator("city")
    @classmethod
    def known(cls, city: str) -> str:
        raise KeyError(f"secret of {city}")


def test_a_validator_that_raises_anything_makes_invalid_arguments(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def weather(place: Strange) -> str:
        """Weather."""
        return place.city

    with pytest.raises(InvalidArguments, match="Invalid arguments for weather: they could not be checked") as refused:
        weather.parse('{"place": {"city": "Lisbon"}}')
    assert "secret" not in str(refused.value)
    [record] = caplog.records
    assert record.message == "validator failed"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


async def test_a_sync_tool_runs_in_a_thread_with_the_callers_context_variables() -> None:
    request_id = contextvars.ContextVar("request_id", default="none")
    request_id.set("r-1")

    @tool
    def where() -> list[Any]:
        """Where."""
        return [request_id.get(), threading.current_thread() is threading.main_thread()]

    assert await where.invoke(where.parse("{}"), RunContext(user="ada")) == ["r-1", False]
