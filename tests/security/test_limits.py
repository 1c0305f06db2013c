"""Each limit has its own clear error: what is just within is served, what is just beyond is refused."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from local.model import OfflineModel
from omniagent.errors import InvalidRequest
from omniagent.http.bodies import MAX_CONTAINERS, MAX_FORM_BYTES, MAX_MESSAGES, read_chat_request
from omniagent.http.fields import MAX_BODY_BYTES, MAX_PARTS
from tests.fixtures.function_url import PAYLOADS
from tests.fixtures.problems import check_problem
from tests.fixtures.world import User, World, open_world, start_at_once

Json = dict[str, Any]
MESSAGE = 100
PART = {"type": "text", "text": "a"}
LONGEST_ID = "a" * 128


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel) -> Iterator[World]:
    """Both functions with limits that a test reaches easily. Requests come in both formats of events in turn."""
    with open_world(
        mongod,
        model.base_url,
        max_message_chars=MESSAGE,
        max_running_turns_per_user=1,
    ) as world:
        yield replace(world, payloads=PAYLOADS)


def refused(response: httpx.Response, status: int, code: str, detail: str) -> None:
    assert detail in check_problem(response, status, code)["detail"]


def refusal_of(body: Json) -> str:
    """Why a body is refused; nothing if it is not."""
    try:
        read_chat_request(body)
    except InvalidRequest as refusal:
        return str(refusal)
    return ""


def sent(user: User, content: bytes, path: str = "/chat") -> httpx.Response:
    return user.call("POST", path, content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [("/chat", b'{"query": "Hi"}', MAX_BODY_BYTES), ("/sessions", b'{"name": "Hi"}', MAX_FORM_BYTES)],
    ids=["chat", "sessions"],
)
def test_the_bytes_of_a_body(user: User, path: str, body: bytes, limit: int) -> None:
    assert sent(user, body.ljust(limit), path=path).status_code in (200, 201)
    refused(sent(user, body.ljust(limit + 1), path=path), 413, "payload_too_large", f"larger than {limit} bytes")


def test_the_lists_and_objects_of_a_body(user: User) -> None:
    """Millions of empty ones fit into 6 MB. Brackets in a text are no lists."""
    many = b"[" + b"[]," * MAX_CONTAINERS + b"[]]"
    refused(sent(user, b'{"query": ' + many + b"}"), 400, "malformed_request", f"more than {MAX_CONTAINERS} lists")
    code = json.dumps({"query": "Hi", "other": '"[{' * MAX_CONTAINERS}).encode()
    assert sent(user, code).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/approvals/none", b'{"approved": true, "approved": false}'),
        ("/chat/approvals/none", rb'{"\u0061pproved": true, "\u0061pproved": false}'),
        ("/chat", b'{"session_id": "s", "replies": [{"tool_call_id": "c", "approved": true, "approved": false}]}'),
    ],
)
def test_a_verdict_that_is_said_twice_is_refused(user: User, path: str, body: bytes) -> None:
    refused(sent(user, body, path=path), 400, "malformed_request", "a name twice")


def test_two_replies_to_one_call_are_refused(user: User) -> None:
    replies = [{"tool_call_id": "c", "approved": verdict} for verdict in (True, False)]
    refused(user.post({"session_id": "s", "replies": replies}), 422, "invalid_request", "same tool_call_id")


def test_a_message_that_approves_and_denies_one_request_is_refused(user: User) -> None:
    part = {"type": "tool-refund", "toolCallId": "c", "state": "approval-responded"}
    parts = [part | {"approval": {"id": "r", "approved": verdict}} for verdict in (False, True)]
    body = {"id": "s", "messages": [{"id": "m", "role": "assistant", "parts": parts}]}
    refused(user.post(body), 422, "invalid_request", "both approved and denied")


def test_the_parts_of_a_message(user: User) -> None:
    assert user.post({"message": {"parts": [PART] * MAX_PARTS}}).status_code == 200
    refused(user.post({"message": {"parts": [PART] * (MAX_PARTS + 1)}}), 422, "invalid_request", f"at most {MAX_PARTS}")
    refused(user.post({"message": {"parts": []}}), 422, "invalid_request", "at least 1")


def test_the_messages_of_a_history() -> None:
    history = [*[{}] * (MAX_MESSAGES - 1), {"role": "user", "parts": [PART]}]
    assert read_chat_request({"messages": history}).query.text == "a"
    with pytest.raises(InvalidRequest, match=f"at most {MAX_MESSAGES}"):
        read_chat_request({"messages": [{}, *history]})


@pytest.mark.parametrize(
    "body",
    [
        lambda value: {"query": "Hi", "session_id": value},
        lambda value: {"query": "Hi", "message_id": value},
        lambda value: {"id": value, "message": {"parts": [PART]}},
        lambda value: {"message": {"id": value, "parts": [PART]}},
        lambda value: {"id": value, "messages": [{"role": "user", "parts": [PART]}]},
        lambda value: {"messages": [{"id": value, "role": "user", "parts": [PART]}]},
        lambda value: {"messages": [{}], "trigger": "regenerate-message", "messageId": value, "id": "unknown"},
    ],
)
def test_the_ids_of_a_body(body: Any) -> None:
    read_chat_request(body(LONGEST_ID))
    for bad in (LONGEST_ID + "a", "", "a b", "..", "a/b", "a\0", "a\n", "ä", "$gt", "a:b", {"$gt": ""}, ["a"], 7, True):
        assert "id" in refusal_of(body(bad)).lower(), bad


def test_the_characters_of_a_name_and_of_a_search(user: User) -> None:
    assert user.call("POST", "/sessions", json={"id": "s", "name": "ä" * 120}).json()["name"] == "ä" * 120
    for bad in ("ä" * 121, "", " ", "a\0b", "a\nb", "a\u202eb", "\u2800", "a\u00adb", "a\x1b[0m", {"$set": 1}, 7):
        refused(user.call("PATCH", "/sessions/s", json={"name": bad}), 422, "invalid_request", "name")
    assert len(user.call("GET", f"/sessions?search={'ä' * 100}").json()["sessions"]) == 1
    for bad in ("ä" * 101, "a%00b"):
        refused(user.call("GET", f"/sessions?search={bad}"), 422, "invalid_request", "search")


def test_what_looks_like_an_operator_is_text(world: World, user: User) -> None:
    before = world.documents()
    for body in ({"query": {"$gt": ""}}, {"query": "Hi", "session_id": {"$ne": None}}, {"$where": "1", "query": None}):
        assert check_problem(user.post(body))["status"] == 422
    for query in ("before[$gt]=", 'before={"$gt":""}', "limit[$gt]=1", "search[$regex]=.*"):
        response = user.call("GET", f"/sessions?{query}")
        assert response.status_code in (200, 422)
        assert response.json().get("sessions", []) == []
    assert world.documents() == before
    user.ask('{"$where": "sleep(1000)"}')
    assert user.messages()[0]["parts"] == [{"type": "text", "text": '{"$where": "sleep(1000)"}'}]


def test_no_more_of_them_begin_at_the_same_moment(world: World, user: User) -> None:
    before = world.documents()
    kinds = sorted(type(begun).__name__ for begun in start_at_once(world, user, 6))
    assert kinds == ["AnswerStream"] + ["TooManyTurns"] * 5
    added = {name: count - before[name] for name, count in world.documents().items()}
    assert added == {"users": 1, "sessions": 1, "messages": 2}
