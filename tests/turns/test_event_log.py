"""The log of a turn: its readers start at the first event, at their own pace."""

import asyncio

import pytest

from omniagent.protocol import sse
from omniagent.protocol.events import Finish, TextDelta
from omniagent.turns import event_log
from omniagent.turns.event_log import EventLog


async def frames(log: EventLog) -> bytes:
    return b"".join([frame async for frame in log.read_frames()])


async def test_what_is_held_back_is_seen_when_the_log_is_closed_and_not_before() -> None:
    log = EventLog()
    log.push(TextDelta("0", "a"))
    log.hold()
    log.push(Finish("stop", {}))
    log.end()
    reader = log.read_frames()
    assert await anext(reader) == sse.encode(TextDelta("0", "a"))
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    assert not waiting.done()
    log.close()
    assert await waiting == sse.encode(Finish("stop", {})) + sse.DONE


async def test_a_reader_that_fell_behind_gets_the_rest_as_one_piece() -> None:
    log = EventLog()
    for text in "abc":
        log.push(TextDelta("0", text))
    log.close()
    assert len([frame async for frame in log.read_frames()]) == 1


async def test_notes_are_logged_and_never_read() -> None:
    """They hold what went wrong inside, and what only the provider may see."""
    log = EventLog()
    log.note(sse.encode_note({"first": 1}))
    log.push(TextDelta("0", "a"))
    log.note(sse.encode_note({"error": "dsn=secret"}))
    log.push(TextDelta("0", ": {b}"))
    log.note(sse.encode_note({"last": 1}))
    log.close()
    assert await frames(log) == sse.encode(TextDelta("0", "a")) + sse.encode(TextDelta("0", ": {b}"))
    assert len(list(sse.decode_notes(b"".join(log.frames)))) == 3


async def test_a_silent_log_keeps_the_connection_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "KEEP_ALIVE_SECONDS", 0.01)
    log = EventLog()
    reader = log.read_frames()
    assert await anext(reader) == sse.KEEP_ALIVE
    log.push(TextDelta("0", "a"))
    assert await anext(reader) == sse.encode(TextDelta("0", "a"))


async def test_a_reader_that_is_cancelled_leaves_the_others_alone() -> None:
    log = EventLog()
    leaving, staying = asyncio.create_task(frames(log)), asyncio.create_task(frames(log))
    await asyncio.sleep(0)
    leaving.cancel()
    log.push(TextDelta("0", "a"))
    log.end()
    log.close()
    assert await staying == await frames(log)
    with pytest.raises(asyncio.CancelledError):
        await leaving
