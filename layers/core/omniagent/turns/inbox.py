"""The messages queued in a session's inbox, and how the next of them is run.

Imported only when messages are queued.
"""

import asyncio
import logging
import math
import time
from dataclasses import replace

from omniagent.ai.result import AnswerSource
from omniagent.errors import InvalidRequest, OmniAgentError
from omniagent.session.manager import SessionManager, SessionMessage
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.lease import RunningTurn
from omniagent.turns.query import Query
from omniagent.turns.repair import is_dead, waited_for
from omniagent.turns.setup import MAX_ATTEMPTS, TurnSetup

logger = logging.getLogger(__name__)

GRACE_TICKS = 4
"""How long a session is reserved for the first queued message. After that, the request behind it runs its turn."""
MAX_POSTED_CHARS = 60_000
"""A message must fit into the item of the claim, and into one chunk of the log."""
UNLIMITED_SECONDS = 3600.0
"""How long a waiting request without a deadline counts as a reader."""


async def run_next(setup: TurnSetup, limit: TimeLimit) -> AnswerSource | None:
    """Run the first message of the inbox unless another process does. None if the inbox is empty.

    For the next request of the session after the poster's process died. Raises the error that refuses the turn.
    """
    held = await setup.registry.running(setup.session.key)
    if held is None or held.alive or not held.inbox or await waited_for(setup.session, held) is not None:
        return None
    held = await wait_for_runner(setup)
    if held is None or held.alive or not held.inbox:
        return None
    return await continue_dead(setup, limit, held) or await open_posted(setup, held, limit)


async def look_after(setup: TurnSetup, limit: TimeLimit) -> None:
    """Run the messages that were queued behind a waiting turn. Their own processes may be gone."""
    while time.monotonic() < latest_begin(limit):
        try:
            answer = await run_next(setup, limit)
        except OmniAgentError as exc:
            logger.warning("message of another not answered", extra={"cause": f"{type(exc).__name__}: {exc}"})
            return
        if answer is None:
            return
        await answer.ended()


def latest_begin(limit: TimeLimit) -> float:
    """The latest time to begin a queued message's turn. The rest of the deadline belongs to the turn itself."""
    return limit.stop_at - (limit.stop_at - limit.started_at) / 4 if limit.deadline is not None else math.inf


async def continue_dead(setup: TurnSetup, limit: TimeLimit, held: RunningTurn) -> AnswerSource | None:
    """Continue a turn whose process died, before the queued messages. None if there is none."""
    if not is_dead(held, await setup.session.head()):
        return None
    from omniagent.turns.takeover import Takeover  # needed only after a crash

    return await Takeover(setup, replace(limit, started_at=time.monotonic())).open()


async def wait_for_runner(setup: TurnSetup) -> RunningTurn | None:
    """Wait briefly for another process to run the next queued message. Return the session's state after that."""
    for _ in range(GRACE_TICKS):
        held = await setup.registry.running(setup.session.key)
        if held is None or held.alive or not held.inbox:
            break
        await asyncio.sleep(setup.settings.tick_seconds)
    return held


async def found_with_answer(
    session: SessionManager, message_id: str
) -> tuple[SessionMessage, SessionMessage | None] | None:
    """Return a stored message and its answer. For a message that joined an answer, both are that answer.

    Raises `InvalidRequest` for the id of an answer.
    """
    message = await session.find(message_id)
    if message is None:
        return None
    if not message.was_sent_as(message_id):
        raise InvalidRequest("This message id belongs to an answer. Choose another one.")
    answer = message if message.role == "assistant" else await session.answer(message.turn_number)
    return message, answer


async def open_posted(setup: TurnSetup, held: RunningTurn, limit: TimeLimit) -> AnswerSource | None:
    """Open the answer to the first message of the inbox. Its waiting time does not count as turn time.

    If any queued message interrupts a waiting answer, that answer blocks none of them. Processes that died before its
    turn began are counted: the message then fails, or is dropped if that kills its process as well.
    """
    limit = replace(limit, started_at=time.monotonic())
    ended = (other.interrupts for other in held.inbox if other.interrupts and not other.stopped)
    message = replace(held.inbox[0], interrupts=next(ended, ""))
    deaths = held.claim.attempt + 1 if held.has_died and held.claim.message_id == message.id else 0
    if deaths > MAX_ATTEMPTS + 1 and await setup.session.find(message.id) is None:  # its turn has never begun
        from omniagent.turns.unbegun import drop  # needed only after a crash

        logger.error("queued message dropped", extra={"message_id": message.id, "attempt": deaths})
        await drop(setup, message.id)
        return None
    return await setup.open_once(Query(message.text, message.id), limit, message, deaths)
