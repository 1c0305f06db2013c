"""What the offline model answers, whichever API it is called by. Its markers are proved by the tests that use them."""

import json
from functools import partial
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.model import demo
from local.model.answer import Answer
from local.model.conversation import Call, Conversation, Item, Message, Output, Tool
from local.model.script import decide
from tests.local.model_tools import TEXT, Json, schema


def tool(name: str, description: str, **properties: Json) -> Tool:
    return Tool(name, description, schema(**properties))


TOOLS = (
    tool("calculator", "Evaluate an arithmetic expression.", expression=TEXT),
    tool("current_time", "The current date and time in a time zone.", timezone=TEXT),
    tool(
        "get_weather",
        "The weather forecast for a city.",
        city=TEXT,
        unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
        days={"anyOf": [{"type": "integer"}, {"type": "null"}]},
    ),
    tool("roll_dice", "Roll some dice.", sides={"type": "integer"}, count={"type": "integer"}),
    tool("search_notes", "Search the saved notes.", query=TEXT),
)


def ask(prompt: str, *steps: tuple[Call, str], said: str = "", tools: tuple[Tool, ...] = TOOLS, **more: Any) -> Answer:
    """The answer to a prompt, after steps of tool calls with their outputs."""
    items: list[Item] = [Message("user", said), Message("assistant", "Noted.")] if said else []
    items.append(Message("user", prompt))
    for number, (call, output) in enumerate(steps):
        items += [Call(call.name, call.arguments, f"call_{number}"), Output(f"call_{number}", output)]
    return decide(Conversation(items=tuple(items), tools=tools, **more))[0]


def ask_to_the_end(prompt: str, output: str = "ok") -> list[Answer]:
    """Give each tool call an output, until the model answers without one."""
    steps: list[tuple[Call, str]] = []
    answers = [ask(prompt)]
    while answers[-1].calls:
        steps += [(call, output) for call in answers[-1].calls]
        answers.append(ask(prompt, *steps))
    return answers


def calls(answer: Answer) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


def test_a_token_limit_of_the_request_ends_the_answer_there() -> None:
    answer = ask("[long:50]", max_tokens=20)
    assert (answer.output_tokens, answer.finish) == (20, "length")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("What is 6*7?", [("calculator", {"expression": "6*7"})]),
        ("How much is 12 times 9?", [("calculator", {"expression": "12 * 9"})]),
        ("What is 17.5% of 2,340?", [("calculator", {"expression": "17.5 / 100 * 2340"})]),
        ("what time is it in new york", [("current_time", {"timezone": "America/New_York"})]),
        (
            "What is 6*7 and what time is it in Tokyo?",
            [("calculator", {"expression": "6*7"}), ("current_time", {"timezone": "Asia/Tokyo"})],
        ),
        (
            "What's the weather in Paris and Oslo in fahrenheit?",
            [
                ("get_weather", {"city": "Paris", "unit": "fahrenheit", "days": None}),
                ("get_weather", {"city": "Oslo", "unit": "fahrenheit", "days": None}),
            ],
        ),
        ("Roll 2 dice with 20 sides", [("roll_dice", {"sides": 20, "count": 2})]),
        ('Search my notes for "milk"', [("search_notes", {"query": "milk"})]),
        ("Please use the roll_dice tool", [("roll_dice", {"sides": 1, "count": 1})]),
        ("Hello!", []),
        ("I had a great time yesterday.", []),
        ("Tell me a story about a dragon", []),
        ("My name is Ada.", []),
    ],
)
def test_a_prompt_calls_the_tools_that_it_needs(prompt: str, expected: list[tuple[str, Any]]) -> None:
    assert calls(ask(prompt)) == expected


def test_every_suggestion_of_the_example_has_an_answer_written_by_hand() -> None:
    from agent import agent

    paid = "Refunded 80.00 euros for order 1001 (payment call_1)"
    results = [("calculator", "409.5"), ("current_time", "noon"), ("refund", paid)]
    assert [text for text in agent.suggestions if not demo.answer(text, results) or not demo.title(text)] == []


def test_arguments_fit_the_schema_of_the_tool() -> None:
    day = {"type": "string", "format": "date"}
    booking = tool(
        "book_table",
        "Book a table in a restaurant.",
        day=day,
        guests={"type": "integer", "minimum": 1},
        email={"type": ["string", "null"]},
        outdoors={"type": "boolean"},
        level={"$ref": "#/$defs/Level"},
        wishes={"type": "array", "items": {"type": "string"}},
        contact={"type": "object", "properties": {"url": TEXT}, "required": ["url"]},
    )
    booking.parameters["$defs"] = {"Level": {"enum": ["plain", "fancy"]}}
    prompt = "Book a fancy table for 4 guests on 2026-05-17 with 'flowers' and \"candles\", see https://example.com/me"
    expected = {
        "day": "2026-05-17",
        "guests": 4,
        "email": None,
        "outdoors": False,
        "level": "fancy",
        "wishes": ["flowers", "candles"],
        "contact": {"url": "https://example.com/me"},
    }
    assert calls(ask(prompt, tools=(booking,))) == [("book_table", expected)]
    days = tool("days_between", "Count the days from one date to another.", start=day, end=day)
    counted = ask("Count the days from 2026-03-01 to 2026-12-24", tools=(days,))
    assert calls(counted) == [("days_between", {"start": "2026-03-01", "end": "2026-12-24"})]


def test_a_prompt_with_a_then_calls_one_tool_after_the_other() -> None:
    *steps, last = ask_to_the_end("Roll a die with 6 sides, then tell me what time it is in Rome.", output="4")
    assert [[call.name for call in step.calls] for step in steps] == [["roll_dice"], ["current_time"]]
    assert "roll_dice" in last.text
    _, answered = ask_to_the_end("What is 6*7?", output='{"result": 42}')
    assert "42" in answered.text


def test_the_options_of_the_request_limit_the_calls() -> None:
    assert calls(ask("[tool:a {}] [tool:b {}]", parallel=False)) == [("a", {})]
    assert ask("What is 6*7?", tool_choice="none").calls == ()
    assert len(ask("Hello", tool_choice="required").calls) == 1
    assert [call.name for call in ask("Hello", tool_choice="roll_dice").calls] == ["roll_dice"]


def test_broken_arguments_are_corrected_in_the_next_step() -> None:
    broken, corrected, last = ask_to_the_end("[bad-args:get_weather] in Oslo", output="Error")
    with pytest.raises(json.JSONDecodeError):
        calls(broken)
    assert calls(corrected) == [("get_weather", {"city": "Oslo", "unit": "celsius", "days": None})]
    assert last.text


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is my name?", "Ada"),
        ("what's my favourite colour?", "blue"),
        ("Where do I live?", "Rome"),
        ("What did I say?", "favourite colour"),
        ("What do you remember about me?", "I live in Rome"),
        ("What is my age?", "not told me"),
    ],
)
def test_it_remembers_what_the_user_said(question: str, expected: str) -> None:
    said = "Hi, my name is Ada and I live in Rome. My favourite colour is blue."
    assert expected in ask(question, said=said, tools=()).text


TRANSCRIPT = (
    "# Previous summary\nMy cat is called Tom.\n\n# New messages\n"
    "user: Hi, my name is Ada. [fail:500]\nassistant: Hello Ada.\nuser: Which wines go with grilled fish?"
)
SUMMARIZE = "Fold the new messages into the previous summary. Answer with the new summary only."
NAME = "Give a title of two to six words for the conversation."


def test_a_summary_keeps_the_facts_and_is_remembered() -> None:
    text = ask(TRANSCRIPT, tools=(), instructions=SUMMARIZE).text
    assert {"Ada", "wines"} <= {word.strip(".,") for word in text.split()}
    instructions = "Be kind.\n\n# Summary of the conversation so far\nThe user's name is Ada."
    assert "Ada" in ask("What is my name?", tools=(), instructions=instructions).text
    beside = ask("Write the summary of everything above and call no tool.", said="My name is Grace.")
    assert "Grace" in beside.text, "it has the tools of the answer whose prompt it shares"


def test_a_chat_gets_a_short_name() -> None:
    assert ask(TRANSCRIPT, tools=(), instructions=NAME).text == "Hi, my name is Ada"
    greeting = ask("# Messages\nuser: 👋\nassistant: Hello! Ask me anything.", tools=(), instructions=NAME)
    assert greeting.text == "A Short Friendly Chat"


def test_tools_come_before_the_answer_in_json_and_markers_dictate_it() -> None:
    output = {"type": "object", "properties": {"total": {"type": "integer"}}}
    [call] = ask("Calculate 2 + 3", output=output).calls
    assert json.loads(ask("Calculate it.", (call, "The total is 5"), output=output).text) == {"total": 5}
    assert ask("[echo:not JSON]", output=output).text == "not JSON"


BOUNDS: dict[str, list[Json]] = {
    "integer": [{}, {"minimum": 5}, {"maximum": -5}, {"exclusiveMinimum": 3, "maximum": 9}, {"multipleOf": 4}],
    "number": [{}, {"exclusiveMaximum": 0}, {"minimum": 0.5}],
    "string": [{}, {"maxLength": 3}, {"minLength": 90}, {"enum": ["b", "a"]}, {"format": "uuid"}],
    "boolean": [{}],
}
LEAF = st.one_of(
    *(st.sampled_from(bounds).map(partial(dict[str, object], type=kind)) for kind, bounds in BOUNDS.items())
)


def _objects(fields: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    names = st.sampled_from(["city", "amount", "date", "tags", "query", "done", "value"])
    return st.dictionaries(names, fields, max_size=4).map(lambda properties: schema(**properties))


SCHEMA = _objects(
    st.recursive(
        LEAF,
        lambda inner: st.one_of(
            _objects(inner),
            st.builds(
                lambda item, least: {"type": "array", "items": item, "minItems": least}, inner, st.integers(0, 2)
            ),
            inner.map(lambda value: {"anyOf": [value, {"type": "null"}]}),
        ),
        max_leaves=6,
    )
)


@given(wanted=SCHEMA, prompt=st.sampled_from(["", "Book 3 seats to Paris on 2026-05-01", '"one" and 2.5 or -7, done']))
def test_whatever_the_schema_the_answer_fits_it(wanted: Json, prompt: str) -> None:
    jsonschema_rs.validate(wanted, json.loads(ask(prompt, tools=(), output=wanted).text))


def test_a_schema_that_contains_itself_gets_an_answer_with_an_end() -> None:
    node = {
        "type": "object",
        "properties": {
            "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
        },
        "required": ["children", "next"],
    }
    tree = {**node, "$defs": {"Node": node}}
    jsonschema_rs.validate(tree, json.loads(ask("Draw a tree.", tools=(), output=tree).text))
