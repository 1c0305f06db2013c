"""What the summaries of a session are, and what their pipeline reads and writes of it."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from omniagent.session.window import PastTurn

TURNS_PER_READ = 50
"""How many turns `past_turns` yields at a time."""


@dataclass(frozen=True, slots=True)
class RollingSummary:
    """What happened in the turns `start_turn_number` to `end_turn_number`, and in all before."""

    content: str
    token_count: int
    start_turn_number: int
    end_turn_number: int
    basis: str | None = field(default=None, compare=False)
    """The session's `summary_basis` before anything was read for it. None: not checked. Not stored."""


class SummaryStore(ABC):
    """The part of a `SessionManager` that summaries need."""

    @abstractmethod
    def past_turns(self, first: int, last: int) -> AsyncIterator[Sequence[PastTurn]]:
        """Yield the turns `first` to `last` in order, some at a time."""

    @abstractmethod
    async def latest_summary(self, *, draft: bool = False) -> RollingSummary | None:
        """Read the newest summary, or the newest draft of a rebuild."""

    @abstractmethod
    async def add_summary(self, summary: RollingSummary, *, draft: bool = False) -> bool:
        """Store a summary that continues the newest one (or the newest draft).

        Returns False when it does not continue it any more, covers the session's latest turn, which may still be
        answered again, or was generated before the session's `summary_basis` changed.
        """

    @abstractmethod
    async def publish_draft(self) -> bool:
        """Put the newest draft in the place of all summaries. Returns False when there is none."""

    @abstractmethod
    async def drop_summaries(self) -> None:
        """Delete all summaries: every turn that they covered has been deleted."""
