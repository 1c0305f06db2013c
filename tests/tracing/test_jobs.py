"""A job of the queue belongs to the trace of the request that sent it."""

import json

import pytest
from opentelemetry.trace import SpanKind

from omniagent import Agent, Project
from omniagent.aws.queues import SummaryQueue
from omniagent.aws.services import Services
from omniagent.errors import NotFound
from omniagent.settings import Settings
from omniagent.tracing import current_traceparent, trace_job, trace_operation
from tests.fixtures.endpoint import Endpoint
from tests.fixtures.functions import load

from .conftest import Recorded


class EmptyServices(Services):
    """Services without any session."""

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
        queue = SummaryQueue(f"{endpoint.url}/123456789012/summaries")
        with trace_operation("turn"):
            await queue.send("user:session")
        await queue.close()
    message: dict[str, object] = json.loads(json.loads(endpoint.bodies[0])["MessageBody"])
    return message


@pytest.mark.usefixtures("queue")
async def test_a_job_continues_the_trace_of_the_turn_that_asked_for_it(recorded: Recorded) -> None:
    summary = load("summary", EmptyServices(Project(agent=Agent("helper", "Be helpful.")), Settings()))
    job = summary.Job.model_validate(await sent_message())
    assert (await summary.serve(job))["status"] == "not_found"
    assert recorded.parent("job") == "turn"
    assert recorded["job"].kind is SpanKind.CONSUMER
    assert recorded.attributes("job")["session.id"] == "user:session"


@pytest.mark.usefixtures("queue")
async def test_without_tracing_a_message_says_nothing_of_it() -> None:
    assert await sent_message() == {"session_id": "user:session", "rebuild": False}


def test_inside_the_span_of_another_instrumentation_a_job_is_linked_to_its_sender(recorded: Recorded) -> None:
    with trace_operation("turn"):
        traceparent = current_traceparent()
    assert traceparent is not None
    with trace_operation("lambda"), trace_job("job", traceparent):
        pass
    assert recorded.parent("job") == "lambda"
    (link,) = recorded["job"].links
    sender = recorded["turn"].context
    assert sender is not None
    assert (link.context.trace_id, link.context.span_id) == (sender.trace_id, sender.span_id)


def test_a_job_that_names_no_trace_begins_one(recorded: Recorded) -> None:
    with trace_job("job", "nonsense"):
        pass
    assert recorded.parent("job") is None
    assert not recorded["job"].links
