"""Nothing that a model, a tool or a user writes is interpreted by the store: what was written comes back equal."""

import json
import math
import traceback
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo.database import Database

from omniagent.errors import StorageRejected
from omniagent.messages import DataPart, Part, ReasoningPart, TextPart, ToolPart
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore
from omniagent.session.ids import new_id
from omniagent.session.live import SessionMessage
from omniagent.session.window import RollingSummary
from omniagent.turns.state_events import Begin, End
from tests.fixtures.examples import examples
from tests.persistence.turns import answer_id, apply, converse, open_session, question, tip, turn

Json = dict[str, Any]

# Any text JSON can carry: half surrogate pairs and NULs among it. JSON joins the halves of a pair.
TEXT = st.text(st.characters(), max_size=8).filter(lambda text: json.loads(json.dumps(text)) == text)
KEYS = TEXT | st.sampled_from(["$ref", "$id", "$db", "$oid", "$date", "$numberLong", "_id", "a.b", "$", ".", "", "\0"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS | st.integers(min_value=-(10**40), max_value=10**40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=3)
PARTS = st.lists(
    st.builds(TextPart, text=TEXT)
    | st.builds(ReasoningPart, text=TEXT, provider_data=st.none() | OBJECTS)
    | st.builds(
        ToolPart, call_id=TEXT, name=TEXT, input=VALUES, output=VALUES, error=st.none() | TEXT, done=st.just(True)
    )
    | st.builds(DataPart, name=TEXT, data=VALUES, id=st.none() | TEXT),
    max_size=4,
)


def answer_of(parts: list[Part], metadata: Json | None = None) -> SessionMessage:
    return SessionMessage(new_id(), "assistant", 1, parts, metadata=metadata or {}, parent=new_id())


async def stored(store: ConversationStore, answer: SessionMessage) -> SessionMessage | None:
    session = MongoSessionManager(store, f"user:{new_id()}", "chat")
    asked = replace(question(1), node=answer.parent)
    await apply(session, Begin(turn(1, id=answer.id, journal=answer.id, message=asked, question=asked.node)))
    await apply(session, End("run", answer))
    return (await session.load()).answer


@given(parts=PARTS, metadata=OBJECTS)
@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_every_answer_comes_back_equal(store: ConversationStore, parts: list[Part], metadata: Json) -> None:
    answer = answer_of(parts, metadata)
    assert await stored(store, answer) == answer


def nested(depth: int) -> Any:
    value: Any = "core"
    for level in range(depth):
        value = {"$ref": value} if level % 2 else [value]
    return value


ODD_VALUES: list[Any] = [
    {"$ref": "users", "$id": "x"},
    {"$ref": "users", "$id": "x", "$db": "other"},
    {"$oid": "0" * 24},
    {"a.b": {"$set": 1}},
    2**64,
    -(2**63) - 1,
    nested(150),
    "\ud800",
    ["\udfff\0"],
    math.inf,
    {"": {"": ""}},
]


async def test_what_bson_would_change_or_refuse_comes_back_equal(store: ConversationStore) -> None:
    parts: list[Part] = []
    for value in ODD_VALUES:
        parts += [ToolPart(call_id="c", name="t", input=value, output=value, done=True), DataPart(name="d", data=value)]
    answer = answer_of(parts, {"values": ODD_VALUES})
    found = await stored(store, answer)
    assert found is not None
    for part, expected in zip(found.parts, answer.parts, strict=True):
        assert part == expected
    assert found == answer


async def test_a_value_that_is_no_json_is_rejected_or_stored_as_text(store: ConversationStore) -> None:
    loop: list[Any] = []
    loop.append(loop)
    for value in (loop, 10**5000):
        with pytest.raises(StorageRejected):
            await stored(store, answer_of([DataPart(name="d", data=value)]))
    found = await stored(store, answer_of([DataPart(name="d", data={"set": {1}, "part": TextPart(text="x")})]))
    assert found is not None
    assert found.parts == [DataPart(name="d", data={"set": "{1}", "part": {"type": "text", "text": "x"}})]


async def test_a_message_that_cannot_be_read_is_not_quoted(store: ConversationStore) -> None:
    """For example a part that a later version stored, after its deployment was rolled back."""
    session = open_session(store)
    await converse(session, [1])
    part = {"type": "hologram", "text": "private"}
    await store.messages.update_one({"session_id": session.key, "role": "assistant"}, {"$set": {"parts": [part]}})
    with pytest.raises(StorageRejected, match=r"cannot be read: parts\.0: .*hologram") as rejected:
        await session.node(answer_id(1, session))
    assert "private" not in "".join(traceback.format_exception(rejected.value))


async def test_plain_text_stays_readable_in_the_database(store: ConversationStore, database: Database[Json]) -> None:
    answer = answer_of([TextPart(text="Grüße"), ToolPart(call_id="c", name="t", input={"a": 1}, output=3, done=True)])
    await stored(store, answer)
    document = database.messages.find_one({"client_message_id": answer.id})
    assert document is not None
    text, tool = document["parts"]
    assert text == {"type": "text", "text": "Grüße"}
    assert (json.loads(tool["input_json"]), tool["output"]) == ({"a": 1}, 3)
    assert isinstance(document["_id"], str)


async def test_half_a_surrogate_pair_is_replaced_in_names_and_summaries(store: ConversationStore) -> None:
    session = open_session(store)
    await converse(session, [1, 2])
    assert await session.rename("Trip \ud83d\ude00 \ud800", was=None)
    assert await session.add_summary(RollingSummary("So far \udfff.", 1, 1, 1), await tip(session))
    head, summary = await session.head(), await session.latest_summary(await tip(session))
    assert head is not None
    assert summary is not None
    assert (head.name, summary.content) == ("Trip \U0001f600 \ufffd", "So far \ufffd.")
