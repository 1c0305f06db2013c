"""Whatever the log of a dead turn holds, the turn is closed with what can be read, and the session goes on."""

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from local.aws import Aws
from local.model import OfflineModel
from omniagent.lambda_runtime import event_loop
from omniagent.messages import TextPart
from omniagent.session.manager import TurnStart, new_id
from omniagent.turns.lease import Claim
from tests.fixtures.examples import examples
from tests.fixtures.stream import check_order
from tests.fixtures.world import User, World, close, open_world
from tests.security.fuzz import ANYTHING, BOUNDED, TEXT

Json = dict[str, Any]
Put = Callable[[User, str, int, Json], None]

EVENTS: list[Json] = [
    {"type": "start", "messageId": "m"},
    {"type": "start-step"},
    {"type": "text-start", "id": "0"},
    {"type": "text-delta", "id": "0", "delta": "Hello"},
    {"type": "text-end", "id": "0"},
    {"type": "reasoning-delta", "id": "1", "delta": "Hm"},
    {"type": "tool-input-start", "toolCallId": "c", "toolName": "calculator"},
    {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": "{}"},
    {"type": "tool-input-available", "toolCallId": "c", "toolName": "calculator", "input": {"expression": "1"}},
    {"type": "tool-input-error", "toolCallId": "c", "toolName": "calculator", "input": "{", "errorText": "No."},
    {"type": "tool-output-available", "toolCallId": "c", "output": {"a": 1}},
    {"type": "tool-output-error", "toolCallId": "c", "errorText": "No."},
    {"type": "finish-step"},
    {"type": "finish", "finishReason": "stop"},
]


@st.composite
def changed_events(draw: st.DrawFn) -> Json:
    """An event of ours with one field that no event of ours has."""
    event = dict(draw(st.sampled_from(EVENTS)))
    event[draw(st.sampled_from(sorted(event)) | TEXT)] = draw(ANYTHING)
    return event


def framed(events: list[Json]) -> bytes:
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)


FRAMES = (
    st.lists(st.sampled_from(EVENTS) | changed_events(), max_size=6).map(framed)
    | st.binary(max_size=40)
    | st.sampled_from(
        [b"data: {", b"data: {}\n\n", b"data: [DONE]\n\n", b"\xff\n\ndata: {\n\n", b"data: {" + b"[" * 9999]
    )
)
CUT = st.integers(0, 60)


@st.composite
def chunks(draw: st.DrawFn) -> Json:
    """What an item of the table holds beside its key."""
    packed = zlib.compress(draw(FRAMES))
    whole = st.just({"frames": {"B": packed}})
    cut = CUT.map(lambda size: {"frames": {"B": packed[:size] or b"x"}})
    garbage = st.binary(min_size=1, max_size=20).map(lambda data: {"frames": {"B": data}})
    other = st.sampled_from([{}, {"frames": {"S": "text"}}, {"frames": {"N": "7"}}])
    found: Json = draw(st.one_of(whole, whole, whole, cut, garbage, other))
    return found


@pytest.fixture(scope="module")
def table_world(world: World, mongod: str, aws: Aws, turns_table: str, model: OfflineModel) -> Iterator[World]:
    """The functions with the registry of turns in its table."""
    close(world.application)  # document classes know one database at a time
    with pytest.MonkeyPatch.context() as patch:
        for name, value in aws.environment.items():
            patch.setenv(name, value)
        with open_world(mongod, model.base_url, turns_table=turns_table) as with_table:
            yield with_table


def leave_dead_turn(world: World, user: User) -> str:
    """Begin a turn and let its process die before it has said anything. Returns its id."""
    turn_id = new_id()

    async def begin() -> None:
        session = await world.application.session(user.client_id, user.session)
        await session.begin_turn(TurnStart(turn_id, 1, "q", [TextPart(text="Hello?")]))

    event_loop.run(begin())
    return turn_id


def check_goes_on(world: World, user: User) -> list[Json]:
    """Read, resume and continue the session. Returns what is stored of the dead turn's answer."""
    [question, answer] = user.messages()
    assert question["parts"] == [{"type": "text", "text": "Hello?"}]
    assert answer["metadata"]["status"] == "interrupted"
    assert user.call("GET", "/chat/{}/stream").status_code == 200
    again = user.ask("[echo:All is well]")
    check_order(again)
    assert again[-1]["data"]["status"] == "complete"
    assert len(user.messages()) == 4
    session = world.database.sessions.find_one({"_id": user.key})
    assert session is not None
    assert session["active_turn_id"] is None
    parts: list[Json] = answer["parts"]
    return parts


@settings(BOUNDED, max_examples=examples(12))
@given(log=st.lists(FRAMES, max_size=3))
@example(log=[framed([*EVENTS[6:9], {**EVENTS[10], "output": 2**70}])])
@example(log=[framed([EVENTS[6], EVENTS[6], EVENTS[10], EVENTS[8]])])
def test_any_frames_are_repaired(world: World, log: list[bytes]) -> None:
    user = world.user()
    claim = Claim(user.key, leave_dead_turn(world, user), "q")
    for number, frames in enumerate(log):
        event_loop.run(world.application.registry.append(claim, number, frames))
    check_goes_on(world, user)


class TestTable:
    """The table's items themselves may be damaged."""

    @pytest.fixture
    def put(self, aws: Aws, turns_table: str) -> Put:
        def put(user: User, turn_id: str, number: int, item: Json) -> None:
            key = {"session_id": {"S": user.key}, "item": {"S": f"chunk#{turn_id}#{number:08d}"}}
            aws.dynamodb.put_item(TableName=turns_table, Item={**key, **item})

        return put

    @settings(BOUNDED, max_examples=examples(6))
    @given(items=st.lists(st.tuples(st.integers(0, 5), chunks()), max_size=4))
    def test_any_item_is_read_or_left(self, table_world: World, put: Put, items: list[tuple[int, Json]]) -> None:
        user = table_world.user()
        turn_id = leave_dead_turn(table_world, user)
        for number, item in items:
            put(user, turn_id, number, item)
        [_, answer] = user.messages()
        assert answer["metadata"]["status"] == "interrupted"

    def test_what_stands_before_the_unreadable_is_kept(self, table_world: World, put: Put) -> None:
        user = table_world.user()
        turn_id = leave_dead_turn(table_world, user)
        good = zlib.compress(framed(EVENTS[:4]))
        for number, data in enumerate([good, good[:-5], zlib.compress(framed(EVENTS[3:4]))]):
            put(user, turn_id, number, {"frames": {"B": data}})
        assert check_goes_on(table_world, user) == [
            {"type": "step-start"},
            {"type": "text", "text": "Hello", "state": "done"},
        ]
