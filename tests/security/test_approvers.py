"""Approvals of others: a rule of the project says who may see and answer them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from local.model import OfflineModel
from omniagent import Approver, Project, ToolRequest
from omniagent.http import sessions_app
from omniagent.session.ids import new_id
from tests.fixtures.problems import check_problem
from tests.fixtures.world import User, World, open_world
from tests.security.shop import REFUND, SHOP, answered, ran, tools, wait


def approvers(approver: Approver, request: ToolRequest) -> bool:
    if request.input == {"order": "unheard-of"}:
        raise LookupError("a bug of the rule's")
    return approver.category == "boss" or (approver.user == request.user and request.input != {"order": "big"})


@pytest.fixture(scope="module")
def office(mongod: str, model: OfflineModel) -> Iterator[World]:
    """A world in which bosses approve."""
    with open_world(mongod, model.base_url, team=Project(agent=SHOP, approvers=approvers)) as world:
        yield world


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


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
