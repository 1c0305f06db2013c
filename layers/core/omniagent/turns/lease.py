"""The lease on a session: who may run its turn, the stop flag, and the log of what the turn has streamed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

MAX_CHUNK_BYTES = 300_000
"""A chunk must fit into one item of the table (400 KB), whatever its frames are."""

CLOCK_SECONDS = 1.0
"""Maximum clock skew between two processes. An ended lease has expired by both clocks."""

REPAIR = ":repair"
"""The message id of a claim that only closes a dead turn. No client can choose one with a colon."""
ERASE = ":erase"
"""The message id of a claim that deletes the session."""
ANSWER = "answer:"
"""Prefix of the message id of a claim that continues a waiting answer."""
REGENERATE = "regenerate:"
"""Prefix of the message id of a claim that regenerates the latest answer."""

GIVEN_BACK = 0.0
"""Lease end of an unclaimed session that is reserved for its inbox."""

MAX_INBOX_BYTES = 200_000
"""The inbox's texts must fit into the claim's item. One message always fits."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run the turn of a session. `token` is the fencing token of everything written under it."""

    session: str
    turn_id: str
    message_id: str
    aliases: frozenset[str] = frozenset()
    """Other ids that a stop may use for the turn: its question's, and that of the answer it replaces."""
    owner: str = ""
    """A random id, set by a process that takes over a dead turn."""
    attempt: int = 0
    """The number of processes that worked on the turn before this one."""
    question: bytes = field(default=b"", compare=False, repr=False)
    """The packed question (`Query.packed`) until the turn has begun: if this process dies, another asks it again."""
    is_stopped: bool = field(default=False, compare=False)
    """The turn was stopped before this process takes it over: the stop flag is set with the claim."""

    @property
    def token(self) -> str:
        """Distinguishes the processes that have held the session."""
        return self.owner or self.turn_id

    @property
    def is_chore(self) -> bool:
        """Whether the claim only repairs or erases, and answers no message."""
        return self.message_id in (REPAIR, ERASE)

    @property
    def goes_first(self) -> bool:
        """Whether the claim takes precedence over the inbox: it is about the latest turn, before queued messages."""
        return self.is_chore or self.attempt > 0 or self.message_id.startswith((ANSWER, REGENERATE))

    def is_named(self, message_id: str | None) -> bool:
        """Whether a stop applies to this turn. None means any running turn. A repair or erasure cannot be stopped."""
        if self.is_chore:
            return False
        return message_id is None or message_id in {self.message_id, self.turn_id} | self.aliases


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """A user's message that was posted while a turn ran."""

    id: str
    text: str
    steers: bool = False
    """It joins the running turn if that makes another model call; otherwise it gets its own turn."""
    stopped: bool = False
    """It was stopped: its turn ends before it calls the model."""
    interrupts: str = ""
    """The id of the answer that it interrupts. If that answer waits for a human, it is closed as unanswered."""


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """A turn that holds a session, as another process sees it."""

    claim: Claim
    stopping: bool
    lease_left: float
    """Seconds until the lease expires. Zero or less: the process counts as dead, or the inbox holds the session."""
    lease_until: float = 0.0
    """The lease's end by the registry's clock. It changes with every renewal."""
    inbox: tuple[InboxMessage, ...] = ()
    """The posted messages in order. Those that joined a turn stay until that turn has ended."""

    @property
    def alive(self) -> bool:
        return self.lease_left > 0

    @property
    def is_stopped(self) -> bool:
        """Whether its turn must end: it was stopped, or its message was, in the inbox, before or after the claim."""
        return self.stopping or any(each.stopped and each.id == self.claim.message_id for each in self.inbox)

    @property
    def has_died(self) -> bool:
        """Whether its process neither renewed the lease nor released the session."""
        return not self.alive and self.lease_until != GIVEN_BACK

    def is_looked_after(self, grace_seconds: float) -> bool:
        """Whether its process is alive, or died so recently that the turn may still be continued."""
        return self.lease_left > -grace_seconds


def is_reserved_for_other(held: RunningTurn, claim: Claim) -> bool:
    """Whether an unclaimed session is reserved for another message than the claim's.

    A request that repeats the first queued message does not get the session either: the queued text is answered, not
    the text of the request.
    """
    if not held.inbox or claim.goes_first or claim.turn_id == held.claim.turn_id:  # the last: a takeover of a dead turn
        return False
    return bool(claim.question) or held.inbox[0].id != claim.message_id


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to renewing a lease."""

    state: Literal["running", "stopping", "lost"]
    inbox: tuple[InboxMessage, ...] = ()

    RUNNING: ClassVar["Renewal"]
    STOPPING: ClassVar["Renewal"]
    LOST: ClassVar["Renewal"]


Renewal.RUNNING = Renewal("running")
Renewal.STOPPING = Renewal("stopping")
Renewal.LOST = Renewal("lost")


@dataclass(frozen=True, slots=True)
class Reader:
    """A request that follows a running turn. It counts until it leaves or expires."""

    id: str
    user_id: str
    session: str
    seconds: float


OnDead = Callable[[Claim], None]


class TurnRegistry(ABC):
    """Claim, renew, stop, release; and the chunk log, one chunk per tick.

    Every method raises `RegistryUnavailable` when the table cannot be reached.
    """

    outlives_process: ClassVar[bool] = True
    """Whether another process finds what this one has written."""

    @abstractmethod
    async def claim(self, claim: Claim, on_dead: OnDead | None = None) -> RunningTurn | None:
        """Claim the session if it is free. Return the turn that holds it, or None if the claim succeeded.

        `on_dead` is called with the claim of a dead process that held it before; no other caller sees that claim.
        A session with a non-empty inbox is reserved for its first message and cannot be claimed for another. Claims
        about the latest turn go first: a repair, the continuation of a waiting turn, a regeneration.
        """

    @abstractmethod
    async def seize(self, claim: Claim) -> RunningTurn | None:
        """Take the session from its holder, who notices at the next renewal. Return the previous holder.

        The inbox is deleted.
        """

    @abstractmethod
    async def renew(self, claim: Claim) -> Renewal:
        """Extend the lease and read the stop flag and the inbox, in one write.

        An expired lease can still be renewed if no other process has claimed the session. A claim
        without a question deletes the stored one.
        """

    @abstractmethod
    async def post(self, claim: Claim, message: InboxMessage, limit: int, *, stop: bool = False) -> bool:
        """Append a message to the inbox if this claim holds the session: one write.

        `stop` also flags the claim's turn to stop. A message that is already in the inbox is not added again. Returns
        False if another claim or none holds the session, or it is being deleted. Raises `QueueFull` over `limit`.
        """

    @abstractmethod
    async def release(self, claim: Claim, taken: Collection[str] = ()) -> bool:
        """Release the session and remove these messages from the inbox. Return whether others are left.

        The session is then reserved for the first of them. Does nothing if another process has claimed the session.
        The claim's question is deleted in any case.
        """

    @abstractmethod
    async def let_go(self, claim: Claim) -> None:
        """End the lease now, so that another process can take over at once. The claim and the inbox stay.

        Does nothing if another process has claimed the session.
        """

    @abstractmethod
    async def running(self, session: str) -> RunningTurn | None:
        """Return the turn that holds a session, dead or alive."""

    @abstractmethod
    async def stop(self, session: str, message_id: str | None = None) -> bool:
        """Flag the session's turn and every inbox message as stopped, or only the named message.

        Returns False if there is no such turn or message.
        """

    @abstractmethod
    async def append(self, claim: Claim, number: int, frames: bytes) -> bool:
        """Append the frames of one tick to the turn's chunk log. Writing our own chunk again is allowed.

        Returns False if another process has written a chunk with this number: it has taken over the turn.
        """

    @abstractmethod
    async def read(self, session: str, turn_id: str, after: int = -1) -> list[tuple[int, bytes]]:
        """Return the chunks after the given number, in order."""

    @abstractmethod
    async def enter(self, reader: Reader) -> Sequence[str]:
        """Add a reader. Return the sessions of all the user's readers, as opaque keys, this one's first.

        Concurrent readers each see those that entered before them.
        """

    @abstractmethod
    async def leave(self, reader: Reader) -> None:
        """Remove a reader."""

    @abstractmethod
    async def erase(self, owner: str, limit: int = 500) -> bool:
        """Delete up to `limit` items of a session, by its key, or of a user, by their id. A claim stays.

        Returns True when nothing else is left.
        """

    async def orphaned(self, after: str = "", limit: int = 100) -> Sequence[str]:  # noqa: ARG002 - used by subclasses
        """Return the keys of unclaimed sessions with a non-empty inbox, or whose process died before its turn began.

        They come in order, starting after a given key. Some stay so for months, queued behind an approval. A registry
        that cannot find them returns none. The next request for such a session runs the messages.
        """
        return ()

    async def aclose(self) -> None:  # noqa: B027 - a registry without connections has nothing to close
        """Close the registry's connections."""
