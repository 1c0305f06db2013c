"""One DynamoDB table for all processes: the journals and signals of running turns, and what users spend.

The key is (session_id, item). Under a session's key, `journal#<id>#<n>` is one chunk of a journal, and `signals#<id>`
exists once somebody stops or steers the turn. Under a user's id, `readers` counts the user's readers. Spending has one
item per user and day, `budget#<day>`, and `budget#<day>#<agent>`: `tokens` and `estimated` count the day's tokens,
`m<minute>` the requests of a minute. Each call about it is one read or one write of less than 1 KB.
"""

import asyncio
import hashlib
import logging
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from omniagent.aws.client import DYNAMODB, AwsJson, AwsRefused, AwsUnreachable
from omniagent.budget.spending import Spending, SpendingCounter
from omniagent.errors import RegistryMisconfigured, RegistryUnavailable
from omniagent.messages import Usage
from omniagent.tracing import current_span, trace_database
from omniagent.tracing.attributes import DB_COLLECTION
from omniagent.turns.registry import KEPT_DAYS, Chunk, Signals, TurnRegistry

logger = logging.getLogger(__name__)

READERS_LIFE_SECONDS = 3600
_DELETES_AT_ONCE = 8
_READER = "reader#"
UNREADABLE = b'{"record":'
"""A line that no client sees, and no successor can read."""
_FORGOTTEN_MINUTES = range(2, 18)
"""Ages of the counts that a request removes. A longer pause leaves one behind, so an item has at most 90."""
_LOST = "ConditionalCheckFailedException"


class DynamoTable:
    """One DynamoDB table. Translates its errors into the package's."""

    def __init__(self, name: str, api: AwsJson | None = None) -> None:
        self._name = name
        self._api = api or AwsJson(DYNAMODB)

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call DynamoDB, as `AwsJson.call` does. A failed condition raises nothing: it returns `lost` and the item."""
        current_span().set(DB_COLLECTION, self._name)
        try:
            return await self._api.call(operation, TableName=self._name, **arguments)
        except AwsRefused as exc:
            if exc.code == _LOST:
                return {"lost": True, "item": exc.answer.get("Item")}
            raise RegistryMisconfigured(f"TURNS_TABLE {self._name}: {operation}: {exc}") from exc
        except AwsUnreachable as exc:
            raise RegistryUnavailable(f"DynamoDB {exc}") from exc

    async def keys_of(self, owner: str, **options: Any) -> dict[str, Any]:
        """Read one page of the keys of the items under a session's key or a user's id."""
        return await self.call(
            "Query",
            ConsistentRead=True,
            KeyConditionExpression="session_id = :owner",
            ProjectionExpression="session_id, #item",
            ExpressionAttributeNames={"#item": "item"},
            ExpressionAttributeValues={":owner": {"S": owner}},
            **options,
        )

    async def aclose(self) -> None:
        await self._api.aclose()


def _item_key(session: str, item: str) -> dict[str, Any]:
    return {"session_id": {"S": session}, "item": {"S": item}}


class DynamoRegistry(TurnRegistry):
    """The turn registry on DynamoDB."""

    def __init__(
        self,
        table: str,
        *,
        api: AwsJson | None = None,
        clock: Callable[[], float] = time.time,
        kept_days: float = KEPT_DAYS,
    ) -> None:
        self._table = DynamoTable(table, api)
        self._clock = clock
        self._kept_seconds = kept_days * 86400

    @trace_database("aws.dynamodb.append")
    async def append(self, session: str, journal: str, chunk: Chunk) -> bool:
        run = {"S": chunk.run}
        answer = await self._table.call(
            "PutItem",
            Item={
                **_item_key(session, _chunk(journal, chunk.number)),
                "run": run,
                "at": {"N": f"{chunk.at.timestamp():.3f}"},
                "lines": {"B": b64encode(zlib.compress(chunk.lines, 1)).decode()},  # a tick then costs one write unit
                "expires_at": {"N": str(int(self._clock() + self._kept_seconds))},
            },
            ConditionExpression="attribute_not_exists(session_id) OR #run = :run",
            ExpressionAttributeNames={"#run": "run"},
            ExpressionAttributeValues={":run": run},
        )
        return not answer.get("lost")

    @trace_database("aws.dynamodb.read")
    async def read(self, session: str, journal: str, after: int = -1, *, newest: bool = False) -> list[Chunk]:
        query: dict[str, Any] = {
            "ConsistentRead": True,
            "KeyConditionExpression": "session_id = :session AND #item BETWEEN :first AND :last",
            "ExpressionAttributeNames": {"#item": "item"},
            "ExpressionAttributeValues": {
                ":session": {"S": session},
                ":first": {"S": _chunk(journal, after + 1)},
                ":last": {"S": _chunk(journal, 99_999_999)},
            },
        }
        if newest:
            query |= {"ScanIndexForward": False, "Limit": 1}
        chunks: list[Chunk] = []
        while True:  # DynamoDB reads at most 1 MB at a time
            page = await self._table.call("Query", **query)
            chunks += map(_read_chunk, page["Items"])
            if newest or "LastEvaluatedKey" not in page:
                return chunks
            query["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    @trace_database("aws.dynamodb.signal")
    async def signal(self, session: str, journal: str, *, stop: bool = False, mail: bool = False) -> None:
        await self._table.call(
            "UpdateItem",
            Key=_item_key(session, f"signals#{journal}"),
            UpdateExpression=f"SET expires_at = :end{', #stop = :true' if stop else ''} ADD #mail :mail",
            ExpressionAttributeNames={"#mail": "mail"} | ({"#stop": "stop"} if stop else {}),
            ExpressionAttributeValues={
                ":end": {"N": str(int(self._clock() + self._kept_seconds))},
                ":mail": {"N": str(int(mail))},
            }
            | ({":true": {"BOOL": True}} if stop else {}),
        )

    @trace_database("aws.dynamodb.signals")
    async def signals(self, session: str, journal: str) -> Signals:
        # Once per tick: half a read unit, a tenth of the price of a write. A tick later it is read all the same.
        answer = await self._table.call("GetItem", Key=_item_key(session, f"signals#{journal}"))
        item = answer.get("Item", {})
        return Signals("stop" in item, int(item.get("mail", {"N": "0"})["N"]))

    @trace_database("aws.dynamodb.count_reader")
    async def count_reader(self, user_id: str, reader: str, seconds: float) -> int:
        # A short hash, so that an item with many readers stays small.
        now, name = self._clock(), _READER + hashlib.blake2b(reader.encode(), digest_size=6).hexdigest()
        change: dict[str, Any] = {
            "UpdateExpression": "SET #reader = :until, expires_at = :end",
            "ExpressionAttributeValues": {
                ":until": {"N": f"{now + seconds:.3f}"},
                ":end": {"N": str(int(now + seconds + READERS_LIFE_SECONDS))},
            },
        }
        if not seconds:
            # Conditional: a reader that leaves after its user was deleted would leave an item that never expires.
            change = {"UpdateExpression": "REMOVE #reader", "ConditionExpression": "attribute_exists(session_id)"}
        key = _item_key(user_id, "readers")
        answer = await self._table.call(
            "UpdateItem", Key=key, ExpressionAttributeNames={"#reader": name}, ReturnValues="ALL_NEW", **change
        )
        readers = {each: value for each, value in answer.get("Attributes", {}).items() if each.startswith(_READER)}
        gone = [each for each, value in readers.items() if float(value["N"]) <= now]
        if gone:  # their processes died before they left
            names = {f"#n{number}": each for number, each in enumerate(gone[:50])}
            removal = f"REMOVE {', '.join(names)}"
            await self._table.call("UpdateItem", Key=key, UpdateExpression=removal, ExpressionAttributeNames=names)
        return len(readers) - len(gone)

    @trace_database("aws.dynamodb.erase")
    async def erase(self, owner: str, limit: int = 500) -> bool:
        page = await self._table.keys_of(owner, Limit=limit)
        keys = page["Items"]
        for start in range(0, len(keys), _DELETES_AT_ONCE):
            some = keys[start : start + _DELETES_AT_ONCE]
            await asyncio.gather(*(self._table.call("DeleteItem", Key=key) for key in some))
        return "LastEvaluatedKey" not in page

    async def aclose(self) -> None:
        await self._table.aclose()


class DynamoCounter(SpendingCounter):
    """Counts what users spend in the turn table, for all processes."""

    def __init__(self, table: str, *, api: AwsJson | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._table = DynamoTable(table, api)

    @trace_database("aws.dynamodb.budget")
    async def add(self, user_id: str, usage: Usage) -> Spending:
        now = self.nothing()
        answer = await self._table.call(
            "UpdateItem",
            attempts=1,
            Key=_budget_key(user_id, now.day),
            UpdateExpression="SET expires_at = :end ADD #tokens :tokens, #estimated :estimated",
            ExpressionAttributeNames={"#tokens": "tokens", "#estimated": "estimated"},
            ExpressionAttributeValues={
                ":end": _end(now),
                ":tokens": {"N": str(usage.total_tokens)},
                ":estimated": {"N": str(usage.total_tokens if usage.estimated else 0)},
            },
            ReturnValues="ALL_NEW",
        )
        return _spending(answer["Attributes"], now)

    @trace_database("aws.dynamodb.budget")
    async def count_request(self, user_id: str, limit: int) -> Spending:
        now = self.nothing()
        old = {f"#m{age}": f"m{now.minute - age}" for age in _FORGOTTEN_MINUTES if age <= now.minute}
        answer = await self._table.call(
            "UpdateItem",
            Key=_budget_key(user_id, now.day),
            UpdateExpression="SET expires_at = :end ADD #minute :one" + (f" REMOVE {', '.join(old)}" if old else ""),
            ConditionExpression="attribute_not_exists(#minute) OR #minute < :limit",
            ExpressionAttributeNames={"#minute": f"m{now.minute}", **old},
            ExpressionAttributeValues={":end": _end(now), ":one": {"N": "1"}, ":limit": {"N": str(limit)}},
            ReturnValues="ALL_NEW",
        )
        if answer.get("lost"):
            raise now.too_many_requests()
        return _spending(answer["Attributes"], now)

    @trace_database("aws.dynamodb.budget")
    async def read(self, user_id: str) -> Spending:
        now = self.nothing()
        answer = await self._table.call("GetItem", Key=_budget_key(user_id, now.day), ConsistentRead=True)
        return _spending(answer.get("Item") or {}, now)

    async def forget(self, user_id: str) -> None:
        today = _budget_key(user_id, self.nothing().day)
        keys = await self._table.keys_of(today["session_id"]["S"])
        for key in keys["Items"]:
            if not key["item"]["S"].startswith(today["item"]["S"]):
                await self._table.call("DeleteItem", Key=key)

    async def aclose(self) -> None:
        await self._table.aclose()


def _chunk(journal: str, number: int) -> str:
    return f"journal#{journal}#{number:08d}"


def _read_chunk(item: dict[str, Any]) -> Chunk:
    """Read an item. One that is damaged still has its number: the journal ends there for a successor."""
    number = int(item["item"]["S"].rpartition("#")[2])
    try:
        at = datetime.fromtimestamp(float(item["at"]["N"]), UTC)
        return Chunk(number, item["run"]["S"], at, zlib.decompress(b64decode(item["lines"]["B"])))
    except (KeyError, ValueError, zlib.error) as exc:
        logger.warning("chunk unreadable", extra={"item": item["item"]["S"], "cause": type(exc).__name__})
        return Chunk(number, "", datetime.fromtimestamp(0, UTC), UNREADABLE)


def _budget_key(user_id: str, day: str) -> dict[str, Any]:
    """Not under the user's id, whose items are erased with the user: deleting an account must not refill its budget."""
    user, *agent = user_id.split("#", 1)
    return _item_key(f"budget#{user}", "#".join(["budget", day, *agent]))


def _end(now: Spending) -> dict[str, str]:
    return {"N": str(int(now.next_day.timestamp()))}


def _spending(item: dict[str, Any], now: Spending) -> Spending:
    def number(name: str) -> int:
        return int(item.get(name, {"N": "0"})["N"])

    return Spending(now.at, number("tokens"), number("estimated"), number(f"m{now.minute}"))
