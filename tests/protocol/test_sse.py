"""Events as bytes and back: whatever is streamed can be read again, and rebuilds the answer it came from."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniagent.protocol import events, sse

Json = dict[str, Any]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# A document's key cannot hold NUL: what is recorded has none.
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
metadata = st.dictionaries(keys, values, max_size=3)
every_event: st.SearchStrategy[events.StreamEvent] = st.one_of(
    st.builds(events.Start, texts, metadata),
    st.builds(events.StartStep),
    st.builds(events.FinishStep),
    st.builds(events.TextStart, texts),
    st.builds(events.TextDelta, texts, texts),
    st.builds(events.TextEnd, texts),
    st.builds(events.ReasoningStart, texts),
    st.builds(events.ReasoningDelta, texts, texts),
    st.builds(events.ReasoningEnd, texts),
    st.builds(events.ToolInputStart, texts, texts),
    st.builds(events.ToolInputDelta, texts, texts),
    st.builds(events.ToolInputAvailable, texts, texts, values),
    st.builds(events.ToolInputError, texts, texts, values, texts),
    st.builds(events.ToolOutputAvailable, texts, values),
    st.builds(events.ToolOutputError, texts, texts),
    st.builds(events.Abort, st.sampled_from(["cancelled", "deadline", "interrupted"])),
    st.builds(events.Finish, st.sampled_from(["stop", "length", "error", "other"]), metadata),
    st.builds(events.DataSession, metadata),
    st.builds(events.DataChunk, st.sampled_from(["progress", "map-1"]), values, st.none() | texts, st.booleans()),
    st.builds(events.Error, texts),
)


@given(every_event)
def test_every_event_is_one_frame_that_is_read_back(event: events.StreamEvent) -> None:
    frame = sse.encode(event)
    assert frame.startswith(b"data: {")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 2, "a line of its own: nothing in it ends the frame early"
    assert b"\r" not in frame
    assert list(sse.decode(frame)) == [sse.to_wire(event)]
    assert list(sse.decode_events(frame)) == [event]


@given(st.lists(every_event, max_size=6))
def test_a_stream_is_read_back_with_its_comments_and_its_end(sent: list[events.StreamEvent]) -> None:
    stream = sse.KEEP_ALIVE.join([b"", *map(sse.encode, sent), b""]) + sse.DONE
    assert list(sse.decode(stream)) == [sse.to_wire(event) for event in sent]


@pytest.mark.parametrize("kind", [events.TextDelta, events.ReasoningDelta])
def test_half_a_surrogate_pair_does_not_break_the_stream(kind: Callable[[str, str], events.StreamEvent]) -> None:
    [event] = sse.decode(sse.encode(kind("0", "half \ud83d")))
    assert event["delta"] == "half ?"


def test_the_wire_has_the_names_of_the_ai_sdk() -> None:
    event = events.ToolInputAvailable("call_1", "add", {"a": 1})
    assert sse.to_wire(event) == {
        "type": "tool-input-available",
        "toolCallId": "call_1",
        "toolName": "add",
        "input": {"a": 1},
    }


@pytest.mark.parametrize("wire", [{}, {"type": "unknown"}, {"type": "text-delta", "id": "0"}, {"type": "data-x"}])
def test_what_is_no_event_of_ours_is_refused(wire: Json) -> None:
    with pytest.raises(ValueError, match="event"):
        sse.from_wire(wire)
