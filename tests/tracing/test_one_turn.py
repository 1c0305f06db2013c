"""One turn is one trace: everything that is done for a request is below its span."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from omniagent import Callbacks, MongoSessionManager, RunContext, RunResult, Settings, tool
from omniagent.ai.operator import TurnOperator
from omniagent.http.serving import Boundary
from omniagent.persistence.store import ConversationStore
from omniagent.session.ids import new_id, user_id_of
from omniagent.testing import ScriptedModel, ToolCall
from omniagent.tracing import trace_operation, trace_request

from .conftest import Recorded, guide, memory_session


@tool
async def weather(city: str) -> str:
    """Return the weather."""
    with trace_operation("forecast"):
        return f"sunny in {city}"


async def test_model_tools_and_the_teams_own_spans_are_below_the_request(recorded_with_content: Recorded) -> None:
    model = ScriptedModel([ToolCall("weather", {"city": "Bern"})], "It is sunny.")

    async def chat(request: Request) -> Response:
        session = memory_session(category="premium")
        stream = await guide(model, weather, session=session).start("How is the weather?")
        result = await stream.result()
        await stream.ended()
        return Response(result.text)

    app = Boundary(Starlette(routes=[Route("/chat", chat, methods=["POST"])]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        assert (await http.post("/chat")).text == "It is sunny."

    spans = recorded_with_content
    assert spans.parent("POST /chat") is None
    assert spans.parent("turn") == "POST /chat"
    assert spans.parent("tool weather") == "turn"
    assert spans.parent("forecast") == "tool weather"
    assert spans.parents("llm") == ["turn", "turn"]
    turn = spans.attributes("turn")
    expected = {
        "agent.name": "guide",
        "session.id": "s-1",
        "user.id": user_id_of("ada"),
        "omniagent.finish_reason": "stop",
        "omniagent.user_category": "premium",
        "omniagent.turn_number": 1,
        "omniagent.turn_status": "complete",
        "input.value": "How is the weather?",
        "output.value": "It is sunny.",
    }
    assert turn | expected == turn


async def test_summary_name_and_database_are_in_the_trace_of_their_turn(
    store: ConversationStore, recorded: Recorded
) -> None:
    model = ScriptedModel(default="Yes.", summary="They met.", name="A greeting")
    user = f"user:{new_id()}"

    async def ask(text: str, **settings: Any) -> None:
        session = MongoSessionManager(store, user, "s-1", settings=Settings(tick_seconds=0.02, **settings))
        await guide(model, session=session).run_stream(text).ended()

    await ask("Hi.")
    recorded.forget()
    with trace_request("POST /chat", {}):
        await ask("And now?", context_max_turns=1, name_sessions=True)
    assert len(recorded.trace_ids) == 1
    assert recorded.parent("turn") == "POST /chat"
    assert sorted(recorded.values("llm", "omniagent.purpose")) == ["answer", "name", "summary"]  # type: ignore[type-var]
    assert recorded.parents("llm") == ["turn"] * 3
    stored = {"mongodb.write", "mongodb.add_summary", "mongodb.rename"}
    assert stored <= set(recorded.names)


def states(recorded: Recorded) -> list[tuple[object, ...]]:
    changes = (dict(event.attributes or {}) for event in recorded["turn"].events)
    return [tuple(change[f"omniagent.state.{key}"] for key in ("name", "before", "after")) for change in changes]


async def test_a_turn_that_is_stopped_tells_why(recorded: Recorded) -> None:
    @tool
    async def stop() -> None:
        """Stop this turn."""
        assert await runner.stop()
        await asyncio.Event().wait()

    session = memory_session(settings=Settings(tick_seconds=0.01))
    runner = guide(ScriptedModel([ToolCall("stop", {})]), stop, session=session)
    await runner.run_stream("Hi.").ended()
    assert ("turn", "running", "stopping") in states(recorded)
    assert ("turn", "stopping", "cancelled") in states(recorded)
    turn = recorded.attributes("turn")
    assert (turn["omniagent.turn_status"], turn["omniagent.stop_reason"]) == ("cancelled", "cancelled")


async def test_a_turn_that_waits_and_goes_on_is_known_to_spans_and_callbacks(recorded: Recorded) -> None:
    told: list[object] = []

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def on_start(context: RunContext) -> None:
        told.append(context.is_continued)

    async def on_finish(context: RunContext, result: RunResult) -> None:
        told.append(result.status)

    callbacks = Callbacks(on_start=on_start, on_finish=on_finish)
    runner = guide(ScriptedModel([ToolCall("pay")], "Done."), pay, callbacks=callbacks)
    stream = runner.run_stream("Pay.")
    await stream.ended()
    begun = [("session", "idle", "running"), ("turn", "planned", "running")]
    assert states(recorded) == [*begun, ("turn", "running", "waiting"), ("session", "running", "waiting")]
    assert recorded.attributes("turn")["omniagent.turn_status"] == "waiting"
    assert recorded.attributes("tool pay")["omniagent.tool_waits_for"] == "approval"
    recorded.forget()
    await runner.reply((await stream.result()).requests[0].approve()).ended()
    resumed = [("session", "waiting", "running"), ("turn", "waiting", "running")]
    assert states(recorded) == [*resumed, ("turn", "running", "complete"), ("session", "running", "idle")]
    assert told == [False, "waiting", True, "complete"]


VERBS: dict[str, Callable[[TurnOperator], Awaitable[object]]] = {
    "run": lambda runner: runner.run_stream("And now?").ended(),
    "resume": lambda runner: runner.resume(),
    "stop": lambda runner: runner.stop(),
    "history": lambda runner: runner.history(),
    "requests": lambda runner: runner.requests(),
    "name": lambda runner: runner.name(),
    "summarize": lambda runner: runner.summarize(),
    "take_up": lambda runner: runner.take_up(),
    "erase": lambda runner: runner.erase(),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_of_the_library_is_one_trace_with_its_session(
    store: ConversationStore, recorded: Recorded, verb: str
) -> None:
    session = MongoSessionManager(store, f"user:{new_id()}", "s-1", settings=Settings(context_max_turns=1))
    runner = guide(ScriptedModel(default="Yes."), session=session)
    for text in ("Hi.", "Really?"):
        await runner.run_stream(text).ended()
    recorded.forget()
    await VERBS[verb](runner)
    assert (len(recorded.trace_ids), recorded.parent(verb)) == (1, None)
    for key, value in (("session.id", "s-1"), ("user.id", session.user_id)):
        assert {found for name in recorded.names for found in recorded.values(name, key)} == {value}
