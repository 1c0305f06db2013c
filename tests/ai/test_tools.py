"""Tools: two ways to write one, one schema, and what each mistake is told."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union

import pytest
from openai.lib._pydantic import to_strict_json_schema
from pydantic import AnyUrl, BaseModel, Field

from local.model import OfflineModel
from omniagent import Agent, ConfigurationError, RunContext, Tool, client_tool, tool
from omniagent.ai.providers.llm_provider import ModelFinish, ModelRequest, ToolSpec
from omniagent.ai.tools import render_output
from omniagent.errors import InvalidArguments
from omniagent.messages import ChatMessage
from omniagent.providers import get_llm_provider

ADA: RunContext = RunContext(user="ada")


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Place(BaseModel):
    city: str = Field(description="The name of a city.", min_length=1)
    country: str | None = None


class Blob(BaseModel):
    content: bytes
    at: date


@dataclass
class Offer:
    place: Place
    unit: Unit
    until: datetime


class Weather(Tool):
    """Today's weather in a city."""

    class Arguments(BaseModel):
        city: Annotated[str, Field(description="The name of a city.")]
        days: int = 1

    async def __call__(self, arguments: Arguments) -> str:
        return f"{arguments.city}: {arguments.days}"


@tool
async def weather(city: Annotated[str, Field(description="The name of a city.")], days: int = 1) -> str:
    """Today's weather in a city."""
    return f"{city}: {days}"


def test_a_class_and_a_function_say_the_same_to_the_model() -> None:
    assert Weather().spec == weather.spec
    assert weather.spec == ToolSpec(
        name="weather",
        description="Today's weather in a city.",
        strict=True,
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The name of a city."},
                "days": {"type": "integer", "description": "Default: 1."},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    )


@pytest.mark.parametrize("tool", [Weather(), weather], ids=["class", "function"])
async def test_a_class_and_a_function_do_the_same(tool: Tool) -> None:
    assert await tool.invoke(tool.parse('{"city": "Lisbon"}'), ADA) == "Lisbon: 1"
    with pytest.raises(InvalidArguments, match=r"Invalid arguments for weather: city: Field required"):
        tool.parse("{}")


class Node(BaseModel):
    name: str
    children: list["Node"] = []


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float = Field(gt=0)


class Square(BaseModel):
    kind: Literal["square"]
    side: float


@tool
def everything(  # noqa: PLR0917 - that is the point
    text: Annotated[str, Field(max_length=5, pattern="^[a-z]+$")],
    number: Annotated[int, Field(ge=1, le=9)],
    fraction: float,
    flag: bool,
    choice: Literal["a", "b"],
    unit: Unit,
    when: date,
    price: Decimal,
    link: AnyUrl,
    place: Place,
    tree: Node,
    shape: Annotated[Union[Circle, Square], Field(discriminator="kind")],  # noqa: UP007 - as older code has it
    names: set[str],
    measured: Annotated[Unit, Field(description="A reference with a description.")] = Unit.CELSIUS,
    places: list[Place] = [],  # noqa: B006 - pydantic copies it
    maybe: int | None = None,
) -> str:
    """Take everything that strict mode can express."""
    return "taken"


@tool
def nothing() -> str:
    """Take nothing."""
    return "taken"


@tool
def free_form(labels: dict[str, int], anything: Any, pair: tuple[int, str]) -> str:
    """Take what strict mode cannot express."""
    return "taken"


class Recursive(Tool):
    """A tree as the arguments themselves."""

    Arguments = Node

    async def __call__(self, arguments: Node) -> str:
        return arguments.name


EVERY_SHAPE: list[Tool] = [everything, nothing, free_form, Recursive(), weather]


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_the_api_accepts_every_schema(api: str) -> None:
    """The offline model refuses what the real API refuses."""
    with OfflineModel() as model:
        provider = get_llm_provider("gpt-6-luna", api=api, base_url=model.base_url)
        specs = Agent("helper", "", EVERY_SHAPE).tool_specs
        request = ModelRequest("", [ChatMessage.user("[echo:Accepted.]")], specs)
        answer = [event async for event in provider.stream(request)]
        await provider.aclose()
    assert isinstance(answer[-1], ModelFinish)
    assert answer[-1].reason == "stop"


def test_strict_mode_is_used_where_it_can_be() -> None:
    assert [each.name for each in EVERY_SHAPE if not each.spec.strict] == ["free_form"]


def test_the_sdks_own_strict_schemas_require_and_forbid_the_same() -> None:
    """Held against the openai package's way to make a schema strict: objects, what is required, what is refused."""
    theirs, ours = to_strict_json_schema(everything.Arguments), everything.spec.parameters
    assert ours["required"] == theirs["required"]
    assert ours["$defs"].keys() == theirs["$defs"].keys()
    for name, schema in theirs["$defs"].items():
        assert ours["$defs"][name].get("required") == schema.get("required")
        assert ours["$defs"][name].get("additionalProperties") == schema.get("additionalProperties")


def test_a_strict_schema_leaves_out_what_the_api_refuses() -> None:
    text = json.dumps(everything.spec.parameters)
    for refused in ("uri", "title", "default", "discriminator", "oneOf", "maxLength", "uniqueItems"):
        assert f'"{refused}"' not in text
    assert "(?!" not in text


def test_a_referenced_parameter_keeps_its_description_and_default() -> None:
    @tool
    def forecast(
        unit: Annotated[Unit, Field(description="Of the temperature.")] = Unit.CELSIUS,
        place: Place = Place(city="Lisbon"),
        tree: Annotated[Node | None, Field(description="Where to look.")] = None,
    ) -> str:
        """Forecast the weather."""
        return f"{unit} {place} {tree}"

    properties = forecast.spec.parameters["properties"]
    assert forecast.spec.strict
    assert properties["unit"] == {
        "anyOf": [{"$ref": "#/$defs/Unit"}],
        "description": 'Of the temperature. Default: "celsius".',
    }
    assert properties["place"] == {
        "anyOf": [{"$ref": "#/$defs/Place"}],
        "description": 'Default: {"city": "Lisbon", "country": null}.',
    }
    assert properties["tree"]["description"] == "Where to look."


def test_a_default_or_an_extra_that_json_cannot_express_leaves_the_schema_valid_json() -> None:
    @tool
    def search(
        labels: Annotated[dict[str, int], Field(json_schema_extra={"since": date(2020, 1, 1)})],
        limit: float = math.inf,
    ) -> str:
        """Search."""
        return f"{labels} {limit}"

    assert not search.spec.strict
    assert json.loads(json.dumps(search.spec.parameters, allow_nan=False))["properties"]["limit"]["type"] == "number"


def test_what_strict_mode_cannot_say_is_still_enforced() -> None:
    with pytest.raises(InvalidArguments, match="city: String should have at least 1 character"):
        placed.parse('{"place": {"city": "", "country": null}}')


@tool
def placed(place: Place) -> str:
    """Take a place."""
    return place.city


def test_the_model_reads_at_most_five_mistakes() -> None:
    with pytest.raises(InvalidArguments) as refused:
        everything.parse("{}")
    assert str(refused.value).count("Field required") == 5


def test_a_tool_class_inherits_a_docstring_but_never_that_of_tool() -> None:
    class Silent(Tool):
        class Arguments(BaseModel):
            city: str

        async def __call__(self, arguments: Arguments) -> str:
            return "sun"

    class Weather(Silent):
        """Today's weather."""

    class Forecast(Weather):
        pass

    assert [tool.description for tool in (Silent, Weather, Forecast)] == ["", "Today's weather.", "Today's weather."]


def test_a_tool_without_a_docstring_is_refused() -> None:
    class Bare(Tool):
        class Arguments(BaseModel):
            city: str

        async def __call__(self, arguments: Arguments) -> str:
            return arguments.city

    async def bare() -> str:
        return ""

    for mistake in (lambda: tool(bare), lambda: client_tool(bare), lambda: Agent("a", "", [Bare()])):
        with pytest.raises(ConfigurationError, match="tool bare has no docstring: write what it does"):
            mistake()


def test_a_tool_can_be_given_another_name_description_and_time() -> None:
    @tool(name="rain", description="Will it rain?", timeout_seconds=2)
    def any_name(city: str) -> bool:
        """Not this one."""
        return True

    assert (any_name.name, any_name.description, any_name.timeout_seconds) == ("rain", "Will it rain?", 2)

    class Named(Weather):
        name = "forecast"
        description = "The days to come."

    assert (Named().spec.name, Named().spec.description) == ("forecast", "The days to come.")


@pytest.mark.parametrize(
    ("output", "rendered"),
    [
        ("text", "text"),
        (None, None),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        (date(2026, 5, 17), "2026-05-17"),
        (Place(city="Lisbon"), {"city": "Lisbon", "country": None}),
        (float("nan"), "nan"),
        (2**80, str(2**80)),
        ({1: "one"}, {"1": "one"}),
        ("half \ud83d", "half ?"),
        ({"a\0": ["half \ud83d"]}, {"a": ["half ?"]}),
        (
            [Offer(Place(city="Lisbon"), Unit.CELSIUS, datetime(2026, 5, 17, 9, 30, tzinfo=UTC))],
            [{"place": {"city": "Lisbon", "country": None}, "unit": "celsius", "until": "2026-05-17T09:30:00+00:00"}],
        ),
        (Blob(content=b"\xff", at=date(2026, 5, 17)), {"content": "b'\\xff'", "at": "2026-05-17"}),
    ],
)
def test_an_output_becomes_plain_json(output: Any, rendered: Any) -> None:
    assert render_output(output, 1000) == rendered


def test_objects_that_refer_to_each_other_are_refused_instead_of_rendered_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("omniagent.protocol.plain_json.MAX_VALUES", 10_000)
    tree: dict[str, Any] = {}
    tree |= {"left": tree, "right": tree}
    with pytest.raises(ValueError, match="refer to each other"):
        render_output(tree, 1000)


def test_a_long_output_is_cut_and_says_so() -> None:
    assert render_output(["x" * 200], 100) == '["' + "x" * 98 + "\n[cut: 104 more characters]"
