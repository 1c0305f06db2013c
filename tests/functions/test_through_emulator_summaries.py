"""Summaries: beside a turn, from the queue, and invoked directly."""

import json
from typing import Any

from local.cloudformation import STACK
from tests.fixtures.calls import Json, User, eventually
from tests.fixtures.product import Product


def queue_url(product: Product, name: str = "SummaryQueue") -> str:
    [url] = [url for url in product.aws.sqs.list_queues()["QueueUrls"] if url.endswith(name)]
    return url


def send(product: Product, body: str) -> None:
    product.aws.sqs.send_message(QueueUrl=queue_url(product), MessageBody=body)


def summaries(product: Product, user: User) -> list[Json]:
    return list(product.database.summaries.find({"session_id": user.key}).sort("end_turn_number"))


async def invoke(product: Product, event: Any) -> Json:
    result = await product.emulator.invoke("summary", json.dumps(event).encode())
    assert result.error_type is None, result.payload
    answer: Json = json.loads(result.payload)
    return answer


async def say(user: User, *texts: str) -> list[Json]:
    """Say something, turn after turn, and one thing more, which may still be answered again and is not summarized.

    Returns the last turn's events.
    """
    for text in texts:
        await user.ask(text)
    return await user.ask("What do you know of me?")


async def test_a_summary_that_is_due_is_made_without_being_asked_for(product: Product, user: User) -> None:
    await say(user, "I travel to Lisbon", "I like trams", "I eat no fish")
    # Beside the turn, or by the queue when the answer was complete first.
    await eventually(lambda: summaries(product, user))
    summary = (await user.call("GET", "/sessions/{}/summary")).json()
    assert (summary["startTurnNumber"], summary["endTurnNumber"]) == (1, 3)
    assert summary["content"]


async def test_a_turn_whose_summary_failed_queues_one_that_is_made_later(product: Product, user: User) -> None:
    events = await say(user, "I travel to Lisbon [summary:fail-once:500]", "I like trams", "I eat no fish")
    assert events[-1]["data"] | {"status": "complete", "summarizedTo": 0} == events[-1]["data"]
    made = await eventually(lambda: summaries(product, user))
    assert (made[0]["start_turn_number"], made[-1]["end_turn_number"]) == (1, 3)


async def test_a_summary_that_is_asked_for_is_made_by_the_queue(product: Product, user: User) -> None:
    await say(user, "I travel to Lisbon")
    accepted = await user.call("POST", "/sessions/{}/summary")
    assert (accepted.status_code, accepted.json()) == (202, {"sessionId": user.session, "accepted": "summary"})
    [made] = await eventually(lambda: summaries(product, user))
    assert made["end_turn_number"] == 1


async def test_a_summary_is_rebuilt_after_a_message_was_deleted(product: Product, user: User) -> None:
    await say(user, "I travel to Lisbon", "I like trams")
    await invoke(product, {"session_id": user.key})
    [before] = summaries(product, user)
    assert (await user.call("POST", "/sessions/{}/summary?rebuild=true")).status_code == 202
    [after] = await eventually(lambda: [made for made in summaries(product, user) if made["_id"] != before["_id"]])
    assert (after["start_turn_number"], after["end_turn_number"]) == (1, 2)


async def test_a_poisoned_message_ends_in_the_dead_letters_and_blocks_nobody(product: Product, user: User) -> None:
    await say(user, "I travel to Lisbon")
    send(product, "{not json")
    send(product, json.dumps({"session_id": user.key}))
    [made] = await eventually(lambda: summaries(product, user))
    assert made["end_turn_number"] == 1
    dead = queue_url(product, "SummaryDeadLetters")

    def poisoned() -> list[str]:
        letters = product.aws.sqs.receive_message(QueueUrl=dead, MaxNumberOfMessages=10).get("Messages", [])
        return [letter["Body"] for letter in letters if letter["Body"] == "{not json"]  # others' may be there too

    assert await eventually(poisoned) == ["{not json"]


async def test_a_batch_fails_only_where_it_failed(product: Product) -> None:
    good, bad = product.user(), product.user()
    await say(good, "I travel to Lisbon")
    await say(bad, "I like trams [summary:fail:500]")
    bodies = [json.dumps({"session_id": user.key}) for user in (bad, good)]
    records = [record(str(number), body) for number, body in enumerate([*bodies, '{"session_id": ""}'])]
    assert await invoke(product, {"Records": records}) == {
        "batchItemFailures": [{"itemIdentifier": "0"}, {"itemIdentifier": "2"}]
    }
    assert len(summaries(product, good)) == 1
    assert summaries(product, bad) == []


async def test_a_message_that_is_delivered_twice_is_paid_for_once(product: Product, user: User) -> None:
    await say(user, f"I travel to {user.session}")
    records = [record(str(number), json.dumps({"session_id": user.key})) for number in range(2)]

    def asked() -> int:
        return sum(user.session in json.dumps(request.body) for request in product.model.requests)

    before = asked()
    for _ in range(2):
        assert await invoke(product, {"Records": records}) == {"batchItemFailures": []}
    assert asked() == before + 1
    assert len(summaries(product, user)) == 1


async def test_invoked_directly_it_says_what_it_did(product: Product, user: User) -> None:
    await say(user, "I travel to Lisbon")
    done = await invoke(product, {"session_id": user.key})
    assert done == {"session_id": user.key, "status": "summarized", "end_turn_number": 1}
    again = await invoke(product, {"session_id": user.key})
    assert again == {"session_id": user.key, "status": "unchanged", "end_turn_number": 1}
    assert (await invoke(product, {"session_id": "nobody:nothing"}))["status"] == "not_found"


async def test_a_direct_request_that_makes_no_sense_is_an_error(product: Product) -> None:
    result = await product.emulator.invoke("summary", b'{"session_id": 7}')
    assert result.error_type
    assert json.loads(result.payload)["errorType"] == "ValidationError"


def record(message_id: str, body: str) -> Json:
    """A message as Lambda hands it over."""
    return {
        "messageId": message_id,
        "receiptHandle": message_id,
        "body": body,
        "attributes": {},
        "messageAttributes": {},
        "md5OfBody": "",
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:123456789012:{STACK}-SummaryQueue",
        "awsRegion": "us-east-1",
    }
