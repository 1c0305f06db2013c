"""What the offline model answers: the same through both APIs, streamed or whole."""

import json
from functools import partial

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from local.model import OfflineModel
from local.model.conversation import Conversation, Message
from local.model.script import decide
from omniagent import InMemorySessionManager, Runner, Settings
from tests.local.model_client import APIS, Answer, Api, Asker, Json, function

TEXT = {"type": "string"}
CALCULATOR = function("calculator", "Evaluate an arithmetic expression.", expression=TEXT)
TIME = function("current_time", "The current date and time in a time zone.", timezone=TEXT)
WEATHER = function(
    "get_weather",
    "The weather forecast for a city.",
    city=TEXT,
    unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
    days={"anyOf": [{"type": "integer"}, {"type": "null"}]},
)
DICE = function("roll_dice", "Roll some dice.", sides={"type": "integer"}, count={"type": "integer"})
NOTES = function("search_notes", "Search the saved notes.", query=TEXT)
TOOLS = [CALCULATOR, TIME, WEATHER, DICE, NOTES]


@pytest.fixture
def stream(client: AsyncOpenAI) -> Asker:
    return Asker(client, "responses", stream=True)


def calls(answer: Answer) -> list[tuple[str, dict[str, object]]]:
    return [(name, json.loads(arguments)) for name, arguments in answer.calls]


@pytest.mark.parametrize(
    "prompt", ["[reason] Tell me about rivers.", "[refuse]", "[length] Why?", "What is 6*7?", "What is my name?"]
)
async def test_every_way_of_asking_gets_the_same_answer_and_the_same_usage(client: AsyncOpenAI, prompt: str) -> None:
    asked = [Asker(client, api, stream=stream) for api in APIS for stream in (True, False)]
    first, *others = [
        await asker.ask(prompt, TOOLS, history=[("user", "My name is Ada."), ("assistant", "Hello")]) for asker in asked
    ]
    for other in others:
        assert (other.text, other.reasoning, other.refusal) == (first.text, first.reasoning, first.refusal)
        assert other.calls == first.calls
        assert other.usage == first.usage
    assert prompt != "What is my name?" or "Ada" in first.text


async def test_usage_is_exactly_what_was_streamed(stream: Asker) -> None:
    answer = await stream.ask("[reason] [long:250]")
    assert answer.usage is not None
    read, written, reasoned, total = answer.usage
    assert written == answer.pieces == 250 + reasoned
    assert reasoned > 0
    assert total == read + written


async def test_the_finish_says_why_the_answer_ended(asker: Asker) -> None:
    words = {"responses": ("completed", "completed", "incomplete"), "chat": ("stop", "tool_calls", "length")}
    prompts = ("Hello", "[tool:calculator]", "[length] Tell me about rivers.")
    assert tuple([(await asker.ask(prompt, TOOLS)).finish for prompt in prompts]) == words[asker.api]


async def test_a_token_limit_of_the_request_ends_the_answer_there(either: Asker) -> None:
    limit: Json = {"max_output_tokens" if either.api == "responses" else "max_completion_tokens": 20}
    answer = await either.ask("[long:50]", **limit)
    assert answer.usage is not None
    assert answer.usage[1] == 20
    assert answer.finish in {"incomplete", "length"}


async def test_markers_dictate_the_answer(stream: Asker) -> None:
    assert (await stream.ask("[echo:exactly [this](text)]")).text == "exactly [this](text)"
    assert (await stream.ask("[empty]")).text == ""
    assert "can't help" in (await stream.ask("[refuse]")).refusal
    assert (await stream.ask("[burst:30]")).text == (await stream.ask("[long:30]")).text


async def test_markers_in_the_history_do_nothing(either: Asker) -> None:
    history = [("user", "[fail:500] [refuse] [tool:calculator]"), ("assistant", "[empty]")]
    answer = await either.ask("Hello", TOOLS, instructions="Obey [refuse].", history=history)
    assert answer.text.startswith("Hello!")
    assert answer.calls == []


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
    ],
)
async def test_a_prompt_that_needs_tools_calls_them(
    stream: Asker, prompt: str, expected: list[tuple[str, dict[str, object]]]
) -> None:
    assert calls(await stream.ask(prompt, TOOLS)) == expected


async def test_the_example_agent_asks_before_a_large_refund_and_pays_a_small_one(model: OfflineModel) -> None:
    from agent import agent

    session = InMemorySessionManager("ada", settings=Settings(openai_base_url=model.base_url, openai_api_key="none"))
    runner = Runner(agent, session)
    small = await runner.run("Please refund order 1001, 20 euros")
    assert (small.status, "Refunded 20.00 euros for order 1001" in small.text) == ("complete", True)
    waiting = await runner.run("Please refund order 1001, 80 euros")
    [request] = waiting.requests
    assert (request.input, request.reason) == (
        {"order": 1001, "euros": 80},
        "Refunds of more than 50 euros need approval.",
    )
    assert "80.00 €" in (await runner.reply(request.approve()).result()).text


async def test_two_dates_fill_two_fields(stream: Asker) -> None:
    day = {"type": "string", "format": "date"}
    days = function("days_between", "Count the days from one date to another.", start=day, end=day)
    answer = await stream.ask("Count the days from 2026-03-01 to 2026-12-24", [days])
    assert calls(answer) == [("days_between", {"start": "2026-03-01", "end": "2026-12-24"})]


@pytest.mark.parametrize(
    "prompt",
    ["Hello!", "I had a great time yesterday.", "How are you?", "Tell me a story about a dragon", "My name is Ada."],
)
async def test_chit_chat_calls_no_tool(stream: Asker, prompt: str) -> None:
    answer = await stream.ask(prompt, TOOLS)
    assert answer.calls == []
    assert answer.text


async def test_arguments_fit_any_schema(stream: Asker) -> None:
    level = {"$ref": "#/$defs/Level"}
    booking = function(
        "book_table",
        "Book a table in a restaurant.",
        day={"type": "string", "format": "date"},
        guests={"type": "integer", "minimum": 1},
        email={"type": ["string", "null"]},
        outdoors={"type": "boolean"},
        level=level,
        wishes={"type": "array", "items": {"type": "string"}},
        contact={"type": "object", "properties": {"url": TEXT}, "required": ["url"]},
    )
    booking["parameters"]["$defs"] = {"Level": {"enum": ["plain", "fancy"]}}
    prompt = "Book a fancy table for 4 guests on 2026-05-17 with 'flowers' and \"candles\", see https://example.com/me"
    [(name, arguments)] = calls(await stream.ask(prompt, [booking]))
    assert name == "book_table"
    assert arguments == {
        "day": "2026-05-17",
        "guests": 4,
        "email": None,
        "outdoors": False,
        "level": "fancy",
        "wishes": ["flowers", "candles"],
        "contact": {"url": "https://example.com/me"},
    }


async def test_the_answer_after_the_tools_uses_what_they_returned(either: Asker) -> None:
    called, answered = await either.ask_to_the_end("What is 6*7?", TOOLS, output='{"result": 42}')
    assert [name for name, _ in called.calls] == ["calculator"]
    assert "42" in answered.text


async def test_markers_call_tools_in_parallel_and_in_a_chain(asker: Asker) -> None:
    prompt = '[tool:a {"text": "]"}] [tool:b {"n": [1, 2]}] [then] [tool:c {}] [then] [echo:All done.]'
    first, second, third = await asker.ask_to_the_end(prompt, TOOLS)
    assert first.calls == [("a", '{"text": "]"}'), ("b", '{"n": [1, 2]}')]
    assert len(set(first.call_ids)) == 2
    assert second.calls == [("c", "{}")]
    assert third.text == "All done."


async def test_a_prompt_in_plain_words_makes_a_chain_too(stream: Asker) -> None:
    prompt = "Roll a die with 6 sides, then tell me what time it is in Rome."
    *steps, last = await stream.ask_to_the_end(prompt, TOOLS)
    assert [[name for name, _ in step.calls] for step in steps] == [["roll_dice"], ["current_time"]]
    assert "roll_dice" in last.text


async def test_without_parallel_calls_there_is_one_call_at_a_time(stream: Asker) -> None:
    answer = await stream.ask("[tool:a {}] [tool:b {}]", TOOLS, parallel_tool_calls=False)
    assert answer.calls == [("a", "{}")]


async def test_the_tool_choice_of_the_request_is_obeyed(stream: Asker) -> None:
    assert (await stream.ask("What is 6*7?", TOOLS, tool_choice="none")).calls == []
    assert len((await stream.ask("Hello", TOOLS, tool_choice="required")).calls) == 1
    forced = await stream.ask("Hello", TOOLS, tool_choice={"type": "function", "name": "roll_dice"})
    assert [name for name, _ in forced.calls] == ["roll_dice"]


async def test_broken_arguments_are_corrected_in_the_next_step(either: Asker) -> None:
    broken, corrected, last = await either.ask_to_the_end("[bad-args:get_weather] in Oslo", TOOLS, output="Error")
    with pytest.raises(json.JSONDecodeError):
        calls(broken)
    assert calls(corrected) == [("get_weather", {"city": "Oslo", "unit": "celsius", "days": None})]
    assert last.text


async def test_a_loop_never_stops_calling(stream: Asker) -> None:
    steps = [("roll_dice", "{}", "4")] * 25
    assert [name for name, _ in (await stream.ask("[loop:roll_dice]", TOOLS, steps=steps)).calls] == ["roll_dice"]


async def test_text_can_come_before_a_call(asker: Asker) -> None:
    answer = await asker.ask("[reason] [echo:Let me look.] [tool:roll_dice]", TOOLS)
    assert answer.text == "Let me look."
    assert answer.reasoning
    assert len(answer.calls) == 1


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
async def test_it_remembers_what_the_user_said(stream: Asker, question: str, expected: str) -> None:
    said = "Hi, my name is Ada and I live in Rome. My favourite colour is blue."
    answer = await stream.ask(question, history=[("user", said), ("assistant", "Noted.")])
    assert expected in answer.text


async def test_it_remembers_what_a_summary_in_the_instructions_says(either: Asker) -> None:
    instructions = "Be kind.\n\n# Summary of the conversation so far\nThe user's name is Ada."
    assert "Ada" in (await either.ask("What is my name?", instructions=instructions)).text


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Write a Python function that reverses a string", "```python"),
        ("Write a SQL query for the top customers", "```sql"),
        ("What is the difference between MongoDB and DynamoDB?", "|---|"),
        ("Give me 5 tips for better sleep", "1. "),
        ("Explain how streaming works", "## How streaming works"),
        ("What is 12 / 4?", "**3**"),
    ],
)
async def test_answers_have_the_form_that_was_asked_for(stream: Asker, prompt: str, expected: str) -> None:
    assert expected in (await stream.ask(prompt)).text


TRANSCRIPT = (
    "# Previous summary\nMy cat is called Tom.\n\n# New messages\n"
    "user: Hi, my name is Ada. [fail:500]\nassistant: Hello Ada.\nuser: Which wines go with grilled fish?"
)


async def test_a_summary_keeps_the_facts(either: Asker) -> None:
    asked = "Fold the new messages into the previous summary. Answer with the new summary only."
    text = (await either.ask(TRANSCRIPT, instructions=asked)).text
    assert "Ada" in text
    assert "wines" in text
    history = [("user", "My name is Grace."), ("assistant", "Hello.")]
    assert "Grace" in (await either.ask("Summarise the conversation above.", history=history)).text


async def test_a_chat_gets_a_short_name(stream: Asker) -> None:
    title = (await stream.ask(TRANSCRIPT, instructions="Give a title of two to six words for the conversation.")).text
    assert title == "Hi, my name is Ada"


@pytest.mark.parametrize("said", ["hi", "Hello!", "👋"])
async def test_a_greeting_makes_a_sensible_title(stream: Asker, said: str) -> None:
    transcript = f"# Messages\nuser: {said}\nassistant: Hello! Ask me anything."
    title = (await stream.ask(transcript, instructions="Give a title of two to six words for the conversation.")).text
    assert title == "A Short Friendly Chat"


@pytest.mark.parametrize("task", ["summary", "title"])
async def test_a_marker_can_be_addressed_to_a_summary_or_a_title(stream: Asker, task: str) -> None:
    asked = f"Write a {task} for the conversation."
    assert (await stream.ask(f"user: Hello [{task}:empty]", instructions=asked)).text == ""
    assert (await stream.ask(f"Hello [{task}:empty]")).text.startswith("Hello!")


async def test_content_may_come_in_parts(client: AsyncOpenAI) -> None:
    parts = [{"type": "input_text", "text": "[echo:first "}, {"type": "input_text", "text": "second]"}]
    items: list[object] = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": parts}]
    response = await client.responses.create(model="offline", input=items)  # type: ignore[arg-type]
    assert response.output_text == "first second"


@pytest.mark.parametrize("api", APIS)
async def test_requests_are_kept_for_tests_without_the_key(model: OfflineModel, client: AsyncOpenAI, api: Api) -> None:
    await Asker(client, api, stream=False).ask("Remember this one.", user="u1")
    kept = model.requests[-1]
    assert (kept.api, kept.body["user"]) == (api, "u1")
    assert "user-agent" in kept.headers
    assert "authorization" not in kept.headers


def asked_for(api: Api, schema: Json, *, strict: bool = False) -> Json:
    """The parameter of either API that asks for JSON of a schema."""
    output = {"name": "answer", "schema": schema, "strict": strict}
    if api == "responses":
        return {"text": {"format": {"type": "json_schema", **output}}}
    return {"response_format": {"type": "json_schema", "json_schema": output}}


async def test_an_answer_fits_the_schema_that_was_asked_for(either: Asker) -> None:
    parameters = WEATHER["parameters"]
    answer = await either.ask("Is it raining in Lisbon, in celsius?", **asked_for(either.api, parameters, strict=True))
    assert json.loads(answer.text) == {"city": "Lisbon", "unit": "celsius", "days": None}


async def test_tools_come_before_the_answer_in_json_and_markers_dictate_it(either: Asker) -> None:
    output = asked_for(either.api, {"type": "object", "properties": {"total": {"type": "integer"}}})
    first = await either.ask("Calculate 2 + 3", [CALCULATOR], **output)
    assert [name for name, _ in first.calls] == ["calculator"]
    steps = [("calculator", first.calls[0][1], "The total is 5")]
    last = await either.ask("Calculate it.", [CALCULATOR], steps=steps, **output)
    assert json.loads(last.text) == {"total": 5}
    assert (await either.ask("[echo:not JSON]", **output)).text == "not JSON"


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
    return st.dictionaries(names, fields, max_size=4).map(
        lambda properties: {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    )


SCHEMA = _objects(
    st.recursive(
        LEAF,
        lambda inner: st.one_of(
            _objects(inner),
            st.builds(
                lambda item, least: {"type": "array", "items": item, "minItems": least}, inner, st.integers(0, 2)
            ),
            inner.map(lambda schema: {"anyOf": [schema, {"type": "null"}]}),
        ),
        max_leaves=6,
    )
)


@given(schema=SCHEMA, prompt=st.sampled_from(["", "Book 3 seats to Paris on 2026-05-01", '"one" and 2.5 or -7, done']))
def test_whatever_the_schema_the_answer_fits_it(schema: Json, prompt: str) -> None:
    answer, _ = decide(Conversation(items=(Message("user", prompt),), output=schema))
    jsonschema_rs.validate(schema, json.loads(answer.text))


def test_a_schema_that_contains_itself_gets_an_answer_with_an_end() -> None:
    node = {
        "type": "object",
        "properties": {
            "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
        },
        "required": ["children", "next"],
    }
    schema = {**node, "$defs": {"Node": node}}
    answer, _ = decide(Conversation(items=(Message("user", "Draw a tree."),), output=schema))
    jsonschema_rs.validate(schema, json.loads(answer.text))
