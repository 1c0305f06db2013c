"""What users spend, in the turn table: one item per user and day, `budget#<day>`, and `budget#<day>#<agent>`.

`tokens` and `estimated` count the day's tokens, `m<minute>` the requests of a minute. Each call is one read or one
write of less than 1 KB.
"""

import time
from collections.abc import Callable
from typing import Any

from omniagent.aws.json_api import AwsJson
from omniagent.aws.turn_table import DynamoTable, item_key
from omniagent.budget.spending import Spending, SpendingCounter
from omniagent.messages import Usage
from omniagent.tracing import SpanKind, trace_method

_FORGOTTEN_MINUTES = range(2, 18)
"""Ages of the counts that a request removes. A longer pause leaves one behind, so an item has at most 90."""


class DynamoCounter(SpendingCounter):
    """Counts what users spend in the turn table, for all processes."""

    def __init__(self, table: str, *, api: AwsJson | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._table = DynamoTable(table, api)

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.budget")
    async def add(self, user_id: str, usage: Usage) -> Spending:
        now = self.nothing()
        answer = await self._table.call(
            "UpdateItem",
            attempts=1,
            Key=_key(user_id, now.day),
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

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.budget")
    async def count_request(self, user_id: str, limit: int) -> Spending:
        now = self.nothing()
        old = {f"#m{age}": f"m{now.minute - age}" for age in _FORGOTTEN_MINUTES if age <= now.minute}
        answer = await self._table.call(
            "UpdateItem",
            Key=_key(user_id, now.day),
            UpdateExpression="SET expires_at = :end ADD #minute :one" + (f" REMOVE {', '.join(old)}" if old else ""),
            ConditionExpression="attribute_not_exists(#minute) OR #minute < :limit",
            ExpressionAttributeNames={"#minute": f"m{now.minute}", **old},
            ExpressionAttributeValues={":end": _end(now), ":one": {"N": "1"}, ":limit": {"N": str(limit)}},
            ReturnValues="ALL_NEW",
        )
        if answer.get("lost"):
            raise now.too_many_requests()
        return _spending(answer["Attributes"], now)

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.budget")
    async def read(self, user_id: str) -> Spending:
        now = self.nothing()
        answer = await self._table.call("GetItem", Key=_key(user_id, now.day), ConsistentRead=True)
        return _spending(answer.get("Item") or {}, now)

    async def forget(self, user_id: str) -> None:
        today = _key(user_id, self.nothing().day)
        keys = await self._table.keys_of(today["session_id"]["S"])
        for key in keys["Items"]:
            if not key["item"]["S"].startswith(today["item"]["S"]):
                await self._table.call("DeleteItem", Key=key)

    async def aclose(self) -> None:
        await self._table.aclose()


def _key(user_id: str, day: str) -> dict[str, Any]:
    """Not under the user's id, whose items are erased with the user: deleting an account must not refill its budget."""
    user, *agent = user_id.split("#", 1)
    return item_key(f"budget#{user}", "#".join(["budget", day, *agent]))


def _end(now: Spending) -> dict[str, str]:
    return {"N": str(int(now.next_day.timestamp()))}


def _spending(item: dict[str, Any], now: Spending) -> Spending:
    def number(name: str) -> int:
        return int(item.get(name, {"N": "0"})["N"])

    return Spending(now.at, number("tokens"), number("estimated"), number(f"m{now.minute}"))
