"""Closes turns from outside: a dead one, from its chunk log, and a waiting one that expired or is stopped."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from omniagent.errors import RegistryUnavailable, StorageConflict, StorageRejected
from omniagent.messages import Status, Usage
from omniagent.session.manager import (
    SessionHead,
    SessionManager,
    SessionMessage,
    continuation_id,
    message_id_of,
    new_id,
)
from omniagent.tracing import session_state, turn_state
from omniagent.turns.claiming import taken
from omniagent.turns.hooks import TurnHooks, call_back
from omniagent.turns.lease import REPAIR, Claim, RunningTurn, TurnRegistry
from omniagent.turns.replay import calls_of, record_frames

logger = logging.getLogger(__name__)


async def settle(session: SessionManager, registry: TurnRegistry, hooks: TurnHooks = TurnHooks()) -> SessionHead | None:
    """Read the session for a request. First close a dead turn, after a grace period, and a waiting turn that has
    expired.

    The claim is taken before any repair, so an owner that is still alive notices within a tick. If the registry is
    unreachable, nothing is repaired and the session is served as it is.
    """
    head = await session.head()
    if head is None or (head.active_turn_id is None and not head.has_expired(session.now())):
        return head
    claim = Claim(session.key, new_id(), REPAIR)
    try:
        if hooks.grace_seconds and await _is_looked_after(registry, session.key, hooks.grace_seconds):
            return head
        if await taken(registry, claim) is not None:
            return head  # alive, or being repaired by another process
        try:
            if head.active_turn_id is None:
                await close_waiting(session, "expired", registry, hooks)
            else:
                await close_dead_turn(session, registry, head)
        finally:
            await _let_go(registry, claim, hooks)
    except RegistryUnavailable as exc:
        logger.warning("dead turn not repaired", extra={"turn_id": head.active_turn_id, "cause": str(exc)})
        return head
    return await session.head()


async def _let_go(registry: TurnRegistry, claim: Claim, hooks: TurnHooks) -> None:
    """Release the session, and have the messages that were queued behind the closed turn run."""
    if await registry.release(claim):
        await call_back(hooks.on_wake)


async def close_waiting(
    session: SessionManager, reason: Literal["expired", "cancelled"], registry: TurnRegistry, hooks: TurnHooks
) -> bool:
    """Close a waiting turn without an answer. The caller holds the session's claim. False if it does not wait.

    Queued messages are woken first, and by the caller once more when it has released the session: if it dies in
    between, nothing else would run them.
    """
    from omniagent.turns.waiting import EXPIRED_ERROR, STOPPED_ERROR, closed  # needed only for a waiting turn

    head = await session.head()
    answer = None if head is None else await session.answer(head.latest_turn_number)
    if head is None or answer is None or head.waiting_until is None or answer.status != "waiting":
        return False
    if reason == "expired" and not head.has_expired(session.now()):
        return False
    ended = closed(answer, reason, EXPIRED_ERROR if reason == "expired" else STOPPED_ERROR)
    ended = replace(ended, turn_id=continuation_id(answer.id))
    held = await registry.running(session.key)
    if held is not None and held.inbox:
        await call_back(hooks.on_wake)
    with suppress(StorageConflict):  # answered or closed concurrently
        await session.change_waiting(ended, seen_turn_id=head.latest_turn_id)
        turn_state("waiting", "cancelled", stop_reason=reason)
        session_state("waiting", "idle")
    return True


async def stop_turn(session: SessionManager, registry: TurnRegistry, message_id: str | None, hooks: TurnHooks) -> bool:
    """Stop the session's turn: one that runs, one whose process died, or one that waits. See `Runner.stop`."""
    is_stopped = await registry.stop(session.key, message_id)
    if message_id is not None and not is_stopped and (turn_id := await _running_turn_of(session, message_id)):
        # A claim that continues or regenerates an answer need not name every message that it answers.
        message_id, is_stopped = turn_id, await registry.stop(session.key, turn_id)
    if is_stopped and message_id is not None:
        return True
    if await _stop_dead(session, registry, message_id, grace_seconds=hooks.grace_seconds):
        return True
    return await _stop_waiting(session, registry, message_id, hooks) or is_stopped


async def _running_turn_of(session: SessionManager, message_id: str) -> str | None:
    """Return the id of the running turn if it answers this message of the user's, which is stored."""
    head, message = await session.head(), await session.find(message_id)
    if head is None or message is None or not message.was_sent_as(message_id):
        return None
    return head.active_turn_id if head.is_answering(message) else None


async def _stop_waiting(
    session: SessionManager, registry: TurnRegistry, message_id: str | None, hooks: TurnHooks
) -> bool:
    """Close a waiting turn because its user stops it. Returns False if none waits, or only another message's."""
    head = await session.head()
    if head is None or head.waiting_until is None or head.active_turn_id is not None:
        return False
    if message_id is not None:
        message = await session.find(message_id)
        if message is None or message.turn_number != head.latest_turn_number:
            return False
    claim = Claim(session.key, new_id(), REPAIR)
    if await taken(registry, claim) is not None:
        return False
    try:
        return await close_waiting(session, "cancelled", registry, hooks)
    finally:
        await _let_go(registry, claim, hooks)


async def _stop_dead(
    session: SessionManager, registry: TurnRegistry, message_id: str | None, *, grace_seconds: float
) -> bool:
    """Close a dead or handed-over turn, which another process would continue, because its user stops it.

    Returns False if there is none, or only another message's.
    """
    held, head = await registry.running(session.key), await session.head()
    if held is not None and held.alive:
        return False
    turn_id = None if head is None else head.active_turn_id
    if held is not None and held.has_died and not held.claim.is_chore:
        is_named = held.claim.is_named(message_id)
        is_forgotten = is_unbegun(held, head)  # a question that was never stored is forgotten
        is_begun = turn_id == held.claim.turn_id and held.is_looked_after(grace_seconds)
    else:  # its process released the session, because the reply was lost that the turn had begun
        is_named = turn_id is not None and message_id in (None, turn_id, message_id_of(turn_id))
        is_forgotten, is_begun = False, grace_seconds > 0
    if not (is_named and (is_forgotten or is_begun)):
        return False
    claim = Claim(session.key, new_id(), REPAIR)
    if await taken(registry, claim) is not None:
        return await registry.stop(session.key, message_id)  # already taken over
    try:
        if head is not None and not is_forgotten:
            await close_dead_turn(session, registry, head, is_stopped=True)
    finally:
        await registry.release(claim)
    return True


def is_unbegun(held: RunningTurn, head: SessionHead | None) -> bool:
    """Whether the process that held the session died before it stored the question, which the claim carries."""
    if not (held.has_died and held.claim.question):
        return False
    return head is None or head.latest_turn_id != held.claim.turn_id


def is_dead(held: RunningTurn, head: SessionHead | None) -> bool:
    """Whether an unclaimed session has a turn to continue or a question to ask again."""
    return (head is not None and head.active_turn_id is not None) or is_unbegun(held, head)


async def _is_looked_after(registry: TurnRegistry, key: str, grace_seconds: float) -> bool:
    running = await registry.running(key)
    return running is not None and running.is_looked_after(grace_seconds)


async def close_dead_turn(
    session: SessionManager,
    registry: TurnRegistry,
    head: SessionHead,
    *,
    is_stopped: bool = False,
) -> None:
    """Store a dead turn's streamed text as an interrupted or cancelled answer. The caller holds the session's claim."""
    if head.active_turn_id is None:
        return
    message_id = message_id_of(head.active_turn_id)
    frames = b"".join(frames for _, frames in await registry.read(session.key, head.active_turn_id))
    recorder = record_frames(frames)
    logged = recorder.parts
    recorder.close()
    calls = calls_of(frames)
    usage = sum(calls, Usage())
    parts, before, steps = recorder.parts, None, 0
    if message_id != head.active_turn_id and (before := (await session.load(message_id)).earlier) is not None:
        from omniagent.turns.waiting import merged  # needed only for a turn that waited

        parts, usage = merged(before.parts, logged, parts), before.usage + usage
        steps = int(before.metadata.get("stepCount", 0))
    status: Status = "cancelled" if is_stopped else "interrupted"
    metadata = {
        **(before.metadata if before is not None else {}),
        "sessionId": session.session_id,
        "turnNumber": head.latest_turn_number,
        "status": status,
        "finishReason": "other",
        "stopReason": status,
        **({"stepCount": steps + len(calls), "usage": usage.to_dict()} if calls else {}),
    }
    answer = SessionMessage(
        id=message_id,
        turn_id=head.active_turn_id,
        role="assistant",
        turn_number=head.latest_turn_number,
        parts=parts,
        status=status,
        usage=usage,
        metadata=metadata,
    )
    if await _repaired(session, answer) is not None:
        turn_state("running", status)
        session_state("running", "idle")
        details = {"turn_id": answer.id, "parts": len(answer.parts)}
        if is_stopped:
            logger.warning("stopped turn closed", extra=details)
        else:
            logger.warning("interrupted turn repaired", extra=details)


async def _repaired(session: SessionManager, answer: SessionMessage) -> SessionMessage | None:
    """Store the answer of a dead turn. If the store rejects it, it is reduced: the session must not stay closed."""
    try:
        return await session.repair_turn(answer)
    except StorageRejected:
        from omniagent.turns.reduced_parts import reduced_parts  # needed only for an answer that the store rejects

        logger.exception("interrupted answer cannot be stored as it is")
        return await session.repair_turn(replace(answer, parts=reduced_parts(answer.parts)))


async def released_late(registry: TurnRegistry, claim: Claim, head: SessionHead | None) -> bool:
    """Release the claim of an ended turn whose owner could not: the table was slow or unreachable.

    Returns False for a turn that has not ended.
    """
    if head is None or not head.has_ended(claim.turn_id):
        return False
    await registry.release(claim)
    return True


async def waited_for(session: SessionManager, held: RunningTurn) -> str | None:
    """Return the waiting answer that blocks the inbox: its request was made after the messages were sent.

    None if no answer waits, or if one of the messages replaces the answer to the request.
    """
    head = await session.head()
    if head is None or head.has_expired(session.now()):
        return None
    is_ended = any(message.interrupts == head.waiting_id and not message.stopped for message in held.inbox)
    return None if is_ended else head.waiting_id


async def living(registry: TurnRegistry, sessions: Iterable[str]) -> set[str]:
    """Return the keys of those sessions that a live process is answering."""
    keys = list(sessions)
    turns = await asyncio.gather(*(registry.running(key) for key in keys))
    return {key for key, turn in zip(keys, turns, strict=True) if turn is not None and turn.alive}
