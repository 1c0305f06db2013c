"""After `DELETE /users/me` nothing that the user said is found anywhere: every store is searched."""

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from local.aws import Aws
from local.model import OfflineModel
from omniagent.session.ids import new_id
from tests.fixtures import waiting_agent
from tests.fixtures.calls import User, eventually
from tests.fixtures.functions import functions_with
from tests.fixtures.product import Product, running_product

Item = dict[str, Any]
SAID, KEPT = f"the zebra {new_id()}", f"the okapi {new_id()}"


@pytest.fixture
async def product(mongod: str, model: OfflineModel, tmp_path: Path) -> AsyncIterator[Product]:
    code = functions_with(tmp_path / "functions", project=Path(waiting_agent.__file__))
    options: dict[str, Any] = {
        "environment": {"BUDGET_TOKENS_PER_DAY": "1000000"},
        "change": lambda function: function.having(code=code),
        "functions": ("chat", "sessions", "summary", "run"),
    }
    # A local AWS of these tests alone: another emulator would take jobs from its queue.
    with Aws() as aws:
        async with running_product(mongod, aws, model, **options) as product:
            yield product


class Search:
    """Looks for a text in all that a stack stores."""

    def __init__(self, product: Product) -> None:
        self._product = product

    def places(self, text: str) -> set[str]:
        """Every place that holds the text, however it is encoded there."""
        return {place for place, content in self._contents() if text in content}

    def _contents(self) -> Iterator[tuple[str, str]]:
        database, aws = self._product.database, self._product.aws
        for name in database.list_collection_names():
            for document in database[name].find():
                yield name, repr(document)
        for item in _all_items(self._product):
            yield item["item"]["S"].partition("#")[0], _readable(item)
        # All that the AWS stand-in holds: messages that are waiting, delayed, in flight or dead among it.
        signed = {"authorization": f"AWS4-HMAC-SHA256 Credential={aws.environment['AWS_ACCESS_KEY_ID']}/"}
        state = httpx.get(f"{aws.endpoint}/moto-api/data.json", headers=signed, trust_env=False, timeout=60).json()
        assert state["sqs"]
        yield "queues", json.dumps(state["sqs"])
        yield "logs", "\n".join(line for _, line in self._product.lines)


def _readable(item: Any) -> str:
    """An item of a table, its compressed values read as text, however deep they are."""
    if isinstance(item, bytes):
        return zlib.decompress(item).decode()
    if isinstance(item, list):
        return "".join(map(_readable, item))
    if isinstance(item, dict):
        return "".join(f"{name} {_readable(value)} " for name, value in item.items())
    return str(item)


async def converse(user: User, product: Product, text: str) -> None:
    """Leave the text in every place: messages, a name, a summary, feedback, the chunk log, whatever a user may have."""
    for number in range(3):
        await user.ask(f"[echo:{text} {number}] {text}")
    await user.call("PATCH", "/sessions/{}", json={"name": text})
    [*_, answer] = await user.messages()
    rated = await user.call("PUT", f"/sessions/{{}}/messages/{answer['id']}/feedback", json={"text": text})
    assert rated.status_code == 200
    assert (await user.call("POST", "/sessions/{}/summary?rebuild=true")).status_code == 202
    await eventually(lambda: product.database.summaries.find_one({"session_id": user.key}))
    product.database.summaries.update_one({"session_id": user.key}, {"$set": {"content": text}})
    assert (await user.call("POST", "/sessions", json={"name": text})).status_code == 201
    for is_answered in (False, True):
        waits = User(user.emulator, user.http, user.headers)
        events = await waits.ask(f'[tool:refund {{"order": "{text}"}}] [then] [echo:{text}]')
        [call_id] = [event["toolCallId"] for event in events if event["type"] == "tool-approval-request"]
        if is_answered:
            denial = {"tool_call_id": call_id, "approved": False, "reason": text}
            body = {"session_id": waits.session, "replies": [denial]}
            assert (await waits.call("POST", "/chat?stream=false", json=body)).status_code == 200
    [table] = product.aws.dynamodb.list_tables()["TableNames"]
    owner = user.key.partition(":")[0]
    for key, item in ((owner, "later"), (f"budget#{owner}", "budget#2026-01-01")):
        note: Any = {"session_id": {"S": key}, "item": {"S": item}, "note": {"S": text}}
        product.aws.dynamodb.put_item(TableName=table, Item=note)


async def test_nothing_of_a_deleted_user_is_found_in_any_store(product: Product) -> None:
    ada, bob, search = product.user(), product.user(), Search(product)
    await converse(ada, product, SAID)
    await converse(bob, product, KEPT)
    running = User(ada.emulator, ada.http, ada.headers)
    async with running.asking(f"[slow:50] [long:400] {SAID}") as answer:
        await answer.until("text-delta")
        await eventually(lambda: len(_items(product, running.key)) > 1)
        body = {"session_id": running.session, "query": f"And {SAID}?", "busy": "queue"}
        waiting = asyncio.create_task(running.call("POST", "/chat", json=body))
        await eventually(lambda: product.database.sessions.count_documents({"queue.0": {"$exists": True}}) == 1)
        before = search.places(SAID)
        assert before >= {"messages", "sessions", "summaries", "journal", "later"}, "the search finds what is there"
        assert (await ada.call("DELETE", "/users/me")).status_code == 204
        await answer.rest()
        await waiting
    await product.emulator.settled()
    user_id = ada.key.partition(":")[0]
    for collection in (product.database.users, product.database.sessions):  # two minutes pass
        collection.update_many({"erased_at": {"$ne": None}}, {"$set": {"erased_at": datetime(2026, 1, 1, tzinfo=UTC)}})
    await product.emulator.invoke("run", b'{"kind": "sweep"}')
    assert search.places(SAID) == set()
    assert search.places(user_id) <= {"queues", "logs", "budget"}, "where the hash of the name stays a while"
    [page] = _items(product, f"budget#{user_id}")
    assert all(re.fullmatch(r"[\w#@~-]+", value) for value in _values(page)), "it holds numbers alone"
    assert search.places(ada.headers["x-user-id"]) == set()
    assert (await ada.call("DELETE", "/users/me")).status_code == 204
    assert search.places(KEPT) >= {"messages", "sessions", "summaries", "journal", "later"}
    assert not search.places(KEPT) & {"queues", "logs"}
    assert len(await bob.messages()) == 6


def _all_items(product: Product) -> Iterator[Item]:
    [table] = product.aws.dynamodb.list_tables()["TableNames"]
    for page in product.aws.dynamodb.get_paginator("scan").paginate(TableName=table):
        yield from page["Items"]


def _items(product: Product, key: str) -> list[Item]:
    return [item for item in _all_items(product) if item["session_id"]["S"] == key]


def _values(item: Item) -> list[str]:
    return [str(next(iter(value.values()))) for value in item.values()]
