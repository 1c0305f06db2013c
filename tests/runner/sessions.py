"""Sessions of one user in memory, and a look at what they leave behind."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from omniagent import Agent, AnswerStream, InMemorySessionManager, Query, SessionManager, Settings, TurnHooks
from omniagent.ai.operator import TurnOperator
from omniagent.messages import Part, SteeringPart, TextPart
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage
from omniagent.settings import Busy
from omniagent.testing import Gate, InMemoryStore, MemoryRegistry, ScriptedModel
from omniagent.turns.journal.fold import replayed
from omniagent.turns.registry import Signals, TurnRegistry
from omniagent.turns.state import transition
from omniagent.turns.state_events import Begin, Event

# A turn under test looks for its stop at once, and its lease outlives any pause of a busy machine.
QUICK = Settings(tick_seconds=0.02, lease_seconds=30.0)


class Polled(MemoryRegistry):
    """Counts how often turns look for their signals."""

    polls = 0

    async def signals(self, session: str, journal: str) -> Signals:
        self.polls += 1
        return await MemoryRegistry.signals(self, session, journal)


class Sessions:
    """Sessions of one user in a store and a registry of the test's own."""

    def __init__(self, settings: Settings = QUICK, *, now: datetime | None = None) -> None:
        """With `now` the clock stands still: only `pass_by` moves it."""
        self.store = InMemoryStore()
        self.now = now
        self.registry = Polled()
        self.settings = settings
        self.passed = timedelta()

    def session(
        self, session_id: str = "chat", kind: type[InMemorySessionManager] = InMemorySessionManager
    ) -> InMemorySessionManager:
        sessions = self

        class Clocked(kind):  # type: ignore[misc, valid-type]
            @staticmethod
            def now() -> datetime:
                return (sessions.now or SessionManager.now()) + sessions.passed

        return Clocked("ada", session_id, store=self.store, settings=self.settings)

    def pass_by(self, seconds: float = 31.0) -> None:
        """Let time pass, by default a lease."""
        self.passed += timedelta(seconds=seconds)

    async def head(self) -> SessionHead:
        return await self.session().head() or SessionHead()

    async def queued(self) -> list[str]:
        """The ids of the messages in line."""
        return [message.id for message in (await self.head()).queue]

    async def apply(self, event: Event) -> None:
        """Change the session as a process does that then dies."""
        session = self.session()
        assert await session.write(transition(await self.head(), event, session.now()))

    async def die_after_begin(self, message_id: str, text: str = "Hello") -> LiveTurn:
        """Begin a turn that nobody runs. Its process has died when a lease has passed."""
        number = (await self.head()).tip.turn_number + 1
        message = SessionMessage(message_id, "user", number, [TextPart(text=text)])
        turn = LiveTurn("t", number, "dead", "t", message_id, self.session().now(), message=message)
        await self.apply(Begin(turn))
        return turn

    def runner(
        self,
        model: ScriptedModel,
        *tools: object,
        session: SessionManager | None = None,
        registry: TurnRegistry | None = None,
        hooks: TurnHooks = TurnHooks(),
    ) -> TurnOperator:
        agent = Agent("helper", "", list(tools))  # type: ignore[arg-type]
        return TurnOperator(
            agent, session or self.session(), provider=model, registry=registry or self.registry, hooks=hooks
        )

    async def are_free(self) -> bool:
        """Whether no turn runs, nothing is in line, and no work is left in this process."""
        heads = [session.head for session in self.store.sessions.values()]
        return not len(self.store.open_turns) and not any(head.running or head.queue for head in heads)


class Busily(Sessions):
    """One session, and what is stored in it."""

    @property
    def history(self) -> list[tuple[str, str, str]]:
        """Every message in order: its id, what it says, how it ended. An answer's own id is left out."""
        return [line for message in self.messages for line in _lines(message)]

    @property
    def messages(self) -> list[SessionMessage]:
        """The active path."""
        session = self.store.sessions[self.session().key]
        path = [message for message in session.messages if session.head.leaf.leads_from(message.place)]
        return sorted(path, key=lambda message: message.place.order)

    async def answering(self, *later: object) -> tuple[ScriptedModel, AnswerStream, Gate]:
        """Begin to answer m1. Its answer, and those after it, go on once the gate is set."""
        gate = Gate()
        model = ScriptedModel(["One", gate, "."], *later)  # type: ignore[arg-type]
        first = await self.runner(model).start(ask("m1"))
        await gate.reached()
        return model, first, gate

    async def posted(self, *message_ids: str) -> None:
        """Wait until exactly these messages are in line."""

        async def are_queued() -> bool:
            return await self.queued() == list(message_ids)

        await until(are_queued)

    async def polled(self) -> None:
        """Wait until the running turn has looked for its signals: the second look began after the call."""
        last = self.registry.polls + 2

        async def has_looked() -> bool:
            return self.registry.polls >= last

        await until(has_looked)


def _lines(message: SessionMessage) -> list[tuple[str, str, str]]:
    if message.role == "user":
        return [(message.id, message.text, message.status)]
    lines = []
    text = ""
    for part in message.parts:
        if isinstance(part, SteeringPart):
            lines += [("", text, "…"), (part.message_id, part.text, "joined")]
            text = ""
        elif isinstance(part, TextPart):
            text += part.text
    return [*lines, ("", text, message.status)]


def ask(message_id: str, busy: Busy | None = None) -> Query:
    return Query(f"{message_id}?", message_id, busy=busy)


def parts_of(frames: bytes) -> list[Part]:
    """Return the answer that a stream shows."""
    return replayed(frame.removeprefix(b"data: ") for frame in frames.split(b"\n\n") if frame[:1] == b"d").parts


async def until(is_true: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that no event announces."""
    async with asyncio.timeout(60):
        while not await is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def other_tasks() -> set["asyncio.Task[object]"]:
    """The tasks of this process besides the test: compare before and after."""
    return asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task}
