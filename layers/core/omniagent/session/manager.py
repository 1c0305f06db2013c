"""`SessionManager`: one session of one user, whatever it is stored in."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence

from omniagent.session.identity import check_id, new_id, session_key, user_id_of
from omniagent.session.open_turns import OpenTurns
from omniagent.session.state import RollingSummary, SessionHead, SessionMessage, SessionState, TurnStart
from omniagent.session.window import PastTurn
from omniagent.settings import Settings


class SessionManager(ABC):
    """Reads and writes one session. What the model is shown of it is decided in `window`, not here.

    Every method raises `StorageUnavailable` when the store cannot be reached.
    """

    open_turns: OpenTurns
    """The turns that run on this store in this process. Whoever closes the store ends them first."""

    def __init__(
        self, user: str, session_id: str | None = None, *, settings: Settings | None = None, category: str | None = None
    ) -> None:
        self.user = user
        self.category = category
        self.session_id = check_id(session_id, "session id") if session_id else new_id()
        self.settings = settings or Settings.from_env()
        self.user_id = user_id_of(user)
        self.key = session_key(self.user_id, self.session_id)

    @abstractmethod
    async def head(self) -> SessionHead | None:
        """Read the session itself: one document. None when there is no such session."""

    @abstractmethod
    async def load(self, message_id: str | None = None) -> SessionState:
        """Read what a turn starts from, and the message that already has this id."""

    @abstractmethod
    async def answer(self, turn_number: int) -> SessionMessage | None:
        """Read the stored answer of a turn."""

    @abstractmethod
    async def admit(self, limit: int) -> Sequence[str]:
        """Take one of the user's slots for running turns, and note the user's category. None leaves it as it was.

        Returns nothing when the slot is ours, else the keys of the sessions that hold all of them. Atomic: of many
        that ask at the same moment, no more than `limit` get one. Raises `SessionErased` while the user is being
        deleted.
        """

    @abstractmethod
    async def withdraw(self, *keys: str) -> None:
        """Give back the user's slots of these sessions."""

    @abstractmethod
    async def begin_turn(self, start: TurnStart) -> None:
        """Make the user's message durable and fence the session for this turn, in one transaction.

        A turn that is answered again drops the summaries that cover it. Raises `StorageConflict` when the session is
        not in the state that the turn was planned from, `SessionErased` when it is being deleted.
        """

    @abstractmethod
    async def finish_turn(self, answer: SessionMessage) -> SessionMessage:
        """Store the answer and free the session, in one transaction; `answer.id` is the turn's id.

        Returns what the turn now has: this answer, or the previous one where `answer.replaces(previous)` is false.
        A turn that was closed as interrupted meanwhile, and that nobody has answered again, takes the whole answer.
        Raises `TurnLost` when the session has moved on, `StorageRejected` when the answer cannot be stored as it is.
        """

    @abstractmethod
    async def repair_turn(self, answer: SessionMessage) -> SessionMessage | None:
        """Close a dead turn with what its stream had shown. `answer.turn_number` may be 0: the latest turn is meant.

        Returns what the turn now has; None when the turn was closed already.
        """

    @abstractmethod
    def past_turns(self, first: int, last: int) -> AsyncIterator[Sequence[PastTurn]]:
        """Yield the turns `first` to `last` in order, some at a time."""

    @abstractmethod
    async def latest_summary(self, *, draft: bool = False) -> RollingSummary | None:
        """Read the newest summary, or the newest draft of a rebuild."""

    @abstractmethod
    async def add_summary(self, summary: RollingSummary, *, draft: bool = False) -> bool:
        """Store a summary that continues the newest one (or the newest draft).

        Returns False when it does not continue it any more, or covers the session's latest turn, which may still be
        answered again.
        """

    @abstractmethod
    async def publish_draft(self) -> bool:
        """Put the newest draft in the place of all summaries. Returns False when there is none."""

    @abstractmethod
    async def rename(self, name: str, *, was: str | None) -> bool:
        """Rename the session if it still has the name it `was` given."""

    @abstractmethod
    async def mark_erased(self) -> bool:
        """Mark the session as deleted: nothing reads or writes it any more. Returns False when there is none."""

    @abstractmethod
    async def erase_some(self, limit: int = 500) -> bool:
        """Delete up to `limit` messages and summaries of a marked session, at last the session itself.

        Returns True when nothing is left. May be repeated after any failure.
        """
