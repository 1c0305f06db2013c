"""What belongs to somebody else answers exactly like what does not exist: in body, status, headers and work done.

Work is what MongoDB's own profiler saw, not the time it took: the same commands that looked at as many documents.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

import httpx
import pytest

from omniagent.lambda_runtime import event_loop
from omniagent.protocol import sse
from omniagent.session.ids import new_id
from tests.fixtures.function_url import PAYLOADS
from tests.fixtures.live_turns import begin_turn
from tests.fixtures.stream import outline
from tests.fixtures.world import User, World
from tests.security.routes import ROUTES, Route

Json = dict[str, Any]
Work = list[tuple[str, str, int, int]]
OF_A_SESSION = [route for route in ROUTES if "{session_id}" in route.path]


@pytest.fixture
def world(request: pytest.FixtureRequest, world: World) -> World:
    """The same behind a Function URL, or where the test says so, behind API Gateway."""
    return replace(world, payloads=(getattr(request, "param", "2.0"),))


@pytest.fixture
def ada(world: World) -> Iterator[User]:
    """Somebody with a session that has messages, a summary and a running turn."""
    ada = world.user()
    ada.ask("[echo:My secret]", message_id="question")

    async def go_on() -> None:
        session = await world.application.session(ada.client_id, ada.session)
        await begin_turn(session, "?", message_id="second")
        models = (await world.application.store()).models
        summary = models.summary(
            session_id=session.key, content="Secret", token_count=1, start_turn_number=1, end_turn_number=1
        )
        await summary.insert()

    event_loop.run(go_on())
    yield ada
    event_loop.run(world.application.registry.erase(ada.key))


@pytest.fixture
def profiled(world: World) -> Iterator[Callable[[], Work]]:
    """What the functions asked of MongoDB since the last time this was called."""
    database = world.database
    database.command("profile", 2)
    seen = 0

    def work() -> Work:
        nonlocal seen
        found = list(database["system.profile"].find({"appName": "omniagent"}))[seen:]
        seen += len(found)
        return [
            (
                next(iter(entry["command"])),
                entry["ns"].partition(".")[2],
                entry.get("docsExamined", 0),
                entry.get("keysExamined", 0),
            )
            for entry in found
        ]

    yield work
    database.command("profile", 0)
    database.drop_collection("system.profile")


def visible(response: httpx.Response, session_id: str) -> tuple[int, dict[str, str], str]:
    """All that a caller can tell an answer from another by, without what is new in every answer."""
    headers = {name: value for name, value in response.headers.items() if name != "x-request-id"}
    text = re.sub(r'"request_id":"[^"]+"', "", response.text).replace(session_id, "<id>")
    return response.status_code, headers, text


def call(caller: User, route: Route, session_id: str, message_id: str) -> httpx.Response:
    url = f"http://{route.function}{route.at(session_id, message_id)}"
    return caller.http.request(route.method, url, json=route.body)


def kept(world: World, ada: User) -> list[Json]:
    """What is stored of the session."""
    mine = {"$gte": f"{ada.key}", "$lt": f"{ada.key};"}
    collections = {"sessions": "_id", "messages": "session_id", "summaries": "session_id"}
    return [found for name, key in collections.items() for found in world.database[name].find({key: mine})]


@pytest.mark.parametrize(
    ("route", "world"), list(zip(OF_A_SESSION, cycle(PAYLOADS), strict=False)), indirect=["world"], ids=str
)
def test_another_users_session_is_one_that_does_not_exist_and_is_left_as_it_was(
    route: Route, world: World, ada: User, profiled: Callable[[], Work]
) -> None:
    eve, nobodys = world.user(), new_id()
    eve.ask()  # she is known, and so is everything that is opened by a first request
    before = kept(world, ada)
    profiled()
    theirs = visible(call(eve, route, ada.session, "question"), ada.session)
    work_for_theirs = profiled()
    missing = visible(call(eve, route, nobodys, "question"), nobodys)
    assert theirs == missing
    # What is read at the same time comes in any order.
    assert sorted(work_for_theirs) == sorted(profiled())
    assert "ecret" not in theirs[2]
    assert kept(world, ada) == before
    session = event_loop.run(world.application.session(ada.client_id, ada.session))
    head = event_loop.run(session.head())
    assert head is not None
    assert head.running is not None
    assert not event_loop.run(world.application.registry.signals(ada.key, head.running.journal)).stop


def test_a_question_to_another_users_session_begins_one_of_ones_own(
    world: World, ada: User, profiled: Callable[[], Work]
) -> None:
    answers, works = [], []
    for session_id in (ada.session, new_id()):
        eve = world.user()
        profiled()
        response = eve.post({"session_id": session_id, "query": "[echo:Hi]", "message_id": "question"})
        assert response.status_code == 200
        answers.append(outline(list(sse.decode(response.content))))
        works.append(sorted(work[:2] for work in profiled()))
    assert answers[0] == answers[1]
    assert works[0] == works[1]


def test_a_list_holds_ones_own_whatever_its_cursor_says(world: World, ada: User) -> None:
    for number in range(3):
        ada.call("POST", "/sessions", json={"id": f"s{number}"})
    cursor = ada.call("GET", "/sessions?limit=1").json()["before"]
    assert len(ada.call("GET", f"/sessions?before={cursor}").json()["sessions"]) == 3
    assert world.user().call("GET", f"/sessions?before={cursor}").json() == {
        "sessions": [],
        "before": None,
        "incomplete": False,
    }
