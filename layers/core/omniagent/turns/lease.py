"""The lease on a session: who may run its turn, the stop flag, and the log of what the turn has streamed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

MAX_CHUNK_BYTES = 300_000
"""A chunk must fit into one item of the table (400 KB), whatever its frames are."""

CLOCK_SECONDS = 1.0
"""How much the clocks of two processes may differ: a lease that is ended has run out by both."""

REPAIR = ":repair"
"""The message id of a claim that only closes a dead turn. No client can choose one with a colon."""
ERASE = ":erase"
"""The message id of a claim that deletes the session."""
ANSWER = "answer:"
"""What the message id of a claim begins with that goes on with a waiting answer."""
REGENERATE = "regenerate:"
"""What the message id of a claim begins with that answers the latest turn again."""

GIVEN_BACK = 0.0
"""The end of the lease of a session that nobody holds and that is kept for its inbox."""

MAX_INBOX_BYTES = 200_000
"""The texts of a session's inbox must fit into one item of the table, beside the claim. One message always fits."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run the turn of a session. `token` is the fencing token of everything written under it."""

    session: str
    turn_id: str
    message_id: str
    aliases: frozenset[str] = frozenset()
    """Further ids by which a stop may name the turn: those of its question and of the answer that it replaces."""
    owner: str = ""
    """Set by a process that continues the turn of one that died: a random id."""
    attempt: int = 0
    """How many processes have worked on the turn before this one."""

    @property
    def token(self) -> str:
        """Tells the processes apart that have held the session."""
        return self.owner or self.turn_id

    @property
    def is_chore(self) -> bool:
        """Whether it closes or deletes something and answers nobody."""
        return self.message_id in (REPAIR, ERASE)

    @property
    def goes_first(self) -> bool:
        """Whether it need not wait for the messages of the inbox: they come after the turn that it is about."""
        return self.is_chore or self.message_id.startswith((ANSWER, REGENERATE))

    def is_named(self, message_id: str | None) -> bool:
        """Whether a stop means this turn. None means whichever runs. A repair and an erasure cannot be stopped."""
        if self.is_chore:
            return False
        return message_id is None or message_id in {self.message_id, self.turn_id} | self.aliases


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """A user's message that was posted while a turn ran."""

    id: str
    text: str
    steers: bool = False
    """It joins the turn that runs, if that makes another model call; else it gets a turn of its own."""
    stopped: bool = False
    """It was stopped: its turn ends before it calls the model."""
    interrupts: str = ""
    """The id of the answer that it came to end. Should that one wait for somebody, it is closed as unanswered."""


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """A turn that holds a session, as another process sees it."""

    claim: Claim
    stopping: bool
    lease_left: float
    """Seconds until the lease runs out; zero or less when its process is taken for dead, or messages wait."""
    lease_until: float = 0.0
    """The same as a time of the registry's clock: it changes with every renewal."""
    inbox: tuple[InboxMessage, ...] = ()
    """The messages that were posted, in order. Those that a turn has taken are in it until that turn has ended."""

    @property
    def alive(self) -> bool:
        return self.lease_left > 0

    @property
    def has_died(self) -> bool:
        """Whether its process has neither renewed the lease nor given the session back."""
        return not self.alive and self.lease_until != GIVEN_BACK

    def is_looked_after(self, grace_seconds: float) -> bool:
        """Whether its process lives, or died so recently that somebody may still continue the turn."""
        return self.lease_left > -grace_seconds


def keeps_out(held: RunningTurn, claim: Claim) -> bool:
    """Whether a session that nobody holds is kept for another message than the claim's."""
    if not held.inbox or claim.goes_first or claim.turn_id == held.claim.turn_id:  # the last: a dead turn goes on
        return False
    return held.inbox[0].id != claim.message_id


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
    """A request that follows a running turn. It counts until it leaves, or until its time is over."""

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
        """Take the session if nobody holds it. Returns the turn that holds it, or None when it is now ours.

        `on_dead` is called with the claim of a dead process that had held it: nobody else hears of that one again. A
        session whose inbox is not empty is kept for its first message: no other can be claimed. What is about the
        latest turn goes first: a repair, a turn that has waited and goes on, a regeneration.
        """

    @abstractmethod
    async def seize(self, claim: Claim) -> RunningTurn | None:
        """Take the session from whoever holds it, who learns it at the next renewal. Returns the previous holder.

        What was in the inbox is deleted.
        """

    @abstractmethod
    async def renew(self, claim: Claim) -> Renewal:
        """Extend the lease and read the stop flag and the inbox, in one write.

        An expired lease that nobody took is still ours.
        """

    @abstractmethod
    async def post(self, claim: Claim, message: InboxMessage, limit: int, *, stop: bool = False) -> bool:
        """Add a message to the inbox, behind all others, while the session belongs to this claim: one write.

        `stop` also flags the claim's turn to stop. A message that is in the inbox already is not added again. Returns
        False when the session belongs to somebody else or nobody, or is being deleted. Raises `InboxFull` when
        `limit` messages are there.
        """

    @abstractmethod
    async def release(self, claim: Claim, taken: Collection[str] = ()) -> bool:
        """Give the session back and take the messages of these ids out of the inbox. Returns whether others are left.

        The session is then kept for the first of them. A claim that somebody else took meanwhile is left alone.
        """

    @abstractmethod
    async def let_go(self, claim: Claim) -> None:
        """End the lease at once, for whoever continues the turn: the claim and the inbox stay.

        A claim that somebody else took meanwhile is left alone.
        """

    @abstractmethod
    async def running(self, session: str) -> RunningTurn | None:
        """Return the turn that holds a session, dead or alive."""

    @abstractmethod
    async def stop(self, session: str, message_id: str | None = None) -> bool:
        """Flag the session's turn to stop, and every message of its inbox as stopped; or the one that is named.

        Returns False when there is none, or another message's.
        """

    @abstractmethod
    async def append(self, claim: Claim, number: int, frames: bytes) -> bool:
        """Add the frames of one tick to the turn's chunk log. Our own chunk may be written again.

        Returns False when another process has written a chunk of this number: it continues the turn.
        """

    @abstractmethod
    async def read(self, session: str, turn_id: str, after: int = -1) -> list[tuple[int, bytes]]:
        """Return the chunks after the given number, in order."""

    @abstractmethod
    async def enter(self, reader: Reader) -> Sequence[str]:
        """Count a reader. Returns the sessions, in some form of their keys, of all that the user has, its own first.

        Of many that enter at the same moment each sees those before it.
        """

    @abstractmethod
    async def leave(self, reader: Reader) -> None:
        """Count a reader no more."""

    @abstractmethod
    async def erase(self, owner: str, limit: int = 500) -> bool:
        """Delete up to `limit` items of a session, by its key, or of a user, by their id. A claim stays.

        Returns True when nothing else is left.
        """

    async def orphaned(self, limit: int = 100) -> Sequence[str]:  # noqa: ARG002 - for those that can tell
        """Return sessions, by key, that nobody holds and in whose inbox messages wait.

        A registry that cannot find them returns none: whoever touches such a session next runs them.
        """
        return ()

    async def aclose(self) -> None:  # noqa: B027 - a registry without connections has nothing to close
        """Close the registry's connections."""
