"""One session in which messages meet a running turn, and what is stored in it."""

from omniagent import Query
from omniagent.messages import SteeringPart, TextPart
from omniagent.session.live import SessionMessage
from omniagent.settings import Busy
from tests.runner.sessions import Sessions, until


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
