"""The context of a run: what it sends to the client, and from where."""

import asyncio
import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import BaseModel

from omniagent import RunContext, tool
from omniagent.messages import DataPart


class Client:
    """Takes what is emitted, and notes the thread that it came on."""

    def __init__(self) -> None:
        self.parts: list[tuple[DataPart, bool]] = []
        self.threads: set[int] = set()

    def __call__(self, part: DataPart, transient: bool) -> None:
        self.parts.append((part, transient))
        self.threads.add(threading.get_ident())


class Place(BaseModel):
    city: str


@dataclass
class Found:
    places: list[Place]


async def test_emit_sends_a_data_part_of_plain_json() -> None:
    client = Client()
    context: RunContext = RunContext(user="ada", sink=client)
    context.emit("progress", {"percent": 10}, id="import")
    context.emit("found", Found([Place(city="Lisbon")]), transient=True)
    assert client.parts == [
        (DataPart(name="progress", data={"percent": 10}, id="import"), False),
        (DataPart(name="found", data={"places": [{"city": "Lisbon"}]}), True),
    ]


@pytest.mark.parametrize("name", ["", "session", "Progress", "a_b", "ü", "a b", "x" * 65, "progress\n"])
async def test_a_name_that_makes_no_part_is_refused_also_without_a_client(name: str) -> None:
    context: RunContext = RunContext(user="ada")
    context.emit("progress", 1)
    with pytest.raises(ValueError, match="must be 1 to 64 characters of a-z, 0-9 and -, and not 'session'"):
        context.emit(name, 1)


@pytest.mark.parametrize(
    ("data", "fits"), [("x" * 65534, True), ("x" * 65535, False), ("ü" * 32767, True), ("ü" * 32768, False)]
)
async def test_data_is_bounded_by_its_encoded_size(data: Any, fits: bool) -> None:
    client = Client()
    context: RunContext = RunContext(user="ada", sink=client)
    if fits:
        context.emit("big", data)
    else:
        with pytest.raises(ValueError, match=r"the data of 'big' has 655\d\d bytes as JSON; at most 65536 are sent"):
            context.emit("big", data)
    assert len(client.parts) == fits


async def test_a_sync_tool_emits_from_its_thread_in_order() -> None:
    client = Client()

    @tool
    def counting(context: RunContext) -> str:
        """Counting."""
        for number in range(100):
            context.emit("progress", number, id=context.call_id)
        return "counted"

    context: RunContext = RunContext(user="ada", sink=client)
    assert await counting.invoke(counting.parse("{}"), replace(context, call_id="c1")) == "counted"
    assert [part.data for part, _ in client.parts] == list(range(100))
    assert {part.id for part, _ in client.parts} == {"c1"}
    assert client.threads == {threading.get_ident()}


async def test_a_call_that_was_given_up_emits_into_nothing() -> None:
    client = Client()
    started, release, emitted = threading.Event(), threading.Event(), threading.Event()

    @tool
    def slow(context: RunContext) -> None:
        """Slow."""
        context.emit("progress", "started")
        started.set()
        release.wait()
        context.emit("progress", "too late")
        emitted.set()

    context: RunContext = RunContext(user="ada", sink=client)
    call = asyncio.create_task(slow.invoke(slow.parse("{}"), replace(context, call_id="c1")))
    await asyncio.to_thread(started.wait)
    call.cancel()
    await asyncio.wait([call])
    release.set()
    await asyncio.to_thread(emitted.wait)
    await asyncio.sleep(0)
    assert [part.data for part, _ in client.parts] == ["started"]
