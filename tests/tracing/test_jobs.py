"""A job of the queue belongs to the trace of the request that sent it."""

import json

import pytest
from opentelemetry.trace import SpanKind

from omniagent import Agent, Project
from omniagent.app.application import Application
from omniagent.app.run_jobs import RunJobs
from omniagent.app.summary_jobs import SummaryJobs
from omniagent.aws.sqs import SqsQueue
from omniagent.errors import NotFound
from omniagent.tracing import current_traceparent, trace_job, trace_operation
from tests.fixtures.http_server import Endpoint

from .conftest import Recorded


class EmptyApplication(Application):
    """It has no sessions."""

    async def runner_of_key(self, key: str) -> "None":  # type: ignore[override]  # it returns nothing at all
        raise NotFound(key)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)


async def sent_message() -> dict[str, object]:
    """Send a session to be summarized, and return the message."""
    with Endpoint((200, {})) as endpoint:
        queue = SqsQueue(f"{endpoint.url}/123456789012/summaries")
        with trace_operation("turn"):
            await queue.send({"session_id": "user:session", "rebuild": False})
        await queue.aclose()
    message: dict[str, object] = json.loads(json.loads(endpoint.bodies[0])["MessageBody"])
    return message


@pytest.mark.usefixtures("queue")
async def test_a_job_continues_the_trace_of_the_turn_that_asked_for_it(recorded: Recorded) -> None:
    jobs = SummaryJobs(EmptyApplication(Project(agent=Agent("helper", "Be helpful."))))
    assert (await jobs.invoke(await sent_message()))["status"] == "not_found"
    assert recorded.parent("job") == "turn"
    assert recorded["job"].kind is SpanKind.CONSUMER
    attributes = recorded.attributes("job")
    assert (attributes["user.id"], attributes["session.id"]) == ("user", "session"), "as in the turn's own trace"


async def test_a_run_job_has_the_ids_of_its_session(recorded: Recorded) -> None:
    jobs = RunJobs(EmptyApplication(Project(agent=Agent("helper", "Be helpful."))))
    for job in ({"kind": "run", "session_id": "user:session"}, {"kind": "stop", "id": f"{'0' * 24}:session/message"}):
        assert (await jobs.invoke(job))["status"] == "not_found"
    assert recorded.values("job", "session.id") == ["session", "session"]
    assert recorded.values("job", "user.id") == ["user", "0" * 24]


def test_inside_the_span_of_another_instrumentation_a_job_is_linked_to_its_sender(recorded: Recorded) -> None:
    with trace_operation("turn"):
        traceparent = current_traceparent()
    assert traceparent is not None
    outer = recorded.provider.get_tracer("other").start_as_current_span("lambda")
    with outer, trace_job("job", traceparent):
        pass
    assert (recorded.parent("job"), recorded["job"].kind) == ("lambda", SpanKind.INTERNAL)
    (link,) = recorded["job"].links
    sender = recorded["turn"].context
    assert sender is not None
    assert (link.context.trace_id, link.context.span_id) == (sender.trace_id, sender.span_id)
