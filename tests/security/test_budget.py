"""One user cannot spend without bound (P10): requests, tokens, readers and tool calls, through the functions."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from local.model import OfflineModel
from omniagent import Budget
from omniagent.lambda_runtime import event_loop
from omniagent.turns.engine import following
from tests.fixtures.jobs import RecordedQueue
from tests.fixtures.problems import check_problem
from tests.fixtures.world import User, World, open_world

Json = dict[str, Any]


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel) -> Iterator[World]:
    """Users with little to spend."""
    limits: dict[str, Any] = {"budget_tokens_per_day": 40}
    with open_world(mongod, model.base_url, **limits) as world:
        yield world


@pytest.fixture
def hasty(world: World) -> Iterator[World]:
    """Users who may not ask often."""
    with world.changed(budgets={"hasty": Budget(requests_per_minute=2)}):
        yield world


@pytest.fixture
def queued(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Json]:
    """What is sent to the queue of summaries."""
    queue = RecordedQueue()
    monkeypatch.setattr(world.application.platform, "summary_queue", queue)
    settings = replace(world.application.settings, summary_queue_url="https://queue")
    monkeypatch.setattr(world.application.platform, "settings", settings)
    return queue.sent


@pytest.fixture
def generous(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Users with enough to spend, who may follow one answer."""
    settings = replace(world.application.settings, max_readers_per_user=1)
    monkeypatch.setattr(world.application.platform, "settings", settings)
    monkeypatch.setattr(following, "FOLLOW_SECONDS", 0.05)
    with world.changed(budgets={"generous": Budget(tokens_per_day=1_000_000)}):
        yield world


def refused(response: httpx.Response, code: str) -> None:
    problem = check_problem(response, 429, code)
    assert int(response.headers["retry-after"]) >= 1
    reset = datetime.fromisoformat(problem["reset_at"])
    assert timedelta(0) < reset - datetime.now(UTC) <= timedelta(days=1)


def used(user: User) -> int:
    tokens: int = user.call("GET", "/usage").json()["tokensPerDay"]["used"]
    return tokens


def test_over_a_days_tokens_chat_name_and_summary_are_refused_alike(
    generous: World, user: User, queued: list[Json]
) -> None:
    user.http.headers["x-user-category"] = "generous"
    for _ in range(2):
        user.ask("[echo:A few words.]")
    del user.http.headers["x-user-category"]
    asked = user.post({"session_id": user.session, "query": "One more"})
    refused(asked, "budget_exceeded")
    refused(user.call("POST", "/sessions/{}/name"), "budget_exceeded")
    refused(user.call("POST", "/sessions/{}/summary?rebuild=true"), "budget_exceeded")
    assert queued == []
    assert len(user.messages()) == 4
    assert generous.user().post({"query": "[echo:Somebody else.]"}).status_code == 200


def test_usage_is_what_was_counted(user: User) -> None:
    nothing = user.call("GET", "/usage").json()
    assert nothing["requestsPerMinute"] is None
    assert nothing["tokensPerDay"] | {"used": 0, "estimated": 0, "limit": 40} == nothing["tokensPerDay"]
    told = user.ask("[echo:Hello.]")[-1]["data"]
    assert used(user) == told["usage"]["totalTokens"]


def this_minute() -> datetime:
    return datetime.now(UTC).replace(second=0, microsecond=0)


def test_an_operator_sees_refusals(user: User, capsys: pytest.CaptureFixture[str]) -> None:
    while used(user) < 40:
        user.ask("[echo:A few words.]")
    capsys.readouterr()
    refused(user.post({"query": "One more"}), "budget_exceeded")
    assert '"BudgetRefusals":[1.0]' in capsys.readouterr().out.replace(" ", "")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/sessions?search=lisbon"), ("POST", "/sessions"), ("POST", "/sessions/{}/name")],
    ids=["search", "new session", "refused name"],
)
def test_what_costs_the_database_or_the_model_counts_as_a_request(method: str, path: str, hasty: World) -> None:
    minute, statuses = None, []
    while minute != this_minute():  # else one has ended in the middle: once more
        minute = this_minute()
        user = hasty.user()
        user.ask("[title:fail:400] Hello")  # counted for another category
        user.http.headers["x-user-category"] = "hasty"
        statuses = [user.call(method, path).status_code for _ in range(3)]
    assert statuses[-1] == 429
    assert max(statuses[:2]) < 300
    assert user.call("GET", "/sessions").status_code == 200, "a plain list is free"


def test_a_user_searches_once_at_a_time(world: World) -> None:
    user, path = world.user(), "/sessions?search=lisbon"
    other = world.application.one_search(user.client_id)
    event_loop.run(other.__aenter__())
    refused = check_problem(user.call("GET", path))
    assert (refused["status"], refused["detail"]) == (429, "Another search of yours is still running.")
    assert world.user().call("GET", path).status_code == 200
    event_loop.run(other.__aexit__(None, None, None))
    found = user.call("GET", path)
    assert (found.status_code, found.json()["incomplete"]) == (200, False)
