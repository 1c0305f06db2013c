"""Opaque cursors: where a page of a list ended."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from omniagent.errors import InvalidRequest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last item of a page: its time, by which the list is sorted, and its id, which needs no escaping in URLs."""

    time: datetime
    id: str

    def encode(self) -> str:
        return f"{(self.time - _EPOCH) // _MILLISECOND}.{self.id}"

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read what `encode` wrote. Raises `InvalidRequest` for anything else."""
        milliseconds, _, item_id = text.partition(".")
        try:
            return cls(_EPOCH + int(milliseconds) * _MILLISECOND, item_id)
        except (ValueError, OverflowError) as exc:
            raise InvalidRequest("before is not a cursor of this list") from exc

    def older(self, field: str, owner: str = "") -> dict[str, Any]:
        """Return the query for the items that follow. Its first bound is where MongoDB enters the index.

        `field` has the time. `owner` is what the stored ids begin with, if the cursor's do not.
        """
        return {field: {"$lte": self.time}, "$or": [{field: {"$lt": self.time}}, {"_id": {"$lt": f"{owner}{self.id}"}}]}
