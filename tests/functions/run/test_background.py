"""Background and scheduled turns and webhooks: the chat function accepts, the run function does the work."""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local.model import OfflineModel
from omniagent.app.run_jobs import MAX_TRIES
from omniagent.app.webhook import signed_headers
from omniagent.lambda_runtime import event_loop
from omniagent.session.ids import new_id, session_key, user_id_of
from tests.fixtures.http_server import Endpoint
from tests.fixtures.live_turns import begin_turn
from tests.fixtures.world import User, World, open_world
from tests.functions.run.dead_turns import Json, RunFunction, a_run

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()


@pytest.fixture(scope="module")
def webhook() -> Iterator[Endpoint]:
    with Endpoint((204, b"")) as server:
        yield server


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel, webhook: Endpoint) -> Iterator[World]:
    hook: Json = {"webhook_url": f"{webhook.url}/hook", "webhook_secret": SECRET}
    with open_world(mongod, model.base_url, run_queue_url="https://sqs.eu-west-1.amazonaws.com/1/run", **hook) as world:
        yield world


def accept(user: User, text: str = "[echo:Done.]", **fields: Any) -> Json:
    body = {"session_id": user.session, "query": text} | fields
    response = user.call("POST", "/chat?background=true", json=body)
    assert response.status_code == 202, response.text
    accepted: Json = response.json()
    assert response.headers["location"] == accepted["stream"] == f"/chat/{user.session}/stream"
    assert (response.headers["x-session-id"], response.headers["cache-control"]) == (user.session, "no-store")
    return accepted


def texts(user: User) -> list[str]:
    parts = [message["parts"] for message in user.messages()]
    return ["".join(part.get("text", "") for part in each) for each in parts]


def test_a_message_is_accepted_at_once_and_answered_by_the_run_function(run: RunFunction, world: World) -> None:
    user = world.user()
    accepted = accept(user, message_id="m1")
    assert accepted == {"sessionId": user.session, "messageId": "m1", "stream": f"/chat/{user.session}/stream"}
    assert texts(user) == [], "the session is there, and nothing is said in it"
    [job] = run.queue.taken("run")
    assert job == a_run(user.key)
    for _ in range(2):  # delivered twice
        run.take(job)
    assert texts(user) == ["[echo:Done.]", "Done."]
    assert accept(user, message_id="m1")["messageId"] == "m1"
    run.deliver()
    assert len(texts(user)) == 2
    replayed = user.ask("[echo:Done.]", message_id="m1")
    assert "".join(event.get("delta", "") for event in replayed) == "Done."


def test_messages_in_line_are_answered_in_order_by_one_job(run: RunFunction, world: World) -> None:
    user = world.user()
    accept(user, "[echo:One.]")
    accept(user, "[echo:Two.]", busy="queue")
    [_, second] = run.queue.taken("run")
    run.take(second)
    assert texts(user)[1::2] == ["One.", "Two."]


def schedule(**changes: Any) -> Json:
    message = {"kind": "schedule", "schedule": "daily", "time": "2026-11-16T08:00:00Z", "user": "user:ada"}
    return message | {"query": "[echo:Good morning.]"} | changes


def test_a_scheduled_turn_is_run_once_for_each_time(run: RunFunction, world: World) -> None:
    user = f"user:{new_id()}"
    for time in ("2026-11-16T08:00:00Z", "2026-11-16T09:00:00+01:00", "2026-11-17T08:00:00Z"):
        message = schedule(user=user, time=time, session_id="daily", category="gold")
        assert run.take(message, queue="schedules") == []
        run.deliver()
    key = session_key(user_id_of(user), "daily")
    answers = list(world.database.messages.find({"session_id": key, "role": "user"}).sort("turn_number"))
    assert [message["client_message_id"] for message in answers] == ["daily-20261116T080000Z", "daily-20261117T080000Z"]
    session = world.database.sessions.find_one({"_id": key})
    assert session is not None
    assert session["category"] == "gold"
    run.take(schedule(user=user), queue="schedules")
    run.deliver()
    own = session_key(user_id_of(user), "daily-20261116T080000Z")
    assert world.database.messages.count_documents({"session_id": own}) == 2, "without a session it has its own"


def test_no_schedule_is_taken_from_the_queue_that_functions_write_to(run: RunFunction, world: World) -> None:
    user = world.user()
    forged = schedule(user=user.client_id, session_id=user.session)
    assert run.take(forged, queue=run.queue.name) == ["message-1"]
    assert (run.queue.sent, user.call("GET", "/sessions/{}").status_code) == ([], 404)


def test_a_queue_of_schedules_brings_nothing_else(run: RunFunction, world: World) -> None:
    assert run.take(a_run(world.user().key), queue="schedules") == ["message-1"]


@pytest.mark.parametrize(
    "changes",
    [
        *({"user": ""}, {"query": ""}, {"time": "tomorrow"}, {"time": "2026-11-16T08:00:00"}),
        *({"schedule": "two words"}, {"session_id": "a/b"}, {"busy": "maybe"}, {"userr": "a typo"}),
    ],
)
def test_a_schedule_that_is_wrong_is_refused(changes: Json, run: RunFunction, caplog: pytest.LogCaptureFixture) -> None:
    assert run.take(schedule(**changes), queue="schedules") == ["message-1"]
    assert "a typo" not in caplog.text, "the log shows nothing of the message"


def test_the_end_of_a_turn_is_told_to_the_webhook_and_verified_there(
    run: RunFunction, world: World, webhook: Endpoint
) -> None:
    user = world.user()
    webhook.requests.clear()
    webhook.bodies.clear()
    user.ask("[echo:Private.]")
    run.deliver("webhook")
    [headers], [body] = webhook.requests, webhook.bodies
    signed = signed_headers(SECRET, headers["webhook-id"], body, int(headers["webhook-timestamp"]))
    assert headers["webhook-signature"] == signed["webhook-signature"]
    event = json.loads(body)
    answer = user.messages()[-1]
    assert event["type"] == "turn.finished"
    assert (event["data"]["user"], event["data"]["sessionId"]) == (user.client_id, user.session)
    assert (event["data"]["messageId"], event["data"]["turnNumber"]) == (answer["id"], 1)
    assert b"Private" not in body


def test_a_sweep_announces_an_answer_whose_process_died_before_it_could(run: RunFunction, world: World) -> None:
    user = world.user()
    user.ask()
    [sent] = run.queue.taken("webhook")
    answer = {"session_id": user.key, "role": "assistant"}
    for minutes, events in ((0, 0), (2, 1)):  # its own process may be about to
        at = datetime.now(UTC) - timedelta(minutes=minutes)
        world.database.messages.update_one(answer, {"$set": {"announced": "", "created_at": at}})
        assert run.sweep()["events"] == events
    [missed] = run.queue.taken("webhook")
    assert missed["event"]["id"] == sent["event"]["id"]
    assert run.sweep()["events"] == 0


def test_a_refused_event_is_resent_with_its_id_and_finally_reported_failed(
    run: RunFunction, world: World, webhook: Endpoint
) -> None:
    user = world.user()
    user.ask("[echo:Hi]")
    [message] = run.queue.taken("webhook")
    webhook.answers = [(500, b"")]
    assert run.take(message) == []
    [again] = run.queue.taken("webhook")
    assert (again["event"], again["tries"]) == (message["event"], 1)
    assert run.take(again | {"tries": MAX_TRIES}) == ["message-1"], "it is a dead letter after some deliveries"
    assert run.queue.taken("webhook") == []
    webhook.answers = [(204, b"")]
    run.take(again)
    assert webhook.requests[-1]["webhook-id"] == message["event"]["id"]


def test_a_schedule_that_is_to_be_rejected_by_a_busy_session_is_not_tried_again(run: RunFunction, world: World) -> None:
    user = world.user()
    session = event_loop.run(world.application.session(user.client_id, user.session))
    event_loop.run(begin_turn(session))
    refused = schedule(user=user.client_id, session_id=user.session, busy="reject")
    assert run.take(refused, queue="schedules") == []
    head = event_loop.run(session.head())
    assert head is not None
    assert (run.queue.sent, head.queue) == ([], ())


def test_nothing_is_told_of_a_deleted_user(run: RunFunction, world: World, webhook: Endpoint) -> None:
    user = world.user()
    user.ask()
    user.call("DELETE", "/users/me")
    before = len(webhook.requests)
    run.deliver("webhook")
    assert len(webhook.requests) == before
