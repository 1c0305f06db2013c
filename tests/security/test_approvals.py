"""Approvals over HTTP: how they are answered, forged answers, and a rule of the project for approvals of others."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from local.model import OfflineModel
from omniagent import Approver, Project, ToolRequest
from omniagent.http import sessions_app
from omniagent.session.ids import new_id
from tests.fixtures.examples import examples
from tests.fixtures.problems import check_problem
from tests.fixtures.world import User, World, open_world
from tests.security.forgeries import Forger
from tests.security.shop import REFUND, SHOP, answered, ran, tools, wait


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel) -> Iterator[World]:
    with open_world(mongod, model.base_url, team=Project(agent=SHOP)) as world:
        yield world


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


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


def approvers(approver: Approver, request: ToolRequest) -> bool:
    if request.input == {"order": "unheard-of"}:
        raise LookupError("a bug of the rule's")
    return approver.category == "boss" or (approver.user == request.user and request.input != {"order": "big"})


@pytest.fixture
def office(world: World) -> Iterator[World]:
    """The world while bosses approve."""
    with world.changed(approvers=approvers):
        yield world


def boss(world: World) -> User:
    name = f"boss-{new_id()}"
    return User(world.client(headers={"x-user-id": name, "x-user-category": "boss"}), f"user:{name}")


def test_a_rule_lets_another_user_approve_and_tells_them_only_what_they_may_see(office: World) -> None:
    user, manager, other = office.user(), boss(office), office.user()
    message = wait(user, REFUND.replace("42", "big"))
    [part] = tools(message)
    check_problem(user.post(answered(user, message, approved=True)), 403, "forbidden")
    assert user.call("GET", "/approvals").json()["approvals"] == []
    assert other.call("GET", "/approvals").json()["approvals"] == []
    [request] = [
        each for each in manager.call("GET", "/approvals").json()["approvals"] if each["user"] == user.client_id
    ]
    assert (request["sessionId"], request["messageId"], request["input"]) == (None, None, {"order": "big"})
    path = f"/chat/approvals/{request['id']}"
    check_problem(other.call("POST", path, json={"approved": True}), 404, "unknown_request")
    for _ in range(2):
        response = manager.call("POST", path, json={"approved": True, "reason": "fine"})
        assert (response.status_code, response.json()) == (200, {"id": part["approval"]["id"], "approved": True})
    check_problem(manager.call("POST", path, json={"approved": False}), 409, "reply_conflict")
    check_problem(other.call("POST", path, json={"approved": True}), 404, "unknown_request")
    assert tools(user.messages()[-1])[0]["output"] == "refunded big"
    assert ran == ["big"]


def test_a_rule_that_raises_lets_nobody_approve(office: World) -> None:
    user, manager = office.user(), boss(office)
    message = wait(user, REFUND.replace("42", "unheard-of"))
    [part] = tools(message)
    path = f"/chat/approvals/{part['approval']['id']}"
    check_problem(manager.call("POST", path, json={"approved": True}), 404, "unknown_request")
    check_problem(user.post(answered(user, message, approved=True)), 403, "forbidden")
    for each in (user, manager):
        asked = each.call("GET", "/approvals").json()["approvals"]
        assert part["approval"]["id"] not in [request["id"] for request in asked]
    assert ran == []


def test_a_rule_for_others_does_not_answer_the_clients_tools(office: World) -> None:
    user, manager = office.user(), boss(office)
    wait(user, '[tool:ask_user {"question": "Why?", "choices": []}] [then] [echo:Done.]')
    listed = user.call("GET", "/approvals").json()["approvals"]
    assert [each["kind"] for each in listed] == ["output"]
    ids = [each["id"] for each in manager.call("GET", "/approvals").json()["approvals"]]
    assert listed[0]["id"] not in ids
    path = f"/chat/approvals/{listed[0]['id']}"
    check_problem(manager.call("POST", path, json={"approved": True}), 404, "unknown_request")


def test_nobody_learns_how_many_turns_of_others_wait(office: World) -> None:
    for _ in range(3):
        wait(office.user(), REFUND.replace("42", "big"))
    assert office.user().call("GET", "/approvals?limit=1").json() == {"approvals": [], "before": None}
    manager, seen, path = boss(office), [], "/approvals?limit=1"
    while path:
        page = manager.call("GET", path).json()
        seen += [request["id"] for request in page["approvals"]]
        path = page["before"] and f"/approvals?limit=1&before={page['before']}"
    assert len(seen) == len(set(seen)) >= 3


def test_one_user_cannot_fill_the_list_of_an_approver(office: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_app, "MAX_LISTED_PER_USER", 2)
    eager, patient = office.user(), office.user()
    wait(patient, REFUND.replace("42", "big"))
    for _ in range(4):
        wait(replace(eager, session=new_id()), REFUND.replace("42", "big"))
    listed = [request["user"] for request in boss(office).call("GET", "/approvals?limit=100").json()["approvals"]]
    assert (listed.count(eager.client_id), listed.count(patient.client_id)) == (2, 1)
