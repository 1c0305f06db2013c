"""A turn whose process died between the claim and the stored question: it is asked again in its user's name.

Loaded only where a process died.
"""

import json
import logging
import zlib
from dataclasses import dataclass
from functools import partial
from typing import Final

from omniagent.ai.result import AnswerSource
from omniagent.session.addresses import SessionAddress
from omniagent.session.manager import new_id, public_session_id
from omniagent.turns.keeper import taken
from omniagent.turns.lease import REPAIR, Claim, RunningTurn
from omniagent.turns.plan import Opening
from omniagent.turns.repair import bury
from omniagent.turns.setup import MAX_ATTEMPTS, Query, TimeLimit, TurnSetup

logger = logging.getLogger(__name__)

ASKED_SECONDS: Final = 900.0
"""So long after its lease a question is asked again. Nobody has a status line for it, or waits for so long."""
ERASED_SECONDS: Final = 3600.0
"""So long after a user was deleted nothing is asked again for them: a question from before is too old by then."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a claim carries until its turn has begun."""

    query: Query
    user: str
    category: str | None

    @classmethod
    def by(cls, claim: Claim) -> "Asked | None":
        """Return what the holder of a claim was asked. None when that is not known: it is no message, or too large."""
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
    """Ask what the dead process was asked. None when it may not be asked again, or somebody else holds the session."""
    asked, attempt = Asked.by(held.claim), held.claim.attempt + 1
    details = {"turn_id": held.claim.turn_id, "attempt": attempt}
    if asked is None or held.stopping or not held.is_looked_after(ASKED_SECONDS) or await _is_erased(setup):
        logger.info("question not asked again", extra=details)
    elif attempt > MAX_ATTEMPTS:
        logger.error("dead turn not continued", extra=details)
    else:
        setup.session.category = asked.category
        answer = await Opening(setup, asked.query, limit).open_once(attempt)
        if answer is not None:
            logger.warning("question asked again", extra=details)
        return answer
    await drop(setup)
    return None


async def drop(setup: TurnSetup) -> bool:
    """Delete the question of a dead process. False when somebody else holds the session by now."""
    session, registry = setup.session, setup.registry
    claim = Claim(session.key, new_id(), REPAIR)
    if await taken(registry, claim, partial(bury, session, registry, setup.ledger)) is not None:
        return False
    await registry.release(claim)
    return True


async def _is_erased(setup: TurnSetup) -> bool:
    """Whether the user was deleted of late. Their sessions are found by MongoDB, which does not know this one."""
    erased = await setup.registry.running(setup.session.user_id)
    return erased is not None and erased.is_looked_after(ERASED_SECONDS)
