"""The agent: each mistake is refused where it is made, with what to write instead."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, Field, RootModel

from omniagent import Agent, Callbacks, ConfigurationError, Overrides, RunContext, Tool, tool
from omniagent.errors import InvalidOutput, ModelError

ADA: RunContext = RunContext(user="ada", query="hello")


class Weather(Tool):
    """Weather."""

    class Arguments(BaseModel):
        city: str

    async def __call__(self, arguments: Arguments) -> str:
        return arguments.city


def plain_function(city: str) -> str:
    """Return the city."""
    return city


plain_tool = tool(plain_function)


class Report(BaseModel):
    title: str
    stars: int = Field(ge=1, le=5)


class Words(RootModel[list[str]]):
    pass


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tools": [Weather]}, r"Weather is a class: write Weather\(\) in tools"),
        ({"tools": [plain_function]}, "plain_function is a plain function: decorate it with @tool"),
        ({"tools": ["weather"]}, "'weather' is not a tool: use @tool or a subclass of Tool"),
        ({"tools": plain_tool}, r"tools must be a list: write tools=\[…\]"),
        ({"tools": [Weather(), Weather()]}, "two tools are named 'weather'"),
        ({"instructions": None}, r"instructions must be text, or a function of \(context\), not "),
        ({"instructions": ["Be helpful.", 1]}, r"instructions must be text, or a function of \(context\), not 1"),
        ({"instructions": lambda: ""}, r"instructions must take \(context\)"),
        ({"output": dict}, "needs a pydantic model as its output, not <class 'dict'>: write `class Output"),
        ({"output": Words}, "its output is a RootModel: put the value in a field of a BaseModel"),
        ({"model": object()}, "model must be the name of a model, or a list of names, not <object"),
        ({"model": ["gpt-6-sol", " "]}, r"model names an empty model: \["),
        ({"model": "gpt-6-sol, "}, "model names an empty model: 'gpt-6-sol, '"),
        ({"callbacks": plain_function}, "callbacks must be an instance of Callbacks, not <function"),
        ({"overrides": {"model": "m"}}, "overrides must be an instance of Overrides, not {"),
        ({"overrides": Overrides(instructions="x")}, r"overrides.instructions are for summaries: write Agent\(instr"),
        ({"summary": "m"}, "summary must be an instance of Overrides, not 'm'"),
        ({"fallback": None}, "fallback must be a valid string, not None"),
        ({"suggestions": "Hello"}, r"suggestions must be a list of texts: write suggestions=\[…\]"),
    ],
)
def test_a_mistake_is_refused_where_it_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^agent shop:? {said}"):
        Agent(**({"name": "shop", "instructions": ""} | options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"extra": None}, "extra must be a valid dictionary, not None"),
        ({"temperature": "hot"}, "temperature must be a valid number, not 'hot'"),
        ({"max_output_tokens": True}, "max_output_tokens must be a valid integer, not True"),
    ],
)
def test_overrides_of_another_type_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^Overrides: {said}"):
        Overrides(**options)


@tool
async def call_back(when: Callable[[], int]) -> int:
    """Has a parameter that pydantic can check, and no JSON can be."""
    return when()


class Promise(BaseModel):
    when: Callable[[], int]


@pytest.mark.parametrize(
    ("options", "model"), [({"tools": [call_back]}, "call_back_arguments"), ({"output": Promise}, "Promise")]
)
def test_a_schema_that_cannot_be_made_is_refused_with_the_agent(options: dict[str, Any], model: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{model} makes no JSON schema .* use types that JSON can express"):
        Agent("shop", "", **options)


def test_an_agent_has_a_name() -> None:
    with pytest.raises(ConfigurationError, match=r"Agent\(name=…\) must not be empty"):
        Agent("", "Be helpful.")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("on_start", "context"),
        ("on_tool_start", "context, name, input"),
        ("on_tool_end", "context, name, output"),
        ("on_finish", "context, result"),
    ],
)
def test_a_callback_that_is_not_async_or_has_other_parameters_is_refused(name: str, parameters: str) -> None:
    async def lonely() -> None: ...

    callbacks: list[Any] = [plain_function, lambda *_: None, partial(plain_function, "x"), "on_start"]
    for callback in callbacks:
        with pytest.raises(ConfigurationError, match=f"Callbacks: {name} must be an async function: write `async def`"):
            Callbacks(**{name: callback})
    with pytest.raises(ConfigurationError, match=rf"Callbacks: {name} must take \({parameters}\)"):
        Callbacks(**{name: lonely})  # type: ignore[arg-type]


def test_async_callbacks_of_every_kind_are_taken() -> None:
    async def function(*_: Any) -> None: ...

    class Listener:
        async def __call__(self, *_: Any) -> None: ...

    Callbacks(on_start=function, on_tool_start=Listener(), on_finish=partial(function, 1))


@pytest.mark.parametrize("result", [None, 7, b"text"])
async def test_instructions_that_return_no_text_are_told_at_the_turn(result: Any) -> None:
    async def later(context: RunContext) -> Any:
        return result

    for instructions in (lambda _: result, later):
        with pytest.raises(ConfigurationError, match=f"agent shop: its instructions returned {type(result).__name__}"):
            await Agent("shop", instructions).prompt_for(ADA)


async def test_instructions_are_text_or_made_of_the_context_by_a_function_or_an_object() -> None:
    async def later(context: RunContext) -> str:
        await asyncio.sleep(0)
        return f"For {context.user}."

    class Template:
        def __call__(self, context: RunContext) -> str:
            return f"For {context.user}."

    for instructions in ("For ada.", lambda context: f"For {context.user}.", later, Template()):
        assert "".join(await Agent("shop", instructions).prompt_for(ADA)) == "For ada."


def test_tools_may_come_from_any_iterable() -> None:
    agent = Agent("shop", "", (each for each in [Weather(), plain_tool]))  # type: ignore[call-overload]
    assert [spec.name for spec in agent.tool_specs] == ["plain_function", "weather"]
    assert agent.tools_by_name["weather"] is agent.tools[0]


Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    items: list[Item]


@pytest.mark.parametrize(
    ("output", "name", "required"), [(Report, "Report", ["title", "stars"]), (Page[int], "Page_int_", ["items"])]
)
def test_the_output_has_a_strict_schema_and_a_name_that_the_api_takes(
    output: type[BaseModel], name: str, required: list[str]
) -> None:
    form = Agent("shop", "", output=output).output_format
    assert form is not None
    assert (form.name, form.strict, form.schema["required"]) == (name, True, required)
    assert Agent("shop", "").output_format is None


def test_an_answer_is_validated_and_the_error_tells_the_model_what_to_correct() -> None:
    agent = Agent("shop", "", output=Report)
    assert agent.parse_output('{"title": "Tea", "stars": 5}') == Report(title="Tea", stars=5)
    with pytest.raises(InvalidOutput) as refused:
        agent.parse_output('{"stars": 9}')
    assert isinstance(refused.value, ModelError)
    assert str(refused.value) == (
        "The answer does not fit the schema Report: title: Field required; "
        "stars: Input should be less than or equal to 5. Answer again with the whole JSON."
    )
    with pytest.raises(InvalidOutput, match="schema Report: JSON: Invalid JSON"):
        agent.parse_output("Sorry.")


def test_free_text_has_nothing_to_parse() -> None:
    with pytest.raises(ConfigurationError, match="agent shop has no output"):
        Agent("shop", "").parse_output("{}")
