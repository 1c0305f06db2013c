"""Whatever the journal of a dead turn holds, the turn is finished or closed, and the session goes on."""

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from omniagent.lambda_runtime import event_loop
from omniagent.turns.registry import SHORT_RUN, Chunk
from tests.fixtures.examples import examples
from tests.fixtures.live_turns import begin_turn
from tests.fixtures.stream import check_order
from tests.fixtures.world import World
from tests.security.fuzz import ANYTHING, BOUNDED, TEXT

Json = dict[str, Any]

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


@settings(BOUNDED, max_examples=examples(12))
@given(log=st.lists(LINES, max_size=3))
@example(log=[lines_of([*EVENTS[6:9], {**EVENTS[10], "output": 2**70}])])
@example(log=[lines_of([EVENTS[6], EVENTS[6], EVENTS[10], EVENTS[8]])])
def test_any_lines_are_read_or_left(world: World, log: list[bytes]) -> None:
    user = world.user()

    async def die_and_be_taken_up() -> None:
        session = await world.application.session(user.client_id, user.session)
        turn = await begin_turn(session, "[echo:Finished.]", message_id="q", is_dead=True)
        for number, lines in enumerate(log):
            chunk = Chunk(number, turn.run[:SHORT_RUN], turn.since, lines)
            await world.application.registry.append(user.key, turn.journal, chunk)
        runner = await world.application.runner_of_key(user.key)
        if (stream := await runner.take_up()) is not None:
            await stream.ended()

    event_loop.run(die_and_be_taken_up())
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
