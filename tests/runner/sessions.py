"""Sessions of one user in memory, and a look at what they leave behind."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from omniagent import (
    Agent,
    AnswerStream,
    Budget,
    InMemorySessionManager,
    Query,
    RunContext,
    SessionManager,
    Settings,
    tool,
)
from omniagent.ai.operator import TurnOperator
from omniagent.messages import Part, ReasoningPart, SteeringPart, TextPart, ToolPart
from omniagent.providers import LLMProvider
from omniagent.session.live import SessionHead, SessionMessage
from omniagent.settings import Busy
from omniagent.testing import Gate, InMemoryStore, MemoryCounter, MemoryRegistry, ScriptedModel, ToolCall
from omniagent.turns.journal.readers import replayed
from omniagent.turns.registry import Signals
from tests.fixtures.conversation import QUICK, Clock


class Polled(MemoryRegistry):
    """Counts how often turns look for their signals."""

    polls = 0

    async def signals(self, session: str, journal: str) -> Signals:
        self.polls += 1
        return await MemoryRegistry.signals(self, session, journal)


REFUND = ToolCall("refund", {"order": "42"})


class Refunds:
    """A tool, by default one that has to be approved, and what it was called for."""

    def __init__(self, *, approval: bool = True) -> None:
        self.orders: list[str] = []
        self.call_ids: list[str | None] = []

        @tool(approval=approval)
        async def refund(order: str, context: RunContext) -> str:
            """Refund an order."""
            self.orders.append(order)
            self.call_ids.append(context.call_id)
            return f"refunded {order}"

        self.tool = refund


class Sessions:
    """Sessions of one user, with a store, a registry, a counter and clocks of their own. Most tests need one only."""

    def __init__(self, settings: Settings = QUICK, *, budget: Budget | None = None) -> None:
        self.settings, self.budget = settings, budget
        self.store, self.registry = InMemoryStore(), Polled()
        self.clock = Clock(1_800_014_400.0)  # noon
        self.counter = MemoryCounter(self.clock)
        self.passed = timedelta()

    def now(self) -> datetime:
        return SessionManager.now() + self.passed

    def session(
        self, session_id: str = "chat", kind: type[InMemorySessionManager] = InMemorySessionManager, **options: Any
    ) -> InMemorySessionManager:
        sessions = self

        class Clocked(kind):  # type: ignore[misc, valid-type]
            @staticmethod
            def now() -> datetime:
                return sessions.now()

        return Clocked("ada", session_id, store=self.store, settings=self.settings, **options)

    def runner(
        self,
        model: LLMProvider | None,
        *tools: Any,
        agent: Agent[Any, Any] | None = None,
        session: SessionManager | None = None,
        **options: Any,
    ) -> TurnOperator:
        agent = agent or Agent("helper", "", list(tools))
        options = {"registry": self.registry, "budget": self.budget, "counter": self.counter} | options
        return TurnOperator(agent, session or self.session(), provider=model, **options)

    def pass_by(self, seconds: float = 31.0) -> None:
        """Let time pass, by default a lease."""
        self.passed += timedelta(seconds=seconds)

    async def head(self) -> SessionHead:
        return await self.session().head() or SessionHead()

    async def queued(self) -> list[str]:
        """The ids of the messages in line."""
        return [message.id for message in (await self.head()).queue]

    async def are_free(self) -> bool:
        """Whether no turn runs, nothing is in line, and no work is left in this process."""
        heads = [session.head for session in self.store.sessions.values()]
        return not len(self.store.open_turns) and not any(head.running or head.queue for head in heads)

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

    async def answering(self, *later: Any) -> tuple[ScriptedModel, AnswerStream, Gate]:
        """Begin to answer m1. Its answer, and those after it, go on once the gate is set."""
        gate = Gate()
        model = ScriptedModel(["One", gate, "."], *later)
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


async def texts_of(*streams: AnswerStream) -> list[str]:
    """Wait for these answers, and until nothing more is done for their turns."""
    texts = [(await stream.result()).text for stream in streams]
    await asyncio.gather(*(stream.ended() for stream in streams))
    return texts


def parts_of(frames: bytes) -> list[Part]:
    """Return the answer that a stream shows."""
    return replayed(frame.removeprefix(b"data: ") for frame in frames.split(b"\n\n") if frame[:1] == b"d").parts


def shown(parts: list[Part]) -> list[Part]:
    """What a client may see of an answer."""
    visible = [part for part in parts if not isinstance(part, ReasoningPart) or part.text]
    return [_public(part) for part in visible]


def _public(part: Part) -> Part:
    match part:
        case ReasoningPart():
            return part.model_copy(update={"provider_data": None})
        case ToolPart():
            return part.model_copy(update={"error": part.public_error})
    return part


async def until(is_true: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that no event announces."""
    async with asyncio.timeout(60):
        while not await is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@contextmanager
def moved_loop(seconds: float) -> Iterator[None]:
    """Move the clock of the event loop's timers, so that those of the next seconds are due now.

    For a loop of the test's own: in the shared one, MongoDB's client has timers as well.
    """
    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", lambda now=loop.time: now() + seconds)
        yield


def other_tasks() -> set["asyncio.Task[object]"]:
    """The tasks of this process besides the test: compare before and after."""
    return asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task}
