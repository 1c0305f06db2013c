"""A turn's inputs: the message, the plan, the time limit, and what all turns of one runner share."""

import asyncio
import json
import logging
import math
import time
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from omniagent.ai.agent import Agent
from omniagent.ai.context import check_async
from omniagent.ai.providers.llm_provider import LLMProvider, Overrides, Purpose
from omniagent.ai.result import RunResult
from omniagent.errors import BudgetExceeded, InvalidRequest
from omniagent.messages import Part, Usage, plain_text, steering_of
from omniagent.session.manager import SessionManager, SessionMessage, SessionState, check_id, new_id
from omniagent.session.summaries import CallMeter, NoteCost, SummaryPipeline
from omniagent.settings import Busy, Settings
from omniagent.turns.keeper import LeaseKeeper, Notice
from omniagent.turns.lease import REGENERATE, Claim, InboxMessage, TurnRegistry

if TYPE_CHECKING:  # imported at run time only with budgets or after a crash
    from omniagent.turns.dead_turn import DeadTurn
    from omniagent.turns.ledger import Account, Ledger, TurnBudget

logger = logging.getLogger(__name__)

STOP_SECONDS = 2.0
"""How long cancelled work may take to end. Work that ignores its cancellation is then abandoned."""

EraseHook = Callable[[str, str | None], Awaitable[None]]
"""Takes the user's name and a session's id. None means everything of the user."""

HAND_OVER_SECONDS = 3.0
"""Time for the next process to continue a handed-over turn. After that, a waiting message is refused as busy."""
HAND_OVER_POLL_SECONDS = 0.1
"""Poll interval while waiting for a hand-over."""
MAX_ATTEMPTS = 5
"""Maximum takeovers of a turn whose processes die. Then it is closed, or its unstored question is dropped."""
MAX_QUESTION_BYTES = 100_000
"""A larger question is not carried by its claim: every write of the claim's item is billed by its size."""

First = TypeVar("First")
Second = TypeVar("Second")


async def cancelled(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait for them to end. Their results are ignored."""
    for task in tasks:
        task.cancel()
    done, left_behind = await asyncio.wait(tasks, timeout=STOP_SECONDS)
    for task in done:
        if not task.cancelled():
            task.exception()  # otherwise asyncio warns about an unretrieved exception
    if left_behind:
        logger.warning("cancellation ignored", extra={"tasks": [task.get_name() for task in left_behind]})


async def insist(work: Callable[[], Awaitable[First]]) -> First:
    """Run something and repeat it once if it is cancelled: `asyncio.run` cancels every task at its end."""
    try:
        return await work()
    except asyncio.CancelledError:
        return await work()


def ensure_not_cancelled() -> None:
    """Raise `CancelledError` if the current task was cancelled and some code within it ignored that."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def call_back(callback: Callable[..., Awaitable[None]] | None, *arguments: Any) -> bool:
    """Call a callback if there is one. Exceptions are logged, not raised. Returns whether there was none."""
    try:
        if callback is not None:
            await callback(*arguments)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as exc:  # SystemExit would end the event loop, others the turn
        task = asyncio.current_task()
        if isinstance(exc, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise  # the turn is cancelled, not only the callback's own work
        logger.exception("callback failed", extra={"callback": getattr(callback, "__name__", repr(callback))})
        return False
    return True


async def both(first: Coroutine[Any, Any, First], second: Coroutine[Any, Any, Second]) -> tuple[First, Second]:
    """Run two coroutines concurrently. If one fails, its error is raised after the other has ended.

    The other is not cancelled: on Python 3.11, cancelling a MongoDB call during server selection can leave PyMongo's
    lock held forever, and every later call of the process hangs. Such calls end by themselves.
    """
    tasks = asyncio.create_task(first), asyncio.create_task(second)
    try:
        await asyncio.wait(tasks)
    except BaseException:
        await cancelled(*tasks)
        raise
    await asyncio.gather(*tasks)
    return tasks[0].result(), tasks[1].result()


async def within(seconds: float, work: Coroutine[Any, Any, First]) -> First:
    """Wait up to `seconds` for a MongoDB call. After that it continues on its own, for the reason in `both`.

    Raises `TimeoutError`.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task], timeout=max(0.0, seconds))
    except BaseException:
        await cancelled(task)
        raise
    if not task.done():
        _unattended.add(task)
        task.add_done_callback(_forget)
        raise TimeoutError
    return task.result()


_unattended: "set[asyncio.Task[Any]]" = set()


def _forget(task: "asyncio.Task[Any]") -> None:
    _unattended.discard(task)
    if not task.cancelled() and (exc := task.exception()) is not None:
        logger.info("call that nobody waited for failed", extra={"cause": f"{type(exc).__name__}: {exc}"})


STORE_SECONDS_WITHOUT_DEADLINE = 30.0
CLOSING_SECONDS = 60.0
SECONDS_TO_TELL = 1.0
"""Time reserved at the very end to tell the client that its answer could not be stored."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """`deadline` is the `time.monotonic()` by which everything must be stored; None for no limit."""

    deadline: float | None
    margin_seconds: float
    started_at: float = field(default_factory=time.monotonic)
    most_seconds: float = math.inf
    """Maximum length of the turn, if another process may continue it."""
    opened_at: float = field(default_factory=time.monotonic)
    """When this process began to work on the turn."""

    @property
    def stop_at(self) -> float:
        """When the answer must end.

        Some of this process's time is reserved for storing, at most a quarter.
        """
        if self.deadline is None:
            return math.inf
        kept = min(self.margin_seconds, (self.deadline - self.opened_at) / 4)
        return min(self.deadline - kept, self.started_at + self.most_seconds)

    @property
    def is_closing(self) -> bool:
        """Whether so little time is left that a turn which can be handed over starts nothing new here."""
        return self.time_left() < min(CLOSING_SECONDS, (self.stop_at - self.opened_at) / 4)

    @property
    def is_last(self) -> bool:
        """Whether the turn's own time ends with this process, so there is no hand-over."""
        return self.deadline is None or self.stop_at >= self.started_at + self.most_seconds

    @property
    def give_up_at(self) -> float:
        """When to stop trying to store the answer, with time left to tell the client."""
        if self.deadline is None:
            return time.monotonic() + STORE_SECONDS_WITHOUT_DEADLINE
        return self.deadline - min(SECONDS_TO_TELL, (self.deadline - self.stop_at) / 4)

    def closing_seconds(self, most: float) -> float:
        """How long the release of the session may take. The readers must still see the end in time."""
        if self.deadline is None:
            return most
        return max(0.0, min(most, (self.deadline - time.monotonic()) / 2))

    def time_left(self) -> float:
        """Seconds until the answer must end."""
        return self.stop_at - time.monotonic()


@dataclass(frozen=True, slots=True)
class Query:
    """A user's message. `message_id` is its idempotency key: the same id never makes a second turn."""

    text: str = ""
    message_id: str = ""
    regenerate: bool = False
    """Answer the latest turn again, in place. `message_id` and `text` are then those of its message."""
    replaces: str | None = None
    """With `regenerate`: the answer to replace. A retry returns the answer that replaced it."""
    busy: Busy | None = None
    """The policy while the session answers another message. None: the setting's."""

    @property
    def claim_id(self) -> str:
        """The idempotency key: equal for a retry of the same request."""
        if self.regenerate:
            return f"{REGENERATE}{self.replaces or self.message_id}"
        return self.message_id

    @property
    def aliases(self) -> frozenset[str]:
        """The ids that a client may use for the turn of a regeneration."""
        return frozenset(filter(None, (self.message_id, self.replaces))) if self.regenerate else frozenset()

    def packed(self, session: SessionManager) -> bytes:
        """Return the query and its user, compressed for the claim. Empty if it is too large."""
        asked = [session.user, session.category, self.text, self.message_id, self.regenerate, self.replaces]
        packed = zlib.compress(json.dumps(asked).encode(), 1)
        return packed if len(packed) <= MAX_QUESTION_BYTES else b""

    @property
    def known_id(self) -> str | None:
        """The id under which the session may already have this message."""
        return self.message_id or self.replaces

    def is_new(self, state: SessionState) -> bool:
        """Whether this is a message with text that the session does not have."""
        return state.earlier is None and bool(self.message_id and self.text.strip())

    def is_queued(self, inbox: Sequence[InboxMessage]) -> bool:
        """Whether the message is in the inbox. Refuses another text under its id."""
        queued = next((message for message in inbox if message.id == self.message_id), None)
        if queued is not None:
            self._check_text(queued.text)
        return queued is not None

    def check_same(self, earlier: SessionMessage) -> None:
        """Refuse another text under a known id: the answer would appear below a question it does not answer."""
        joined = [part.text for part in steering_of(earlier.parts) if part.message_id == self.message_id]
        if earlier.role == "user" or joined:
            self._check_text(joined[0] if joined else earlier.text)

    def _check_text(self, known: str) -> None:
        if self.text != known and not (self.regenerate and not self.text.strip()):  # a regeneration needs no text
            raise InvalidRequest(
                "This message id was sent before, with another text. Sent messages cannot be edited: choose a new id."
            )

    def checked(self, settings: Settings) -> "Query":
        """Return the query as it can be stored. Raises `InvalidRequest`."""
        text = plain_text(self.text)
        if not self.regenerate and not text.strip():
            raise InvalidRequest("The message is empty.")
        if len(text) > settings.max_message_chars:
            raise InvalidRequest(f"The message is longer than {settings.max_message_chars} characters.")
        if self.message_id:
            check_id(self.message_id, "message id")
        message_id = self.message_id or ("" if self.regenerate else new_id())
        if self.busy is not None and self.busy not in get_args(Busy):
            raise InvalidRequest(f"busy: must be one of {', '.join(get_args(Busy))}.")
        return Query(text, message_id, self.regenerate, self.replaces, self.busy or settings.busy)


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """What a turn will do."""

    number: int
    message_id: str
    text: str
    again: bool = False
    """The turn already exists and is answered again."""
    previous: SessionMessage | None = None
    """The turn's existing answer."""
    kept: Sequence[Part] = ()
    """The steps of `previous` whose tools may have taken effect. The turn continues after them and repeats none."""
    waited: SessionMessage | None = None
    """A waiting answer that this turn continues, or closes as it begins."""
    seen_turn_id: str | None = None
    """The session's `latest_turn_id` when it was read."""

    @property
    def continued(self) -> SessionMessage | None:
        """The waiting answer that the turn continues."""
        return self.waited if self.waited is not None and self.waited.turn_number == self.number else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHooks:
    """Called by the runtime. Exceptions are logged and ignored, except those of `on_erase`. A failed `on_begin` is
    called again every tick.
    """

    on_begin: Callable[[str, int], Awaitable[None]] | None = None
    """Called with a turn's id while it is being claimed, so that the turn is watched from its first moment.
    If the claim is refused, there is no such turn and nothing to watch. The number counts the processes that worked on
    the turn before this one. A turn without a question of its own (a takeover, a queued message, an answer to a waiting
    turn) is announced when it begins.
    """
    on_hand_over: Callable[[str, int], Awaitable[None]] | None = None
    """Called in the same way when a turn runs out of time in its process, so that another takes over at once. The lease
    is ended in parallel: `Runner.look` waits for that, up to `patience_seconds`. Without this hook, the turn ends and
    its text is stored.
    """
    on_wake: Callable[[], Awaitable[None]] | None = None
    """Called when a waiting turn is closed with messages queued behind it, so that they are run: before it is closed,
    while this process holds the session, and after the session is released.
    """
    on_end: Callable[[RunResult], Awaitable[None]] | None = None
    """Called when a turn has ended and its readers have seen the end."""
    on_model_call: Callable[[Purpose, Usage], None] | None = None
    """Called with the cost of each model call for a summary or a name, estimated if it was not reported."""
    on_refusal: Callable[[BudgetExceeded], None] | None = None
    """Called when a user's budget refuses a request."""
    on_erase: EraseHook | None = None
    """Deletes a team's own data of a session or a user. If it raises, the deletion is unfinished."""
    grace_seconds: float = 0.0
    """If above 0, dead turns are continued by a watcher, and nothing else closes them for this long."""
    leaves_summaries: bool = False
    """Summaries that an answer does not wait for are generated elsewhere; `RunResult.summary_missed` reports them."""

    def __post_init__(self) -> None:
        for name, parameters in _CALLED_WITH.items():
            hook = getattr(self, name)
            code = getattr(hook, "__code__", None)
            if hook is not None and (name, code) not in _checked_hooks:
                check_async(f"TurnHooks: {name}", hook, *parameters)
                if code is not None:
                    _checked_hooks.add((name, code))

    def note_cost(self, purpose: Purpose, usage: Usage) -> None:
        """Report the cost of a model call, if there is a hook."""
        if self.on_model_call is None or not usage.total_tokens:
            return
        try:
            self.on_model_call(purpose, usage)
        except Exception:
            logger.exception("hook failed", extra={"hook": "on_model_call"})


_CALLED_WITH = {
    "on_begin": ("turn_id", "attempt"),
    "on_hand_over": ("turn_id", "attempt"),
    "on_wake": (),
    "on_end": ("result",),
    "on_erase": ("user", "session_id"),
}
_checked_hooks: set[tuple[str, CodeType]] = set()
"""Every request has hooks of its own, of the same few functions: each is checked once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSetup:
    """The agent, its model, the session and the registry."""

    agent: Agent
    provider: LLMProvider
    overrides: Overrides
    session: SessionManager
    registry: TurnRegistry
    summaries: Callable[[CallMeter | None, NoteCost], SummaryPipeline]
    name: Callable[[], Coroutine[Any, Any, str]] | None = None
    """Names the session. None: its clients do."""
    hooks: TurnHooks = TurnHooks()
    account: "Account | None" = None
    """The user's budget. None: no limit."""
    ledger: "Ledger | None" = None
    """The ledger in which a dead turn may have a reservation."""

    def notice(self, claim: Claim) -> Notice:
        """Return a turn's notice, not yet given."""
        return Notice(partial(call_back, self.hooks.on_begin, claim.turn_id, claim.attempt))

    def keeper(self, claim: Claim, notice: Notice) -> LeaseKeeper:
        """Keep a claim that was just taken."""
        return LeaseKeeper(self.registry, claim, tick_seconds=self.settings.tick_seconds, notice=notice)

    def may_hand_over(self, limit: TimeLimit) -> bool:
        """Whether another process may continue a turn that runs out of time in this one."""
        return self.hooks.on_hand_over is not None and not limit.is_last

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        return self.overrides.model or self.provider.model

    @property
    def settings(self) -> Settings:
        return self.session.settings


@dataclass(frozen=True, slots=True)
class Assignment:
    """One turn: its id, its plan, its initial state and its time limit."""

    turn_id: str
    plan: TurnPlan
    state: SessionState
    limit: TimeLimit
    budget: "TurnBudget | None" = None
    refusal: BaseException | None = None
    """Ends a queued message's turn before it calls the model: its budget, or a stop."""
    was_posted: bool = False
    """The message was queued in the inbox."""
    dead: "DeadTurn | None" = None
    """Set for a turn that is continued."""
    attempt: int = 0
