"""`trace_method` on async functions."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from omniagent.tracing import SpanKind, current_span, trace_method, trace_operation

from .conftest import Recorded


class Worker:
    @trace_method(kind=SpanKind.TOOL, name="add")
    async def add(self, left: int, right: int) -> int:
        current_span().set("left", left)
        return left + right

    @trace_method(kind=SpanKind.DB, name="mongodb.begin_turn", attributes={"db.collection.name": "messages"})
    async def begin_turn(self) -> None: ...

    @trace_method()
    async def answer(self) -> str:
        await asyncio.sleep(0)
        return "42"


async def test_a_call_is_a_span_and_returns_what_the_function_returns(recorded: Recorded) -> None:
    assert await Worker().add(1, right=2) == 3
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


async def test_without_an_instrumentor_a_function_works_as_written() -> None:
    assert await Worker().add(1, 2) == 3


def test_a_generator_is_refused() -> None:
    async def numbers() -> AsyncGenerator[int, None]:
        yield 1

    with pytest.raises(TypeError, match="takes async functions only"):
        trace_method()(numbers)
