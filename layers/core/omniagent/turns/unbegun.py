"""Asks a question again for its user if its process died after the claim, before the question was stored.

Imported only where dead turns are handled.
"""

import json
import logging
import zlib
from dataclasses import dataclass
from typing import Final

from omniagent.ai.result import AnswerSource
from omniagent.session.addresses import SessionAddress
from omniagent.session.manager import new_id, public_session_id
from omniagent.turns.claiming import taken
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.lease import REPAIR, Claim, RunningTurn
from omniagent.turns.query import Query
from omniagent.turns.setup import MAX_ATTEMPTS, TurnSetup

logger = logging.getLogger(__name__)

ASKED_SECONDS: Final = 900.0
"""How long after its lease a question is still asked again. No client got a status line or waits longer."""
ERASED_SECONDS: Final = 3600.0
"""How long after a user's deletion no question of theirs is asked again. Older questions have expired by then."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The question and the user that a claim carries until its turn has begun."""

    query: Query
    user: str
    category: str | None

    @classmethod
    def by(cls, claim: Claim) -> "Asked | None":
        """Unpack a claim's question. None if it has none: it is not for a message, or the question was too large."""
        try:
            user, category, text, message_id, regenerate, replaces = json.loads(zlib.decompress(claim.question))
        except (ValueError, zlib.error):
            return None
        return cls(Query(text, message_id, regenerate, replaces), user, category)

    @classmethod
    def address(cls, claim: Claim) -> SessionAddress | None:
        """Return the address of a session that may not exist yet."""
        asked = cls.by(claim)
        return None if asked is None else SessionAddress(asked.user, public_session_id(claim.session), asked.category)


async def ask_again(setup: TurnSetup, limit: TimeLimit, held: RunningTurn) -> AnswerSource | None:
    """Ask a dead process's question again. None if it is dropped, or another process holds the session."""
    asked, attempt = Asked.by(held.claim), held.claim.attempt + 1
    details = {"turn_id": held.claim.turn_id, "attempt": attempt}
    if asked is None or held.stopping or not held.is_looked_after(ASKED_SECONDS) or await _is_erased(setup):
        logger.info("question not asked again", extra=details)
    elif attempt > MAX_ATTEMPTS:
        logger.error("dead turn not continued", extra=details)
    else:
        setup.session.category = asked.category
        answer = await setup.open_once(asked.query, limit, None, attempt)
        if answer is not None:
            logger.warning("question asked again", extra=details)
        return answer
    await drop(setup)
    return None


async def drop(setup: TurnSetup, *message_ids: str) -> bool:
    """Delete a dead process's question, or these queued messages. False if another process holds the session."""
    registry = setup.registry
    claim = Claim(setup.session.key, new_id(), REPAIR)
    if await taken(registry, claim) is not None:
        return False
    await registry.release(claim, message_ids)
    return True


async def _is_erased(setup: TurnSetup) -> bool:
    """Whether the user was deleted recently. The deletion cannot find a session that is not in MongoDB yet."""
    erased = await setup.registry.running(setup.session.user_id)
    return erased is not None and erased.is_looked_after(ERASED_SECONDS)
