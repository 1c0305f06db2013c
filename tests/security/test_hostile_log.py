"""Whatever the journal of a dead turn holds, the turn is finished or closed, and the session goes on."""

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
from omniagent.session.live import LiveTurn
from omniagent.turns.registry import SHORT_RUN, Chunk
from tests.fixtures.examples import examples
from tests.fixtures.live_turns import begin_turn
from tests.fixtures.stream import check_order
from tests.fixtures.world import User, World, close, open_world
from tests.security.fuzz import ANYTHING, BOUNDED, TEXT

Json = dict[str, Any]
Put = Callable[[User, LiveTurn, int, Json], None]

EVENTS: list[Json] = [
    {"type": "start", "messageId": "m", "messageMetadata": {}},
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


def lines_of(events: list[Json]) -> bytes:
    return b"\n".join(json.dumps(event, separators=(",", ":")).encode() for event in events)


RECORDS: list[Json] = [
    {"record": "run", "run": "r", "attempt": 1, "at": 1.0},
    {"record": "step", "reason": "tool-calls", "calls": [["c", "calculator", "{}"]]},
    {"record": "counted", "usage": {"input_tokens": 1}},
    {"record": "handed_over", "has_open_calls": True},
    {"record": "failed", "call_id": "c", "error": "No."},
    {"record": "unknown"},
]
LINES = (
    st.lists(st.sampled_from([*EVENTS, *RECORDS]) | changed_events(), max_size=6).map(lines_of)
    | st.binary(max_size=40)
    | st.sampled_from([b"{", b"{}", b"[DONE]", b"\xff\n{\n", b'{"record":{}}', b"{" + b"[" * 9999])
)
CUT = st.integers(0, 60)


@st.composite
def chunks(draw: st.DrawFn) -> Json:
    """What an item of the table holds beside its key."""
    packed = zlib.compress(draw(LINES))
    whole = st.just({"lines": {"B": packed}})
    cut = CUT.map(lambda size: {"lines": {"B": packed[:size] or b"x"}})
    garbage = st.binary(min_size=1, max_size=20).map(lambda data: {"lines": {"B": data}})
    other = st.sampled_from([{}, {"lines": {"S": "text"}}, {"lines": {"N": "7"}}])
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


def leave_dead_turn(world: World, user: User) -> LiveTurn:
    """Begin a turn and let its process die before it has said anything."""

    async def begin() -> LiveTurn:
        session = await world.application.session(user.client_id, user.session)
        return await begin_turn(session, "[echo:Finished.]", message_id="q", is_dead=True)

    return event_loop.run(begin())


def check_goes_on(world: World, user: User) -> Json:
    """Have the dead turn taken up, read and continue the session. Returns the dead turn's answer."""

    async def take_up() -> None:
        runner = await world.application.runner_of_key(user.key)
        if (stream := await runner.take_up()) is not None:
            await stream.ended()

    event_loop.run(take_up())
    [question, answer] = user.messages()
    assert question["parts"] == [{"type": "text", "text": "[echo:Finished.]"}]
    assert answer["metadata"]["status"] in ("complete", "failed", "interrupted")
    again = user.ask("[echo:All is well]")
    check_order(again)
    assert again[-1]["data"]["status"] == "complete"
    assert len(user.messages()) == 4
    session = world.database.sessions.find_one({"_id": user.key})
    assert session is not None
    assert session["turn"] is None
    found: Json = answer
    return found


@settings(BOUNDED, max_examples=examples(12))
@given(log=st.lists(LINES, max_size=3))
@example(log=[lines_of([*EVENTS[6:9], {**EVENTS[10], "output": 2**70}])])
@example(log=[lines_of([EVENTS[6], EVENTS[6], EVENTS[10], EVENTS[8]])])
def test_any_lines_are_read_or_left(world: World, log: list[bytes]) -> None:
    user = world.user()
    turn = leave_dead_turn(world, user)
    for number, lines in enumerate(log):
        chunk = Chunk(number, turn.run[:SHORT_RUN], turn.since, lines)
        event_loop.run(world.application.registry.append(user.key, turn.journal, chunk))
    check_goes_on(world, user)


class TestTable:
    """The table's items themselves may be damaged."""

    @pytest.fixture
    def put(self, aws: Aws, turns_table: str) -> Put:
        def put(user: User, turn: LiveTurn, number: int, item: Json) -> None:
            key = {"session_id": {"S": user.key}, "item": {"S": f"journal#{turn.journal}#{number:08d}"}}
            rest = {"run": {"S": turn.run[:SHORT_RUN]}, "at": {"N": str(turn.since.timestamp())}}
            aws.dynamodb.put_item(TableName=turns_table, Item={**key, **rest, **item})

        return put

    @settings(BOUNDED, max_examples=examples(6))
    @given(items=st.lists(st.tuples(st.integers(0, 5), chunks()), max_size=4))
    def test_any_item_is_read_or_left(self, table_world: World, put: Put, items: list[tuple[int, Json]]) -> None:
        user = table_world.user()
        turn = leave_dead_turn(table_world, user)
        for number, item in items:
            put(user, turn, number, item)
        check_goes_on(table_world, user)

    def test_what_stands_before_the_unreadable_is_kept(self, table_world: World, put: Put) -> None:
        user = table_world.user()
        turn = leave_dead_turn(table_world, user)
        step = [*EVENTS[:5], {"record": "step", "reason": "stop"}]
        good = zlib.compress(lines_of(step))
        for number, data in enumerate([good, good[:-5], zlib.compress(lines_of(EVENTS[3:4]))]):
            put(user, turn, number, {"lines": {"B": data}})
        answer = check_goes_on(table_world, user)
        assert answer["metadata"]["status"] == "interrupted"
        assert answer["parts"] == [{"type": "step-start"}, {"type": "text", "text": "Hello", "state": "done"}]
