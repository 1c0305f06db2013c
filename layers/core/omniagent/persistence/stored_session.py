"""A session as it is stored: its live state, with what is derived from that for indexes, and its messages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from omniagent.messages import DataPart, TextPart, ToolPart, Usage, close_open_calls
from omniagent.persistence.contracts import DocumentModels
from omniagent.persistence.documents import Message
from omniagent.persistence.store import from_bson, to_bson
from omniagent.persistence.stored_values import decode_part, encode_json, encode_part, now
from omniagent.session.live import Change, LiveTurn, QueuedMessage, SessionHead, SessionMessage
from omniagent.session.query import UserPart
from omniagent.session.tree import ROOT, Place, Segment

_TURN = [field.name for field in fields(LiveTurn) if field.name not in ("message", "joined", "lineage")]
_MESSAGE = ("role", "turn_number", "status", "trace", "feedback", "run", "parent", "branch")
_QUEUED = ("text", "busy", "parent", "is_stopped", "node")


def head_of(models: DocumentModels, found: Mapping[str, Any]) -> SessionHead:
    """Read the live state of a session's document."""
    return SessionHead(
        version=found["version"],
        leaf=place_of(found["leaf"]["node"], found["leaf"]) if found.get("leaf") else ROOT,
        branches=found.get("branches", 0),
        turn=_turn_of(models, found["turn"]) if found.get("turn") else None,
        queue=_queue_of(found.get("queue") or ()),
        name=found.get("name"),
        agent=found.get("agent"),
        changed_at=found.get("updated_at"),
        is_erased=found.get("erased_at") is not None,
        summary_basis=found.get("summary_basis") or "",
    )


def turn_of(found: Mapping[str, Any]) -> LiveTurn | None:
    """Read the turn of a session's document, without its message."""
    return _turn_of(None, found["turn"]) if found.get("turn") else None


def _turn_of(models: DocumentModels | None, turn: Mapping[str, Any]) -> LiveTurn:
    message = turn.get("message") if models is not None else None
    return LiveTurn(
        **{name: turn[name] for name in _TURN},
        lineage=lineage_of(turn["lineage"]),
        message=session_message(from_bson(models.message, message)) if models is not None and message else None,
        joined=_queue_of(turn["joined"]),
    )


def session_message(message: Message) -> SessionMessage:
    return SessionMessage(
        message.client_message_id,
        **{name: getattr(message, name) for name in _MESSAGE},
        node=message.id,
        lineage=lineage_of(message.lineage),
        parts=message.parts,
        metadata=message.metadata,
        usage=Usage.from_dict(message.usage),
    )


def lineage_of(stored: Sequence[Mapping[str, int]]) -> tuple[Segment, ...]:
    return tuple((segment["b"], segment["p"]) for segment in stored)


def stored_lineage(lineage: Sequence[Segment]) -> list[dict[str, int]]:
    return [{"b": branch, "p": place} for branch, place in lineage]


def _place(place: Place) -> dict[str, Any]:
    return {"node": place.node, "place": place.order, "branch": place.branch, "lineage": stored_lineage(place.lineage)}


def place_of(node: str, stored: Mapping[str, Any]) -> Place:
    """Return the place of a node: a message, or the leaf of a session."""
    return Place(node, stored["place"], stored["branch"], lineage_of(stored["lineage"]))


def _queue_of(stored: Any) -> tuple[QueuedMessage, ...]:
    return tuple(
        QueuedMessage(
            message_id=each["id"],
            **{name: each[name] for name in _QUEUED},
            parts=tuple(_part_of(part) for part in each["parts"]),
            metadata=json.loads(each["metadata"]),
            after=place_of(each["after"]["node"], each["after"]) if each["after"] else None,
        )
        for each in stored
    )


def _part_of(stored: Mapping[str, Any]) -> UserPart:
    kind: type[UserPart] = TextPart if stored["type"] == "text" else DataPart
    return kind.model_validate(decode_part(stored))


def fields_of(change: Change, message: Message | None) -> dict[str, Any]:
    """Return the fields of the session's document that a change sets. `message` is the document of a new question."""
    before, after = change.before, change.after
    stored: dict[str, Any] = {
        "version": after.version,
        "leaf": _place(after.leaf),
        "branches": after.branches,
        "latest_turn_number": after.tip.turn_number,
        "queue": _queue(after.queue),
        "is_busy": after.running is not None or bool(after.queue),
        "due": change.due,
        "change": change.id,
        "agent": after.agent,
    }
    if after.changed_at != before.changed_at:
        stored["updated_at"] = after.changed_at
    if after.is_erased:
        stored["erased_at"] = now()
    if after.turn is None:
        return stored | {"turn": None}
    turn = {name: getattr(after.turn, name) for name in _TURN}
    turn |= {"joined": _queue(after.turn.joined), "lineage": stored_lineage(after.turn.lineage)}
    if before.turn is None or before.turn.id != after.turn.id:
        return stored | {"turn": turn | {"message": to_bson(message) if message is not None else None}}
    # The message is left as it is stored: it may have fields of a team's own.
    kept = {f"turn.{name}": value for name, value in turn.items()}
    return stored | kept | ({"turn.message": None} if after.turn.message is None else {})


def _queue(messages: tuple[QueuedMessage, ...]) -> list[dict[str, Any]]:
    return [
        {
            "id": message.id,
            **{name: getattr(message, name) for name in _QUEUED},
            "parts": [encode_part(part) for part in message.parts],
            "metadata": encode_json(dict(message.metadata)),
            "after": _place(message.after) if message.after is not None else None,
        }
        for message in messages
    ]


def message_document(models: DocumentModels, key: str, message: SessionMessage) -> Message:
    """Build the document of a message. Tool calls without a result are closed, unless the turn waits for them."""
    return models.message(
        id=message.node,
        session_id=key,
        client_message_id=message.id,
        **{name: getattr(message, name) for name in _MESSAGE},
        lineage=stored_lineage(message.lineage),
        place=message.place.order,
        parts=close_open_calls(message.parts, waiting=message.status == "waiting"),
        metadata=dict(message.metadata),
        usage=message.usage.to_dict() if message.role == "assistant" else {},
        asker=key.partition(":")[0] if message.status == "waiting" else None,
        requests=[part.request.id for part in message.parts if isinstance(part, ToolPart) and part.request],
    )
