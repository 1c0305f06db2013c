"""Running turns in a DynamoDB table, shared by every process.

The key is (session_id, item). Under a session's key, `turn` is the claim with its lease, stop flag, inbox, and the
question until the turn has begun; `chunk#<turn_id>#<n>` is one tick of the chunk log. Under a user's id, `readers`
lists the user's readers. `budget#<day>` items belong to `budget_table`.
TTL deletes late, so every condition compares `lease_until` itself.
"""

import asyncio
import logging
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from omniagent.aws.dynamo_table import LEASE_LIFE_SECONDS, OURS, TURN, DynamoTable, as_number, item_key
from omniagent.aws.invocation_end import patience
from omniagent.aws.json_api import AwsJson
from omniagent.tracing import SpanKind, trace_method
from omniagent.turns.lease import (
    CLOCK_SECONDS,
    ERASE,
    REPAIR,
    Claim,
    InboxMessage,
    OnDead,
    Reader,
    Renewal,
    RunningTurn,
    TurnRegistry,
    is_reserved_for_other,
)

if TYPE_CHECKING:
    from omniagent.aws.reader_items import ReaderItems

logger = logging.getLogger(__name__)

CHUNK_LIFE_SECONDS = 90 * 24 * 3600
"""A repair needs the chunks, however late the user comes back."""
CLAIM_PATIENCE_SECONDS = 4.0
"""How long a claim is retried. Other calls are repeated anyway, by the next tick or the next request."""
_CHUNKS = "chunk#"
_DELETES_AT_ONCE = 8
_SHORT_TOKEN = 12
"""How much of the holder's token a chunk contains: a tick of text must fit into one write unit (1 KB)."""


class DynamoRegistry(TurnRegistry):
    """The turn registry on DynamoDB. `lease_seconds` is how long a dead process blocks its session."""

    def __init__(
        self,
        table: str,
        *,
        lease_seconds: float,
        api: AwsJson | None = None,
        clock: Callable[[], float] = time.time,
        claim_patience_seconds: float = CLAIM_PATIENCE_SECONDS,
    ) -> None:
        self._table = DynamoTable(table, api)
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._claim_patience_seconds = claim_patience_seconds

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.claim")
    async def claim(self, claim: Claim, on_dead: OnDead | None = None) -> RunningTurn | None:
        answer = await self._table.call(
            "PutItem",
            patience(self._claim_patience_seconds),
            Item=self._turn_item(claim),
            ConditionExpression="attribute_not_exists(session_id) OR "
            "(lease_until <= :now AND attribute_not_exists(inbox))",
            ExpressionAttributeValues={":now": as_number(self._clock())},
            ReturnValues="ALL_OLD",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
        if not answer.get("lost"):
            self._report_dead(claim.session, answer, on_dead)
            return None
        held = self._running(claim.session, answer["item"])
        if held.claim.token == claim.token:
            return None  # our own claim: the first response was lost, and the request was retried
        return (
            held if held.alive or is_reserved_for_other(held, claim) else await self._claim_with_inbox(claim, on_dead)
        )

    async def _claim_with_inbox(self, claim: Claim, on_dead: OnDead | None) -> RunningTurn | None:
        """Claim a free session and keep its inbox, which a put would delete."""
        fields = self._turn_item(claim)
        key = {name: fields.pop(name) for name in ("session_id", "item")}
        del fields["expires_at"]  # `kept_until` is later
        assignments = ", ".join(f"#{name} = :{name}" for name in fields)
        others = ", ".join({"aliases", "attempt", "question"} - fields.keys())
        condition = "lease_until <= :now"
        if not claim.goes_first:
            condition += " AND (inbox[0].id = :message_id OR turn_id = :turn_id)"
        answer = await self._table.call(
            "UpdateItem",
            patience(self._claim_patience_seconds),
            Key=key,
            UpdateExpression=f"SET {assignments}" + (f" REMOVE {others}" if others else ""),
            ConditionExpression=condition,
            ExpressionAttributeNames={f"#{name}": name for name in fields},
            ExpressionAttributeValues={
                ":now": as_number(self._clock()),
                **{f":{name}": value for name, value in fields.items()},
            },
            ReturnValues="ALL_OLD",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
        if not answer.get("lost"):
            self._report_dead(claim.session, answer, on_dead)
            return None
        if answer["item"] is None:
            return await self.claim(claim, on_dead)  # the inbox was answered and the item deleted meanwhile
        held = self._running(claim.session, answer["item"])
        if held.claim.token == claim.token:
            return None
        # Another process held it. If this one was frozen meanwhile, that lease may have expired: claim again.
        return held if held.alive or is_reserved_for_other(held, claim) else await self.claim(claim, on_dead)

    def _report_dead(self, session: str, answer: dict[str, Any], on_dead: OnDead | None) -> None:
        if on_dead is None or not answer.get("Attributes"):
            return
        held = self._running(session, answer["Attributes"])
        if held.has_died:
            on_dead(held.claim)

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.seize")
    async def seize(self, claim: Claim) -> RunningTurn | None:
        answer = await self._table.call("PutItem", Item=self._turn_item(claim), ReturnValues="ALL_OLD")
        return self._running(claim.session, answer["Attributes"]) if answer.get("Attributes") else None

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.renew")
    async def renew(self, claim: Claim) -> Renewal:
        lease = self._lease(self._clock())
        answer = await self._table.call(
            "UpdateItem",
            Key=item_key(claim.session, TURN),
            UpdateExpression="SET lease_until = :lease, expires_at = if_not_exists(kept_until, :expires)"
            + ("" if claim.question else " REMOVE question"),
            ConditionExpression=OURS,
            ExpressionAttributeValues={
                ":holder": {"S": claim.token},
                ":lease": lease["lease_until"],
                ":expires": lease["expires_at"],
            },
            ReturnValues="ALL_NEW",
        )
        if answer.get("lost"):
            return Renewal.LOST
        return Renewal(answer["Attributes"]["state"]["S"], _inbox(answer["Attributes"]))

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.post")
    async def post(self, claim: Claim, message: InboxMessage, limit: int, *, stop: bool = False) -> bool:
        from omniagent.aws.inbox_items import post_message  # only when a message is queued

        kept_until = self._clock() + CHUNK_LIFE_SECONDS
        posted = await post_message(self._table, claim, message, limit, kept_until=kept_until, stop=stop)
        if posted == "known" and stop:
            await self.stop(claim.session, claim.turn_id)
        return posted != "refused"

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.release")
    async def release(self, claim: Claim, taken: Collection[str] = ()) -> bool:
        ours: dict[str, Any] = {":holder": {"S": claim.token}}
        condition, values = f"{OURS} AND attribute_not_exists(inbox)", ours
        while True:
            refused = await self._table.call(
                "DeleteItem",
                Key=item_key(claim.session, TURN),
                ConditionExpression=condition,
                ExpressionAttributeValues=values,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
            item = refused.get("item")
            if item is None or item.get("holder") != ours[":holder"]:
                return False
            entries = [entry["M"] for entry in item["inbox"]["L"]]
            if any(entry["id"]["S"] not in taken for entry in entries):
                from omniagent.aws.inbox_items import release_with_inbox

                await release_with_inbox(self._table, claim, entries, taken)
                return True
            condition = f"{OURS} AND size(inbox) = :count"
            values = ours | {":count": {"N": str(len(entries))}}

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.let_go")
    async def let_go(self, claim: Claim) -> None:
        await self._table.call(
            "UpdateItem",
            Key=item_key(claim.session, TURN),
            UpdateExpression="SET lease_until = :past",
            ConditionExpression=OURS,
            ExpressionAttributeValues={
                ":holder": {"S": claim.token},
                ":past": as_number(self._clock() - CLOCK_SECONDS),
            },
        )

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.running")
    async def running(self, session: str) -> RunningTurn | None:
        answer = await self._table.call("GetItem", Key=item_key(session, TURN), ConsistentRead=True)
        return self._running(session, answer["Item"]) if "Item" in answer else None

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.stop")
    async def stop(self, session: str, message_id: str | None = None) -> bool:
        values = {
            ":stopping": {"S": "stopping"},
            ":now": as_number(self._clock()),
            ":repair": {"S": REPAIR},
            ":erase": {"S": ERASE},
        }
        condition = "lease_until > :now AND NOT message_id IN (:repair, :erase)"
        if message_id is not None:
            condition += " AND (:message IN (message_id, turn_id) OR contains(aliases, :message))"
            values[":message"] = {"S": message_id}
        answer = await self._table.call(
            "UpdateItem",
            Key=item_key(session, TURN),
            UpdateExpression="SET #state = :stopping",
            ConditionExpression=condition,
            ExpressionAttributeNames={"#state": "state"},
            ExpressionAttributeValues=values,
            ReturnValues="ALL_NEW",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
        item = answer.get("item") or answer.get("Attributes") or {}
        if "inbox" not in item:  # nearly always
            return not answer.get("lost")
        from omniagent.aws.inbox_items import stop_queued

        return await stop_queued(self._table, session, item, message_id) or not answer.get("lost")

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.append")
    async def append(self, claim: Claim, number: int, frames: bytes) -> bool:
        holder = {"S": claim.token[:_SHORT_TOKEN]}
        answer = await self._table.call(
            "PutItem",
            Item={
                **item_key(claim.session, _chunk(claim.turn_id, number)),
                "frames": {
                    "B": b64encode(zlib.compress(frames, 1)).decode()
                },  # a tick of text then costs one write unit
                "holder": holder,
                "expires_at": as_number(self._clock() + CHUNK_LIFE_SECONDS, whole=True),
            },
            ConditionExpression=f"attribute_not_exists(session_id) OR {OURS}",
            ExpressionAttributeValues={":holder": holder},
        )
        return not answer.get("lost")

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.read")
    async def read(self, session: str, turn_id: str, after: int = -1) -> list[tuple[int, bytes]]:
        pages = self._pages(
            ConsistentRead=True,
            KeyConditionExpression="session_id = :session AND #item BETWEEN :first AND :last",
            ProjectionExpression="#item, #frames",
            ExpressionAttributeNames={"#item": "item", "#frames": "frames"},
            ExpressionAttributeValues={
                ":session": {"S": session},
                ":first": {"S": _chunk(turn_id, after + 1)},
                ":last": {"S": _chunk(turn_id, 99_999_999)},
            },
        )
        chunks: list[tuple[int, bytes]] = []
        async for page in pages:
            for item in page:
                try:
                    chunks.append(_read_chunk(item))
                except (KeyError, ValueError, zlib.error) as exc:
                    # Later chunks would follow a gap, so the log ends here.
                    logger.warning("chunk unreadable", extra={"turn_id": turn_id, "cause": type(exc).__name__})
                    return chunks
        return chunks

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.enter")
    async def enter(self, reader: Reader) -> Sequence[str]:
        return await self._readers.enter(reader)

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.leave")
    async def leave(self, reader: Reader) -> None:
        await self._readers.leave(reader)

    @trace_method(kind=SpanKind.DB, name="aws.dynamodb.erase")
    async def erase(self, owner: str, limit: int = 500) -> bool:
        page = await self._table.keys_of(owner, Limit=limit)
        # Everything under this key except the claim of the process that deletes.
        keys = [key for key in page["Items"] if key["item"]["S"] != TURN]
        for start in range(0, len(keys), _DELETES_AT_ONCE):
            some = keys[start : start + _DELETES_AT_ONCE]
            await asyncio.gather(*(self._table.call("DeleteItem", Key=key) for key in some))
        return "LastEvaluatedKey" not in page

    @cached_property
    def _readers(self) -> "ReaderItems":
        from omniagent.aws.reader_items import ReaderItems  # only when a request follows a turn

        return ReaderItems(self._table, self._clock)

    async def _pages(self, **query: Any) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the pages of a query. DynamoDB reads at most 1 MB at a time."""
        while True:
            page = await self._table.call("Query", **query)
            yield page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            query["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    async def aclose(self) -> None:
        await self._table.aclose()

    def _turn_item(self, claim: Claim) -> dict[str, Any]:
        return {
            **item_key(claim.session, TURN),
            "turn_id": {"S": claim.turn_id},
            "holder": {"S": claim.token},
            "message_id": {"S": claim.message_id},
            **({"attempt": as_number(claim.attempt, whole=True)} if claim.attempt else {}),
            "state": {"S": "stopping" if claim.is_stopped else "running"},
            **({"aliases": {"SS": sorted(claim.aliases)}} if claim.aliases else {}),
            **({"question": {"B": b64encode(claim.question).decode()}} if claim.question else {}),
            **self._lease(self._clock()),
        }

    def _lease(self, now: float) -> dict[str, Any]:
        until = now + self._lease_seconds
        return {"lease_until": as_number(until), "expires_at": as_number(until + LEASE_LIFE_SECONDS, whole=True)}

    def _running(self, session: str, item: dict[str, Any]) -> RunningTurn:
        turn_id = item["turn_id"]["S"]
        holder = item.get("holder", {}).get("S", turn_id)
        claim = Claim(
            session,
            turn_id,
            item["message_id"]["S"],
            frozenset(item.get("aliases", {}).get("SS", ())),
            owner="" if holder == turn_id else holder,
            attempt=int(item.get("attempt", {}).get("N", 0)),
            question=b64decode(item["question"]["B"]) if "question" in item else b"",
        )
        until = float(item["lease_until"]["N"])
        return RunningTurn(claim, item["state"]["S"] == "stopping", until - self._clock(), until, _inbox(item))


def _inbox(item: dict[str, Any]) -> tuple[InboxMessage, ...]:
    if "inbox" not in item:  # nearly always
        return ()
    from omniagent.aws.inbox_items import read_inbox

    return read_inbox(item)


def _chunk(turn_id: str, number: int) -> str:
    return f"{_CHUNKS}{turn_id}#{number:08d}"


def _read_chunk(item: dict[str, Any]) -> tuple[int, bytes]:
    return int(item["item"]["S"].rpartition("#")[2]), zlib.decompress(b64decode(item["frames"]["B"]))
