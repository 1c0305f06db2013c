"""Accepts a message now, to be answered later by another process. Until then it is in line.

Imported only for background messages.
"""

from omniagent.errors import InvalidRequest, TooManyTurns
from omniagent.session.query import Query
from omniagent.turns import state as states
from omniagent.turns.engine.submit import decided, queue
from omniagent.turns.hooks import call_back
from omniagent.turns.setup import TurnSetup

NOT_A_MESSAGE = "Only a new message can be answered in the background."


async def accept(setup: TurnSetup, query: Query) -> None:
    """Put a message in line, and have another process answer it. Raises a `RequestError` if it is refused."""
    if query.regenerate or not query.text:
        raise InvalidRequest(NOT_A_MESSAGE)
    while True:
        state = setup.with_agent(await setup.session.load(query))
        match await decided(setup, state, query, background=True):
            case states.Refuse(error):
                raise error
            case states.GetInLine(message, closes):
                busy = [turn for _, turn in await setup.session.busy_sessions() if turn is None or turn.until is None]
                if len(busy) >= setup.settings.max_readers_per_user:
                    raise TooManyTurns
                await setup.meter.admit()
                try:
                    if not await queue(setup, state.head, message, closes):
                        continue
                except states.Moved:
                    continue
        break
    await call_back(setup.hooks.on_work)
