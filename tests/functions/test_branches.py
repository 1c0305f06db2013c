"""Branches over HTTP, on the real MongoDB: what a page, a second page and another user send."""

from dataclasses import replace
from typing import Any

from tests.fixtures.world import User, World

ONE, TWO = "[echo:One.]", "[echo:Two.]"
REFUND = '[echo:May I?] [tool:refund {"order": 42, "euros": 500}] [then] [echo:Paid.]'


def send(user: User, text: str, message_id: str, **body: Any) -> str:
    """Send a message as a page does, and return the id of its answer."""
    message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
    answer = user.call("POST", "/chat?stream=false", json={"id": user.session, "message": message, **body})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["message"]["id"])


def texts(user: User) -> list[str]:
    """What the active path says."""
    return ["".join(part.get("text", "") for part in message["parts"]) for message in user.messages()]


def test_the_node_of_another_user_looks_unknown(world: World) -> None:
    ada = world.user()
    secret = send(replace(world.user(), session=ada.session), "[echo:A secret.]", "m1")
    send(ada, ONE, "m1")
    send(ada, TWO, "m2", parentId=secret)
    assert texts(ada) == [ONE, "One.", TWO, "Two."]
    again = {"messages": [{"id": "m9", "role": "user"}], "trigger": "regenerate-message", "messageId": secret}
    refused = [
        ada.call("PUT", "/sessions/{}/branch", json={"nodeId": secret}),
        ada.call("GET", f"/sessions/{{}}/messages?branch={secret}"),
        ada.call("DELETE", f"/sessions/{{}}/messages/{secret}"),
        ada.call("PUT", f"/sessions/{{}}/messages/{secret}/feedback", json={"rating": "up"}),
        ada.post({"id": ada.session, **again}),
    ]
    assert [response.status_code for response in refused] == [404] * 5


def test_an_approval_on_an_inactive_branch_goes_on_there(world: World) -> None:
    user = world.user()
    first, second = send(user, ONE, "m1"), send(user, TWO, "m2")
    send(user, REFUND, "m3", parentId=first)
    assert user.call("PUT", "/sessions/{}/branch", json={"nodeId": second}).status_code == 200
    assert texts(user) == [ONE, "One.", TWO, "Two."]
    (request,) = user.call("GET", "/approvals").json()["approvals"]
    approved = user.call("POST", f"/chat/approvals/{request['id']}?stream=false", json={"approved": True})
    assert approved.status_code == 200
    assert texts(user) == [ONE, "One.", REFUND, "May I?Paid."]
    assert len(user.call("GET", "/sessions/{}/tree").json()["messages"]) == 6


def test_a_message_keeps_its_parts_and_metadata_as_sent(world: World) -> None:
    user = world.user()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "data-cart", "data": {"items": 2}}]
    metadata = {"mine": 1, "nodeId": "of another message"}
    message = {"id": "m1", "role": "user", "parts": parts, "metadata": metadata}
    assert user.post({"id": user.session, "message": message}).status_code == 200
    question, _ = user.messages()
    assert question["parts"] == parts
    assert question["metadata"].pop("nodeId") != "of another message"
    assert question["metadata"] == {"mine": 1}
