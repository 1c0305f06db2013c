"""Where a message stands in a session's history, which is a tree that only grows. Pure functions.

A *branch* is an unbroken run of messages, each after the one before it; the first one is branch 0. Another begins
where a message or an answer gets a sibling. Its messages carry their lineage: the branches that lead to it, each with
the last place that belongs to the path. So the path of a message is known without reading its ancestors, and a page of
it is one query over a few branches, whatever the number of turns and branches.

    branch 0   q1 a1 q2 a2 q3 a3
    branch 1         q2'a2'            an edit of q2      lineage ((0, a1),)
    branch 2               a3'         a3 regenerated     lineage ((0, q3),)
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_LINEAGE = 64
"""Branches in a lineage. That of an earlier message on the path goes on where it ends."""

Segment = tuple[int, int]
"""A branch, and the order of its last message that belongs to a path."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a message. The default is the root, before the first message."""

    node: str = ""
    """The message's own id in the tree."""
    order: int = 1
    """Counts along the path: twice the number of its turn, and one more for an answer."""
    branch: int = 0
    lineage: tuple[Segment, ...] = ()

    @property
    def turn_number(self) -> int:
        return self.order // 2

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The path from the root to this place, or the end of a long one."""
        return (*self.lineage, (self.branch, self.order))

    def leads_from(self, other: "Place") -> bool:
        """Whether another place is on the path to this one."""
        return any(branch == other.branch and other.order <= last for branch, last in self.segments)

    def before(self, parent: str) -> "Place":
        """Return the place of the parent."""
        if self.lineage and self.lineage[-1][1] >= self.order - 1:
            branch, order = self.lineage[-1]
            return Place(parent, order, branch, self.lineage[:-1])
        return Place(parent, self.order - 1, self.branch, self.lineage)

    def up_to(self, turn_number: int) -> "Place":
        """Return the end of this path in an earlier turn."""
        last = 2 * turn_number + 1
        if last >= self.order:
            return self
        *lineage, (branch, _) = cut(self.segments, last)
        return Place("", last, branch, tuple(lineage))


def cut(segments: Sequence[Segment], last: int) -> tuple[Segment, ...]:
    """Return a path as far as the place with this order."""
    kept = list(segments)
    while len(kept) > 1 and kept[-2][1] >= last:
        kept.pop()
    return (*kept[:-1], *((branch, min(order, last)) for branch, order in kept[-1:]))


ROOT = Place()


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a new message goes: on in the branch of the message before it, or into a branch of its own."""

    branch: int
    lineage: tuple[Segment, ...]

    @classmethod
    def after(cls, place: Place, *, fork: int | None) -> "Spot":
        """Return the spot after a message, in the new branch `fork` if there is one."""
        if fork is None:
            return cls(place.branch, place.lineage)
        return cls(fork, place.segments[-MAX_LINEAGE:])
