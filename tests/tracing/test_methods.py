"""`trace_method` on functions, coroutines and async generators."""

import asyncio
from collections.abc import AsyncGenerator, Iterator

import pytest
from opentelemetry.trace import StatusCode

from omniagent.tracing import SpanKind, current_span, trace_method, trace_operation

from .conftest import Recorded


class Worker:
    @trace_method(kind=SpanKind.TOOL, name="add")
    def add(self, left: int, right: int) -> int:
        current_span().set("left", left)
        return left + right

    @trace_method(kind=SpanKind.DB, name="mongodb.begin_turn", attributes={"db.collection.name": "messages"})
    async def begin_turn(self) -> None: ...

    @trace_method()
    async def answer(self) -> str:
        await asyncio.sleep(0)
        return "42"

    @trace_method(kind=SpanKind.LLM, name="stream")
    async def stream(self, count: int) -> AsyncGenerator[int, None]:
        for number in range(count):
            with trace_operation(f"step {number}"):
                yield number
        with trace_operation("last"):
            pass

    @trace_method(name="broken")
    async def broken(self) -> AsyncGenerator[int, None]:
        yield 1
        raise ValueError("hush")


async def test_a_call_is_a_span_and_returns_what_the_function_returns(recorded: Recorded) -> None:
    assert Worker().add(1, right=2) == 3
    assert await Worker().answer() == "42"
    assert recorded.names == ["add", "Worker.answer"]
    assert recorded.attributes("add") == {"openinference.span.kind": "TOOL", "left": 1}


async def test_the_span_of_a_database_method_names_its_system_and_operation(recorded: Recorded) -> None:
    await Worker().begin_turn()
    assert recorded.attributes("mongodb.begin_turn") == {
        "db.system.name": "mongodb",
        "db.operation.name": "begin_turn",
        "db.collection.name": "messages",
    }


async def test_a_generator_is_one_span_that_never_becomes_the_readers(recorded: Recorded) -> None:
    with trace_operation("reader"):
        async for number in Worker().stream(2):
            with trace_operation(f"read {number}"):
                pass
    nesting = {name: recorded.parent(name) for name in recorded.names}
    assert nesting == {
        "reader": None,
        "stream": "reader",
        "step 0": "stream",
        "step 1": "stream",
        "last": "stream",
        "read 0": "reader",
        "read 1": "reader",
    }


async def test_a_generator_read_by_several_tasks_keeps_its_own_place(
    recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    source = Worker().stream(3)

    async def read_one() -> None:
        with trace_operation("other task"):
            await anext(source)

    with trace_operation("first task"):
        await anext(source)
    await asyncio.create_task(read_one())
    await asyncio.create_task(source.aclose())
    assert recorded.parent("stream") == "first task"
    assert recorded.parent("step 1") == "stream"
    assert not caplog.records


async def test_a_generator_that_is_closed_early_ends_its_span_as_cancelled(recorded: Recorded) -> None:
    source = Worker().stream(3)
    await anext(source)
    await source.aclose()
    assert recorded.attributes("stream")["omniagent.cancelled"] is True
    assert recorded["stream"].status.status_code is StatusCode.UNSET


async def test_a_generator_that_raises_ends_its_span_as_failed(recorded: Recorded) -> None:
    with pytest.raises(ValueError, match="hush"):
        [number async for number in Worker().broken()]
    assert recorded["broken"].status.status_code is StatusCode.ERROR


async def test_a_span_left_open_by_an_undecorated_generator_ends_quietly_in_another_task(
    recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    async def careless() -> AsyncGenerator[int, None]:
        with trace_operation("careless"):
            yield 1

    source = careless()
    await asyncio.create_task(anext(source))
    await source.aclose()
    assert recorded.names == ["careless"]
    assert not caplog.records


async def test_without_an_instrumentor_functions_and_generators_work_as_written() -> None:
    worker = Worker()
    assert worker.add(1, 2) == 3
    assert await worker.answer() == "42"
    assert [number async for number in worker.stream(3)] == [0, 1, 2]


def test_a_sync_generator_is_refused() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="does not support sync generators"):
        trace_method()(numbers)
