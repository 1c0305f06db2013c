"""Approvals over HTTP: how they are answered, forged answers, and what is left of them after a deletion."""

from collections.abc import Iterator

import pytest

from local.model import OfflineModel
from omniagent import Project
from tests.fixtures.examples import examples
from tests.fixtures.problems import check_problem
from tests.fixtures.world import User, World, open_world
from tests.security.forgeries import Forger
from tests.security.shop import SHOP, answered, ran, tools, wait


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel) -> Iterator[World]:
    with open_world(mongod, model.base_url, team=Project(agent=SHOP)) as world:
        yield world


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def test_a_denial_in_a_plain_body_is_told_with_its_reason(world: World) -> None:
    user = world.user()
    [part] = tools(wait(user))
    answer = {"tool_call_id": part["toolCallId"], "approved": False, "reason": "not now"}
    response = user.call("POST", "/chat?stream=false", json={"session_id": user.session, "replies": [answer]})
    assert response.json()["status"] == "complete"
    [denied] = tools(user.messages()[-1])
    assert (denied["state"], denied["approval"]["reason"]) == ("output-denied", "not now")
    assert ran == []


def test_without_a_rule_nobody_else_sees_or_answers(world: World) -> None:
    user, other = world.user(), world.user()
    [part] = tools(wait(user))
    assert other.call("GET", "/approvals").json()["approvals"] == []
    path = f"/chat/approvals/{part['approval']['id']}"
    check_problem(other.call("POST", path, json={"approved": True}), 404, "unknown_request")
    check_problem(other.call("POST", "/chat/approvals/nothing", json={"approved": True}), 404, "unknown_request")
    assert ran == []


def test_a_list_of_many_comes_in_pages(world: World) -> None:
    user = world.user()
    for number in range(3):
        one = User(user.http, user.client_id, f"s{number}")
        wait(one)
    first = user.call("GET", "/approvals?limit=2").json()
    second = user.call("GET", f"/approvals?limit=2&before={first['before']}").json()
    assert [each["sessionId"] for each in first["approvals"] + second["approvals"]] == ["s2", "s1", "s0"]
    assert second["before"] is None


def test_forged_answers_run_nothing_and_change_nothing(world: World) -> None:
    forger = Forger(world)
    counts = forger.forge(examples(150))
    assert counts.keys() == forger.kinds.keys()
    assert (forger.executions, forger.changes) == (0, 0)


def test_the_clients_copy_of_the_input_is_not_what_runs(world: World) -> None:
    user = world.user()
    message = wait(user)
    for part in tools(message):
        part["input"] = {"order": "1000000"}
    assert user.post(answered(user, message, approved=True)).status_code == 200
    assert ran == ["42"]
