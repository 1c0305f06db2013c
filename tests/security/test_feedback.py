"""Feedback: kept with its answer, within limits, and out of other people's reach."""

from typing import Any

import pytest

from tests.fixtures.problems import check_problem
from tests.fixtures.world import User

Json = dict[str, Any]
LONGEST = "ä" * 2000


def rate(user: User, message_id: str, body: Any, session: str = "{}") -> Any:
    return user.call("PUT", f"/sessions/{session}/messages/{message_id}/feedback", json=body)


@pytest.fixture
def answer(user: User) -> Json:
    user.ask(message_id="question")
    answer: Json = user.messages()[-1]
    return answer


def shown(user: User) -> Json | None:
    """The feedback that a reload shows."""
    feedback: Json | None = user.messages()[-1]["metadata"].get("feedback")
    return feedback


def test_a_reload_shows_the_feedback_until_it_is_taken_back(user: User, answer: Json) -> None:
    path = f"/sessions/{{}}/messages/{answer['id']}/feedback"
    stored = rate(user, answer["id"], {"rating": "up", "text": " Two\nlines. "})
    assert stored.json() == {"messageId": answer["id"], "rating": "up", "text": "Two\nlines."}
    assert shown(user) == {"rating": "up", "text": "Two\nlines."}
    [*_, replayed] = [event for event in user.ask(message_id="question") if event["type"] == "start"]
    assert replayed["messageMetadata"]["feedback"] == {"rating": "up", "text": "Two\nlines."}
    assert rate(user, answer["id"], {"rating": "down"}).status_code == 200
    assert shown(user) == {"rating": "down"}, "the new feedback takes the place of the old one"
    assert rate(user, answer["id"], {"rating": None}).json()["rating"] is None
    assert shown(user) is None
    assert rate(user, answer["id"], {"text": "No thumb."}).status_code == 200
    assert shown(user) == {"text": "No thumb."}
    assert [user.call("DELETE", path).status_code for _ in range(2)] == [204, 204]
    assert shown(user) is None
    rest = {key: value for key, value in answer.items() if key != "metadata"}
    assert {key: value for key, value in user.messages()[-1].items() if key != "metadata"} == rest


def test_feedback_has_limits(user: User, answer: Json) -> None:
    bodies: list[Any] = [
        {"rating": "sideways"},
        {"rating": ["up"]},
        {"rating": {"$set": "up"}},
        {"rating": 1},
        {"rating": "up", "text": LONGEST + "a"},
        {"rating": "up", "text": "a\0b"},
        {"rating": "up", "text": {"$ref": "a", "$id": 1}},
        {"value": "up"},
        {},
        [],
    ]
    for body in bodies:
        refused = rate(user, answer["id"], body)
        assert (body, refused.status_code) == (body, 422)
        assert check_problem(refused)["code"] == "invalid_request"
    assert shown(user) is None
