"""The journals and signals of running turns in a DynamoDB table, shared by every process.

The key is (session_id, item). Under a session's key, `journal#<id>#<n>` is one chunk of a journal, and `signals#<id>`
exists once somebody stops or steers the turn. Under a user's id, `readers` counts the user's readers. `budget#<day>`
items belong to `budget_table`.
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

from omniagent.aws.json_api import DYNAMODB, AwsJson
from omniagent.aws.signing import AwsRefused, AwsUnreachable
from omniagent.errors import RegistryMisconfigured, RegistryUnavailable
from omniagent.tracing import SpanKind, current_span, trace_method
from omniagent.tracing.attributes import DB_COLLECTION
from omniagent.turns.registry import KEPT_DAYS, Chunk, Signals, TurnRegistry

logger = logging.getLogger(__name__)

READERS_LIFE_SECONDS = 3600
_DELETES_AT_ONCE = 8
_READER = "reader#"
UNREADABLE = b'{"record":'
"""A line that no client sees, and no successor can read."""
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


def item_key(session: str, item: str) -> dict[str, Any]:
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

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.append")
    async def append(self, session: str, journal: str, chunk: Chunk) -> bool:
        run = {"S": chunk.run}
        answer = await self._table.call(
            "PutItem",
            Item={
                **item_key(session, _chunk(journal, chunk.number)),
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

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.read")
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

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.signal")
    async def signal(self, session: str, journal: str, *, stop: bool = False, mail: bool = False) -> None:
        await self._table.call(
            "UpdateItem",
            Key=item_key(session, f"signals#{journal}"),
            UpdateExpression=f"SET expires_at = :end{', #stop = :true' if stop else ''} ADD #mail :mail",
            ExpressionAttributeNames={"#mail": "mail"} | ({"#stop": "stop"} if stop else {}),
            ExpressionAttributeValues={
                ":end": {"N": str(int(self._clock() + self._kept_seconds))},
                ":mail": {"N": str(int(mail))},
            }
            | ({":true": {"BOOL": True}} if stop else {}),
        )

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.signals")
    async def signals(self, session: str, journal: str) -> Signals:
        # Once per tick: half a read unit, a tenth of the price of a write. A tick later it is read all the same.
        answer = await self._table.call("GetItem", Key=item_key(session, f"signals#{journal}"))
        item = answer.get("Item", {})
        return Signals("stop" in item, int(item.get("mail", {"N": "0"})["N"]))

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.count_reader")
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
        key = item_key(user_id, "readers")
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

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.erase")
    async def erase(self, owner: str, limit: int = 500) -> bool:
        page = await self._table.keys_of(owner, Limit=limit)
        keys = page["Items"]
        for start in range(0, len(keys), _DELETES_AT_ONCE):
            some = keys[start : start + _DELETES_AT_ONCE]
            await asyncio.gather(*(self._table.call("DeleteItem", Key=key) for key in some))
        return "LastEvaluatedKey" not in page

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
