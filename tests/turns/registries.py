"""A registry that misbehaves."""

from dataclasses import dataclass

from omniagent.errors import RegistryUnavailable
from omniagent.turns.registry import Chunk, Signals
from tests.runner.sessions import Polled


@dataclass(slots=True)
class Unreliable(Polled):
    """Can be down, or lose its replies: the call has its effect, and its caller gets an error."""

    is_down: bool = False
    error: Exception | None = None
    """Raised instead of `RegistryUnavailable` while it is down."""
    loses_replies: bool = False
    refusals: int = 0
    appends: int = 0

    async def append(self, session: str, journal: str, chunk: Chunk) -> bool:
        self._refuse_when_down()
        self.appends += 1
        is_ours = await Polled.append(self, session, journal, chunk)
        if self.loses_replies:
            raise RegistryUnavailable("the reply was lost")
        return is_ours

    async def read(self, session: str, journal: str, after: int = -1, *, newest: bool = False) -> list[Chunk]:
        self._refuse_when_down()
        return await Polled.read(self, session, journal, after, newest=newest)

    async def signals(self, session: str, journal: str) -> Signals:
        self._refuse_when_down()
        return await Polled.signals(self, session, journal)

    def _refuse_when_down(self) -> None:
        if self.is_down:
            self.refusals += 1
            raise self.error or RegistryUnavailable("down")
