"""Whatever is sent to POST /chat, it is answered or refused, and a refusal leaves nothing behind."""

import copy
import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from omniagent.protocol import sse
from tests.fixtures.examples import examples
from tests.fixtures.problems import check_problem
from tests.fixtures.stream import check_order
from tests.fixtures.world import World
from tests.security.fuzz import ANYTHING, BOUNDED, TEXT

Json = dict[str, Any]

PART = {"type": "text", "text": "Hello"}
GOOD: list[Json] = [
    {"session_id": "s", "query": "Hello", "message_id": "m"},
    {"id": "s", "message": {"id": "m", "role": "user", "parts": [PART]}},
    {"id": "s", "messages": [{"id": "m", "role": "user", "parts": [PART]}], "trigger": "submit-message"},
    {"id": "s", "messages": [{"id": "m"}], "trigger": "regenerate-message", "messageId": "a"},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything within a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


@st.composite
def nearly_good(draw: st.DrawFn) -> Any:
    """A good body with one thing in it replaced, left out, or given another name."""
    body = copy.deepcopy(draw(st.sampled_from(GOOD)))
    path = draw(st.sampled_from(places(body)))
    if not path:
        return draw(ANYTHING)
    parent: Any = body
    for key in path[:-1]:
        parent = parent[key]
    change = draw(st.sampled_from(["replace", "leave out", "rename"]))
    found = parent.pop(path[-1])
    if change == "leave out":
        return body
    value = draw(ANYTHING) if change == "replace" else found
    if isinstance(parent, list):
        parent.insert(path[-1], value)
    else:
        parent[draw(TEXT) if change == "rename" else path[-1]] = value
    return body


def check_answered_or_refused(world: World, content: bytes) -> None:
    before = world.documents()
    response = world.user().call("POST", "/chat", content=content, headers={"content-type": "application/json"})
    if response.status_code == 200:
        check_order(list(sse.decode(response.content)))
        assert response.content.endswith(sse.DONE)
    else:
        problem = check_problem(response)
        assert problem["status"] < 500, problem
        # Whoever asks is known from then on; nothing else is made.
        assert world.documents() | {"users": before["users"]} == before


@BOUNDED
@given(body=nearly_good())
def test_a_body_that_is_nearly_good_is_answered_or_refused(world: World, body: Any) -> None:
    check_answered_or_refused(world, json.dumps(body).encode())


@BOUNDED
@given(content=st.binary(max_size=60) | ANYTHING.map(lambda value: json.dumps(value).encode()))
@example(content=b'{"query": "' + b"\\ud800" + b'"}')
@example(content=b'{"query": "a", "query": {"$gt": ""}}')
def test_a_body_that_is_anything_is_answered_or_refused(world: World, content: bytes) -> None:
    check_answered_or_refused(world, content)


@settings(BOUNDED, max_examples=examples(10))  # an example is a whole turn
@given(text=TEXT)
def test_what_is_stored_of_any_text_is_what_was_said(world: World, text: str) -> None:
    user = world.user()
    response = user.post({"query": text, "session_id": user.session})
    if response.status_code == 200:
        [question, answer] = user.messages()
        assert question["parts"] == [{"type": "text", "text": text}]
        assert answer["role"] == "assistant"
    else:
        assert check_problem(response)["code"] == "invalid_request"
