"""Whatever the model sends, the turn ends one way, and what is stored of it is accepted by the next turn."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from local.model import OfflineModel
from omniagent.protocol import sse
from omniagent.settings import OpenAIApi
from tests.fixtures.examples import examples
from tests.fixtures.problems import check_tells_nothing
from tests.fixtures.stream import check_order
from tests.fixtures.world import World, open_world
from tests.providers.test_bytes import EVENT
from tests.security.fuzz import ANYTHING, BOUNDED, TEXT
from tests.security.rogue import RogueModel

Json = dict[str, Any]
# An example is two whole turns. `tests/providers/test_bytes` reads many more answers, and arbitrary bytes.
FEW = settings(BOUNDED, max_examples=examples(8))


@dataclass(frozen=True)
class Meeting:
    api: str
    rogue: RogueModel
    world: World


@pytest.fixture(scope="module", params=get_args(OpenAIApi))
def meeting(request: pytest.FixtureRequest, mongod: str, model: OfflineModel) -> Iterator[Meeting]:
    """The functions before a model that cannot be trusted."""
    with RogueModel(model.base_url) as rogue, open_world(mongod, rogue.base_url, openai_api=request.param) as world:
        yield Meeting(request.param, rogue, world)


# A tool call and a text in each API, with everything in it that a model can choose.
def called(api: str, call_id: Any, name: Any, arguments: Any, index: int = 0) -> list[Json]:
    if api == "chat":
        call = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        return [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}]
    item = {"type": "function_call", "id": f"fc_{index}", "call_id": call_id, "name": name, "arguments": arguments}
    added = {"type": "response.output_item.added", "output_index": index, "item": {**item, "arguments": ""}}
    return [added, {"type": "response.output_item.done", "output_index": index, "item": item}]


def said(api: str, text: Any) -> list[Json]:
    if api == "chat":
        return [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}]
    return [{"type": "response.output_text.delta", "output_index": 0, "delta": text}]


def finished(api: str, usage: Any) -> list[Json]:
    if api == "chat":
        return [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
    return [{"type": "response.completed", "response": {"status": "completed", "usage": usage}}]


def framed(events: list[Json]) -> bytes:
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)


def check_survives(meeting: Meeting, lies: list[bytes]) -> None:
    """Have a turn answered by lies, then another by the honest model."""
    user = meeting.world.user()
    meeting.rogue.lies[:] = lies
    response = user.post({"session_id": user.session, "query": "Tell me"})
    meeting.rogue.lies.clear()
    assert response.status_code == 200, response.text
    assert response.content.count(sse.DONE) == 1
    assert response.content.endswith(sse.DONE)
    events = list(sse.decode(response.content))
    check_order(events)
    if events[-1]["type"] == "error":
        check_tells_nothing(events[-1]["errorText"])
    [_, answer] = user.messages()
    assert answer["id"] == events[0]["messageId"]
    assert answer["metadata"]["status"] in {"complete", "failed"}
    again = user.ask("[echo:All is well]")
    assert [event["type"] for event in again[-2:]] == ["finish", "data-session"], again[-1]
    assert again[-1]["data"]["status"] == "complete"
    assert len(user.messages()) == 4


@FEW
@given(events=st.lists(EVENT, max_size=5), good=st.booleans())
def test_events_of_a_wrong_shape(meeting: Meeting, events: list[Json], good: bool) -> None:
    ended = finished(meeting.api, None) if good else []
    check_survives(meeting, [framed([*said(meeting.api, "So"), *events, *ended])])


NAME = TEXT | st.just("calculator") | ANYTHING
ARGUMENTS = TEXT | ANYTHING.map(json.dumps) | st.just('{"expression": "1 + 1"}') | ANYTHING
USAGE = (
    st.none()
    | ANYTHING
    | st.dictionaries(
        st.sampled_from(["input_tokens", "output_tokens", "prompt_tokens", "completion_tokens", "total_tokens"]),
        ANYTHING,
    )
)


@FEW
@given(
    calls=st.lists(st.tuples(TEXT | ANYTHING, NAME, ARGUMENTS), min_size=1, max_size=3),
    text=TEXT | ANYTHING,
    usage=USAGE,
)
@example(calls=[("same", "calculator", "{}"), ("same", "calculator", "{}")], text="", usage=None)
@example(calls=[("", "", "")], text="", usage=None)
@example(calls=[("a", "calculator", '{"$where": {"a.b": {"": 1, "\\u0000": 2}}}')], text="\0", usage=None)
@example(calls=[("a", "calculator", "[" * 5000)], text="x", usage={"output_tokens": 10**30})
def test_calls_and_texts_that_make_no_sense(
    meeting: Meeting, calls: list[tuple[Any, Any, Any]], text: Any, usage: Any
) -> None:
    events = [event for index, call in enumerate(calls) for event in called(meeting.api, *call, index=index)]
    lie = framed([*said(meeting.api, text), *events, *finished(meeting.api, usage)])
    check_survives(meeting, [lie, framed([*said(meeting.api, "Done."), *finished(meeting.api, None)])])
