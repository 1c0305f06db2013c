"""What spans record, and how they nest."""

import asyncio

import pytest
from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind as OtelSpanKind
from opentelemetry.trace import StatusCode

from omniagent.tracing import (
    SpanKind,
    bind_context,
    bind_request,
    current_span,
    trace_database,
    trace_operation,
)

from .conftest import Recorded


class SecretiveError(Exception):
    """An error whose message holds what a user wrote."""


async def test_spans_nest_as_they_ran_over_concurrent_tasks(recorded: Recorded) -> None:
    both_run = asyncio.Barrier(2)

    async def run_tool(name: str) -> None:
        with trace_operation(name, kind=SpanKind.TOOL):
            await both_run.wait()
            with trace_operation(f"{name} query", kind=SpanKind.DB):
                await both_run.wait()

    with trace_operation("turn", kind=SpanKind.AGENT):
        with trace_operation("model", kind=SpanKind.LLM):
            pass
        await asyncio.gather(run_tool("weather"), run_tool("clock"))

    nesting = {name: recorded.parent(name) for name in recorded.names}
    assert nesting == {
        "turn": None,
        "model": "turn",
        "weather": "turn",
        "weather query": "weather",
        "clock": "turn",
        "clock query": "clock",
    }


def test_an_unknown_kind_is_refused(recorded: Recorded) -> None:
    with pytest.raises(ValueError, match="BANANA"):
        trace_operation("work", kind="BANANA")


def test_attributes_are_set_at_the_start_and_later_and_none_is_left_out(recorded: Recorded) -> None:
    with trace_operation("work", attributes={"llm.model_name": "m", "llm.system": None}) as span:
        span.set("tool.name", "weather")
        span.set_many({"a": 1, "b": ["x", "y"], "c": {"d": 1}})
        current_span().set("last", True)
    assert recorded.attributes("work") == {
        "openinference.span.kind": "CHAIN",
        "llm.model_name": "m",
        "tool.name": "weather",
        "a": 1,
        "b": ("x", "y"),
        "c": "{'d': 1}",
        "last": True,
    }


async def test_every_span_below_a_bound_context_carries_session_user_and_turn(recorded: Recorded) -> None:
    async def child() -> None:
        with trace_operation("child"):
            pass

    with bind_context(session_id="s1", user_id="u1", user_category="premium"):
        with bind_context(turn=3), trace_operation("turn"):
            await asyncio.create_task(child())
            assert otel_context.get_value("session.id") == "s1", "other instrumentations read it"
        with trace_operation("after"):
            pass
    with trace_operation("outside"):
        pass

    owner = {"openinference.span.kind": "CHAIN", "session.id": "s1", "user.id": "u1"}
    owner["omniagent.user_category"] = "premium"
    assert recorded.attributes("turn") == {**owner, "omniagent.turn_number": 3}
    assert recorded.attributes("child") == {**owner, "omniagent.turn_number": 3}
    assert recorded.attributes("after") == owner
    assert recorded.attributes("outside") == {"openinference.span.kind": "CHAIN"}


async def test_a_user_found_during_a_request_is_on_its_span_and_on_those_that_follow(recorded: Recorded) -> None:
    with bind_context(request_id="r1"), trace_operation("request"):
        with trace_operation("before"):
            pass
        bind_request(user_id="u1")
        with trace_operation("after"):
            pass
    with trace_operation("next request"):
        pass
    users = {name: recorded.attributes(name).get("user.id") for name in recorded.names}
    assert users == {"request": "u1", "before": None, "after": "u1", "next request": None}
    assert recorded.parent("next request") is None


def test_nothing_that_was_written_is_recorded_unless_switched_on(recorded: Recorded) -> None:
    with trace_operation("work", attributes={"input.value": "hush"}) as span:
        span.set_content(input="hush", output={"text": "hush"})
        span.set("tool.parameters", "hush")
        span.set("llm.input_messages.0.message.content", "hush")
        span.error(SecretiveError("hush"))
    assert "hush" not in recorded.everything()


def test_content_is_recorded_when_switched_on(recorded_with_content: Recorded) -> None:
    with trace_operation("work") as span:
        span.set_content(input="Hello", output={"text": "Grüezi"})
        span.set("tool.parameters", '{"city": "Bern"}')
    assert recorded_with_content.attributes("work") == {
        "openinference.span.kind": "CHAIN",
        "input.value": "Hello",
        "input.mime_type": "text/plain",
        "output.value": '{"text": "Grüezi"}',
        "output.mime_type": "application/json",
        "tool.parameters": '{"city": "Bern"}',
    }


def test_content_is_cut_to_a_bound(recorded_with_content: Recorded) -> None:
    with trace_operation("work") as span:
        span.set_content(input="x" * 1_000_000)
    assert len(str(recorded_with_content.attributes("work")["input.value"])) == 32_000


def test_an_exception_marks_the_span_with_its_type_and_passes_on(recorded: Recorded) -> None:
    with pytest.raises(KeyError), trace_operation("work"):
        raise KeyError("hush")
    assert recorded["work"].status.status_code is StatusCode.ERROR
    assert recorded["work"].status.description is None
    assert recorded.attributes("work")["error.type"] == "KeyError"
    (event,) = recorded["work"].events
    assert (event.name, dict(event.attributes or {})) == ("exception", {"exception.type": "KeyError"})


def test_the_message_of_an_error_is_recorded_with_content(recorded_with_content: Recorded) -> None:
    with pytest.raises(SecretiveError), trace_operation("work"):
        raise SecretiveError("hush")
    (event,) = recorded_with_content["work"].events
    details = dict(event.attributes or {})
    assert details["exception.message"] == "hush"
    assert "raise SecretiveError" in str(details["exception.stacktrace"])
    assert recorded_with_content["work"].status.description == "hush"


def test_an_error_that_was_recorded_by_hand_is_not_recorded_again_on_its_way_out(
    recorded_with_content: Recorded,
) -> None:
    def fail() -> None:
        with trace_operation("work") as span:
            failure = SecretiveError("The tool took too long.")
            span.error(failure)
            raise failure

    with pytest.raises(SecretiveError):
        fail()
    assert len(recorded_with_content["work"].events) == 1
    assert recorded_with_content["work"].status.description == "The tool took too long."


async def test_a_cancellation_is_no_error(recorded: Recorded) -> None:
    started = asyncio.Event()

    async def wait_for_ever() -> None:
        with trace_operation("work"):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait_for_ever())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorded["work"].status.status_code is StatusCode.UNSET
    assert recorded.attributes("work")["omniagent.cancelled"] is True


@trace_database("mongodb.begin_turn", "messages")
async def begin_turn(left: int, *, right: int) -> int:
    current_span().set("left", left)
    return left + right


async def test_an_operation_of_a_database_is_a_client_span_and_returns_its_result(recorded: Recorded) -> None:
    assert await begin_turn(1, right=2) == 3
    assert recorded["mongodb.begin_turn"].kind is OtelSpanKind.CLIENT
    assert recorded.attributes("mongodb.begin_turn") == {
        "db.system.name": "mongodb",
        "db.operation.name": "begin_turn",
        "db.collection.name": "messages",
        "left": 1,
    }
