"""The inbox of a session, in its claim's item: `inbox` is the list, `inbox_ids` and `inbox_size` serve to limit it.

Imported only when a message is queued.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Collection, Sequence
from typing import Any, Literal

from omniagent.aws.dynamo_table import OURS, TURN, DynamoTable, as_number, item_key
from omniagent.errors import QueueFull
from omniagent.turns.lease import ERASE, GIVEN_BACK, MAX_INBOX_BYTES, Claim, InboxMessage


async def post_message(
    table: DynamoTable, claim: Claim, message: InboxMessage, limit: int, *, kept_until: float, stop: bool
) -> Literal["new", "known", "refused"]:
    """Append a message, unless it is there already or the claim no longer holds the session."""
    entry = _entry(message)
    size = len(entry["M"]["text"]["B"])
    refused = await table.call(
        "UpdateItem",
        Key=item_key(claim.session, TURN),
        # TTL must not delete an unanswered message: once `kept_until` is set, renewals use it as their expiry.
        UpdateExpression="SET inbox = list_append(if_not_exists(inbox, :none), :entry), kept_until = :kept, "
        f"expires_at = :kept, #state = {':stopping' if stop else '#state'} ADD inbox_ids :ids, inbox_size :size",
        ConditionExpression=f"{OURS} AND message_id <> :erase AND (attribute_not_exists(inbox) OR "
        "(NOT contains(inbox_ids, :id) AND size(inbox) < :limit AND inbox_size <= :room))",
        ExpressionAttributeNames={"#state": "state"},
        ExpressionAttributeValues={
            ":holder": {"S": claim.token},
            ":erase": {"S": ERASE},
            ":none": {"L": []},
            ":entry": {"L": [entry]},
            ":kept": as_number(kept_until, whole=True),
            ":ids": {"SS": [message.id]},
            ":id": {"S": message.id},
            ":size": {"N": str(size)},
            ":limit": {"N": str(limit)},
            ":room": {"N": str(MAX_INBOX_BYTES - size)},
            **({":stopping": {"S": "stopping"}} if stop else {}),
        },
        ReturnValuesOnConditionCheckFailure="ALL_OLD",
    )
    if not refused.get("lost"):
        return "new"
    item = refused["item"] or {}
    if item.get("holder") != {"S": claim.token} or item["message_id"] == {"S": ERASE}:
        return "refused"
    if message.id not in item["inbox_ids"]["SS"]:
        raise QueueFull
    return "known"


async def release_with_inbox(
    table: DynamoTable, claim: Claim, entries: Sequence[dict[str, Any]], taken: Collection[str]
) -> None:
    """Release the session but keep its item for the remaining messages.

    Only the claim's holder removes messages, so the indexes in `entries` are still valid. A request that was applied,
    and is sent again because its answer was lost, finds the session given back, or a late renewal has leased it again:
    its indexes would remove others.
    """
    gone = [(place, entry) for place, entry in enumerate(entries) if entry["id"]["S"] in taken]
    values: dict[str, Any] = {":holder": {"S": claim.token}, ":past": as_number(GIVEN_BACK)}
    condition, removal = f"{OURS} AND lease_until <> :past", " REMOVE question"
    if gone:
        size = sum(len(entry["text"]["B"]) for _, entry in gone)
        values |= {":ids": {"SS": [entry["id"]["S"] for _, entry in gone]}, ":size": {"N": str(-size)}}
        values |= {f":id{place}": entry["id"] for place, entry in gone}
        condition += "".join(f" AND inbox[{place}].id = :id{place}" for place, _ in gone)
        places = ", ".join(f"inbox[{place}]" for place, _ in gone)
        removal += f", {places} DELETE inbox_ids :ids ADD inbox_size :size"
    await table.call(
        "UpdateItem",
        Key=item_key(claim.session, TURN),
        UpdateExpression=f"SET lease_until = :past{removal}",
        ConditionExpression=condition,
        ExpressionAttributeValues=values,
    )


async def stop_queued(table: DynamoTable, session: str, item: dict[str, Any], message_id: str | None) -> bool:
    """Flag messages of the inbox as stopped, by index. If the inbox has changed since the read, try again."""
    while places := [
        (place, message.id) for place, message in enumerate(read_inbox(item)) if message_id in (None, message.id)
    ]:
        refused = await table.call(
            "UpdateItem",
            Key=item_key(session, TURN),
            UpdateExpression="SET " + ", ".join(f"inbox[{place}].stopped = :true" for place, _ in places),
            ConditionExpression=" AND ".join(f"inbox[{place}].id = :id{place}" for place, _ in places),
            ExpressionAttributeValues={
                ":true": {"BOOL": True},
                **{f":id{place}": {"S": known} for place, known in places},
            },
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
        if not refused.get("lost"):
            return True
        item = refused["item"] or {}
    return False


def _entry(message: InboxMessage) -> dict[str, Any]:
    text = b64encode(zlib.compress(message.text.encode(), 9)).decode()
    entry = {"id": {"S": message.id}, "text": {"B": text}, "stopped": {"BOOL": message.stopped}}
    entry |= {"steers": {"BOOL": True}} if message.steers else {}
    return {"M": entry | ({"interrupts": {"S": message.interrupts}} if message.interrupts else {})}


def read_inbox(item: dict[str, Any]) -> tuple[InboxMessage, ...]:
    entries = (entry["M"] for entry in item.get("inbox", {}).get("L", ()))
    return tuple(
        InboxMessage(
            entry["id"]["S"],
            zlib.decompress(b64decode(entry["text"]["B"])).decode(),
            steers="steers" in entry,
            stopped=entry["stopped"]["BOOL"],
            interrupts=entry.get("interrupts", {}).get("S", ""),
        )
        for entry in entries
    )
