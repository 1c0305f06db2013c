"""The offline model answers whatever it is sent: its expressions read a bounded text, so none of these takes long.

Before, a few thousand of most of these characters took half a minute of everybody's time; these would take an hour.
"""

import httpx
import pytest

from local.model import build_app
from tests.local.model_tools import TEXT, Json, function

LENGTH = 10_000
TOOLS = [
    function("calculator", "Evaluate an arithmetic expression.", expression=TEXT),
    function("book_flight", "Book a flight.", origin=TEXT, date=TEXT, passengers={"type": "integer"}, email=TEXT),
]
RUNS = ["-", "(", ")", "9", "a", " ", "\n", ".", "“a ", "- ", "1.", "1,000", "1*", "a@", "a-", "A, ", "in Aa ", "then "]
RUNS += ["[echo:", '[tool:x "', "[tool:x [", "what is my ", "summary ", "user: a\n", "<summary>", "?\n", "1 times "]


@pytest.fixture
async def http() -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(build_app()), base_url="http://127.0.0.1")


def requests(text: str) -> list[Json]:
    """A question with tools, a request for a name, and a tool's result."""
    called = {"type": "function_call", "call_id": "c", "name": "calculator", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": text}
    return [
        {"input": f"{text} What is 2 + 2?", "tools": TOOLS},
        {"input": f"user: {text}", "instructions": "Name this chat."},
        {"input": [{"role": "user", "content": "Book a flight, then calculate."}, called, result], "tools": TOOLS},
    ]


@pytest.mark.parametrize("run", RUNS)
async def test_a_long_run_of_anything_is_answered(http: httpx.AsyncClient, run: str) -> None:
    for request in requests(run * (LENGTH // len(run))):
        answer = await http.post("/v1/responses", json={"model": "offline", **request})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "text",
    [
        "9" * 8_000,
        "-" * 900 + "1+1",
        "(" * 90 + "1" + ")" * 90 + "+1",
        "1+" * 45 + "1",
        "[slow:²] [long:٣] hello",
        "[tool:calculator " + "[" * 5_000,
        "9" * 190 + "." + "9" * 190 + " + 1",
    ],
    ids=lambda text: text[:16],
)
async def test_strange_numbers_and_brackets_are_no_error_of_the_server(http: httpx.AsyncClient, text: str) -> None:
    for tools in ([], TOOLS):
        answer = await http.post("/v1/responses", json={"model": "offline", "input": text, "tools": tools})
        assert answer.status_code == 200, answer.text


async def test_the_end_of_a_long_message_is_read_as_its_beginning_is(http: httpx.AsyncClient) -> None:
    pasted = "A line of a log that somebody pasted. " * 500
    answer = await http.post(
        "/v1/responses", json={"model": "m", "input": f"{pasted}\nPlease calculate 21 * 2.", "tools": TOOLS}
    )
    assert [item["arguments"] for item in answer.json()["output"]] == ['{"expression": "21 * 2"}']
