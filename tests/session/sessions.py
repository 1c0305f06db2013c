"""Sessions for the tests of every session manager."""

from collections.abc import Callable

from omniagent.session.manager import SessionManager
from omniagent.settings import Settings

Open = Callable[..., SessionManager]
SMALL = Settings(context_max_turns=3)


async def stored_ids(session: SessionManager) -> list[str]:
    state = await session.load()
    return [message.id for message in (state.question, state.answer) if message]
