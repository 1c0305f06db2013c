"""A session as it is stored: its live state, with what is derived from that for indexes, and its messages.

A message is written through the team's document class, which fills fields of its own, and read without it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar
from uuid import uuid4

from beanie import Document
from beanie.odm.utils.dump import get_dict
from beanie.odm.utils.parsing import parse_obj
from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from omniagent.errors import StorageError, StorageRejected
from omniagent.messages import Feedback, ToolPart, Usage, close_open_calls
from omniagent.persistence.contracts import DocumentModels
from omniagent.persistence.documents import Message
from omniagent.persistence.stored_values import StoredParts, decode_json, decode_part, encode_json, encode_part, now
from omniagent.session.live import ROOT, Change, LiveTurn, Place, QueuedMessage, Segment, SessionHead, SessionMessage
from omniagent.session.query import UserPart
from omniagent.team_code import team_code
from omniagent.validation import problems_of

Stored = TypeVar("Stored", bound=Document)
_PARTS = TypeAdapter(StoredParts, config=ConfigDict(defer_build=True))
_USER_PARTS = TypeAdapter(
    tuple[Annotated[UserPart, BeforeValidator(decode_part)], ...], config=ConfigDict(defer_build=True)
)
_TURN = [field.name for field in fields(LiveTurn) if field.name not in ("message", "joined", "lineage")]
_MESSAGE = ("role", "turn_number", "status", "trace", "run", "parent", "branch", "created_at")
_QUEUED = ("text", "busy", "parent", "is_stopped", "node")


def head_of(found: Mapping[str, Any]) -> SessionHead:
    """Read the live state of a session's document."""
    return SessionHead(
        version=found["version"],
        leaf=place_of(found["leaf"]) if found.get("leaf") else ROOT,
        branches=found.get("branches", 0),
        turn=turn_of(found["turn"]) if found.get("turn") else None,
        queue=_queue_of(found.get("queue") or ()),
        name=found.get("name"),
        agent=found.get("agent"),
        changed_at=found.get("updated_at"),
        is_erased=found.get("erased_at") is not None,
        summary_basis=found.get("summary_basis") or "",
    )


def turn_of(turn: Mapping[str, Any]) -> LiveTurn:
    """Read the turn of a session's document."""
    return LiveTurn(
        **{name: turn[name] for name in _TURN},
        lineage=lineage_of(turn["lineage"]),
        message=message_of(turn["message"]) if turn.get("message") else None,
        joined=_queue_of(turn["joined"]),
    )


def message_of(stored: Mapping[str, Any]) -> SessionMessage:
    """Read a message, or one whose `parts` were left out."""
    try:
        parts = _PARTS.validate_python(stored.get("parts", ()))
        feedback = Feedback.model_validate(stored["feedback"]) if stored.get("feedback") else None
    except ValidationError as exc:
        # Without pydantic's own text, which quotes the stored values: messages must not be logged.
        raise StorageRejected(f"message {stored['_id']!r} cannot be read: {problems_of(exc, at='parts')}") from None
    return SessionMessage(
        stored["client_message_id"],
        **{name: stored[name] for name in _MESSAGE if name in stored},
        parts=parts,
        usage=Usage.from_dict(stored.get("usage") or {}),
        metadata=decode_json(stored.get("metadata") or {}),
        feedback=feedback,
        node=stored["_id"],
        lineage=lineage_of(stored["lineage"]),
    )


def lineage_of(stored: Sequence[Mapping[str, int]]) -> tuple[Segment, ...]:
    return tuple((segment["b"], segment["p"]) for segment in stored)


def place_of(stored: Mapping[str, Any]) -> Place:
    return Place(stored["node"], stored["place"], stored["branch"], lineage_of(stored["lineage"]))


def _place(place: Place) -> dict[str, Any]:
    lineage = [{"b": branch, "p": last} for branch, last in place.lineage]
    return {"node": place.node, "place": place.order, "branch": place.branch, "lineage": lineage}


def _queue_of(stored: Iterable[Mapping[str, Any]]) -> tuple[QueuedMessage, ...]:
    return tuple(
        QueuedMessage(
            message_id=each["id"],
            **{name: each[name] for name in _QUEUED},
            parts=_USER_PARTS.validate_python(each["parts"]),
            metadata=json.loads(each["metadata"]),
            after=place_of(each["after"]) if each["after"] else None,
        )
        for each in stored
    )


def fields_of(change: Change, question: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of the session's document that a change sets. `question` is that of a new turn, as stored."""
    before, after = change.before, change.after
    stored: dict[str, Any] = {
        "version": after.version,
        "leaf": _place(after.leaf),
        "branches": after.branches,
        "latest_turn_number": after.running.number if after.running is not None else after.leaf.turn_number,
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
    turn |= {"joined": _queue(after.turn.joined), "lineage": _place(after.turn.place)["lineage"]}
    if before.turn is None or before.turn.id != after.turn.id:
        return stored | {"turn": turn | {"message": question}}
    # The message is left as it is stored: it may have fields of a team's own.
    kept = {f"turn.{name}": value for name, value in turn.items()}
    return stored | kept | ({"turn.message": None} if after.turn.message is None else {})


def _queue(messages: Sequence[QueuedMessage]) -> list[dict[str, Any]]:
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
    place = _place(message.place)
    return models.message(
        id=message.node,
        session_id=key,
        client_message_id=message.id,
        **{name: getattr(message, name) for name in _MESSAGE},
        **{name: place[name] for name in ("place", "lineage")},
        parts=close_open_calls(message.parts, waiting=message.status == "waiting"),
        metadata=dict(message.metadata),
        usage=message.usage.to_dict() if message.role == "assistant" else {},
        asker=key.partition(":")[0] if message.status == "waiting" else None,
        requests=[part.request.id for part in message.parts if isinstance(part, ToolPart) and part.request],
    )


def to_bson(document: Document) -> dict[str, Any]:
    """Encode a document as Beanie would insert it."""
    settings = document.get_settings()
    if settings.use_revision:
        document.revision_id = uuid4()
    # A field's own encoder may raise anything.
    with team_code(f"{type(document).__name__} cannot be stored", StorageRejected, passes=(StorageError,)):
        encoded: dict[str, Any] = get_dict(document, to_db=True, keep_nulls=settings.keep_nulls)
    return encoded


def from_bson(model: type[Stored], stored: Mapping[str, Any]) -> Stored:
    """Read a document as Beanie would."""
    try:
        parsed: Stored = parse_obj(model, stored)  # type: ignore[assignment]
    except ValidationError as exc:
        raise StorageRejected(f"{model.__name__} {stored.get('_id')!r} cannot be read: {problems_of(exc)}") from None
    return parsed
