"""One session in which messages meet a running turn, and what is stored in it."""

import asyncio

from omniagent import Query
from omniagent.messages import SteeringPart, TextPart
from omniagent.session.manager import SessionMessage
from omniagent.settings import Busy
from tests.fixtures.conversation import Clock
from tests.runner.sessions import Sessions


class Busily(Sessions):
    """One session, and what is stored in it."""

    @property
    def history(self) -> list[tuple[str, str, str]]:
        """Every message in order: its id, what it says, how it ended. An answer's own id is left out."""
        return [line for message in self.messages for line in _lines(message)]

    @property
    def messages(self) -> list[SessionMessage]:
        return self.store.sessions[self.session().key].messages

    async def posted(self, *message_ids: str) -> None:
        """Wait until exactly these messages are in the inbox."""
        async with asyncio.timeout(60):
            while await self.waiting() != list(message_ids):  # noqa: ASYNC110 - no event announces it
                await asyncio.sleep(0.002)

    async def waiting(self) -> list[str]:
        held = await self.registry.running(self.session().key)
        return [] if held is None else [message.id for message in held.inbox]


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


async def renewed(sessions: Busily, *message_ids: str, clock: Clock | None = None) -> None:
    """Wait until the turn has seen these messages: two renewals after they were posted."""
    await sessions.posted(*message_ids)
    for _ in range(2):
        held = await sessions.registry.running(sessions.session().key)
        assert held is not None
        if clock is not None:
            clock.pass_by(1)
        async with asyncio.timeout(60):
            while (now := await sessions.registry.running(sessions.session().key)) is not None:
                if now.lease_until != held.lease_until:
                    break
                await asyncio.sleep(0.002)
