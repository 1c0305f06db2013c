"""What the summaries of a session are, and what their pipeline reads and writes of it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from omniagent.session.tree import Place


@dataclass(frozen=True, slots=True)
class RollingSummary:
    """What happened in the turns `start_turn_number` to `end_turn_number` of a path, and in all before.

    It serves every path that contains its end: that turn's answer in `branch`.
    """

    content: str
    token_count: int
    start_turn_number: int
    end_turn_number: int
    branch: int = 0
    basis: str | None = field(default=None, compare=False)
    """The session's `summary_basis` before anything was read for it. None: not checked. Not stored."""

    @property
    def end(self) -> Place:
        """The place of the last answer that it covers."""
        return Place(order=2 * self.end_turn_number + 1, branch=self.branch)


class SummaryStore(ABC):
    """The part of a `SessionManager` that summaries need."""

    @abstractmethod
    async def latest_summary(self, at: Place, *, draft: bool = False) -> RollingSummary | None:
        """Read the newest summary on the path to a place, or the newest draft of a rebuild."""

    @abstractmethod
    async def add_summary(self, summary: RollingSummary, at: Place, *, draft: bool = False) -> bool:
        """Store a summary that continues the newest one (or the newest draft) on the path to a place.

        Returns False when it does not continue it any more, or was generated before the session's `summary_basis`
        changed.
        """

    @abstractmethod
    async def publish_drafts(self, at: Place | None) -> bool:
        """Put the newest draft on the path to a place in the place of all summaries. Returns False when there is none.

        None: there is nothing left to summarize, so all summaries are deleted.
        """
