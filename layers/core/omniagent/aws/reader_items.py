"""Readers of running turns: one item `readers` per user, with an attribute per reader (`<until>@<session>`).

Imported only when a request follows a turn.
"""

import hashlib
from collections.abc import Callable, Sequence

from omniagent.aws.dynamo_table import LEASE_LIFE_SECONDS, DynamoTable, as_number, item_key
from omniagent.turns.lease import Reader

_READER = "reader#"


class ReaderItems:
    """The readers of all users."""

    def __init__(self, table: DynamoTable, clock: Callable[[], float]) -> None:
        self._table = table
        self._clock = clock
        self._gone: dict[str, list[str]] = {}

    async def enter(self, reader: Reader) -> Sequence[str]:
        """Add a reader. See `TurnRegistry.enter`."""
        now = self._clock()
        until = now + reader.seconds
        answer = await self._table.call(
            "UpdateItem",
            Key=item_key(reader.user_id, "readers"),
            UpdateExpression="SET #reader = :reader, expires_at = :expires",
            ExpressionAttributeNames={"#reader": _reader(reader)},
            ExpressionAttributeValues={
                ":reader": {"S": f"{until:.3f}@{_short(reader.session)}"},
                ":expires": as_number(until + LEASE_LIFE_SECONDS, whole=True),
            },
            ReturnValues="ALL_NEW",
        )
        entries = {name: value["S"] for name, value in answer["Attributes"].items() if name.startswith(_READER)}
        own = entries.pop(_reader(reader)).partition("@")[2]
        live = {name for name, entry in entries.items() if float(entry.partition("@")[0]) > now}
        if gone := sorted(entries.keys() - live):
            self._gone[reader.id] = gone
        return [own, *(entries[name].partition("@")[2] for name in live)]

    async def leave(self, reader: Reader) -> None:
        """Remove a reader, and expired ones that `enter` found: their processes died before they left."""
        names = {f"#n{n}": name for n, name in enumerate([_reader(reader), *self._gone.pop(reader.id, [])[:50]])}
        await self._table.call(
            "UpdateItem",
            Key=item_key(reader.user_id, "readers"),
            UpdateExpression=f"REMOVE {', '.join(names)}",
            ExpressionAttributeNames=names,
        )


def _reader(reader: Reader) -> str:
    return f"{_READER}{_short(reader.id)}"


def _short(text: str) -> str:
    """Return a short hash of a reader's id or a session's key, so that an item with many readers stays small."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
