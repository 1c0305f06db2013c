"""How a session is stored: its live state, with what is derived from that for indexes, its messages, and their values.

A message is written through the team's document class, which fills fields of its own, and read without it.

BSON would turn `{"$ref": …, "$id": …}` into a reference, and cannot represent integers of more than 64 bits, lone
surrogates or nesting beyond 100 levels. In a part, only storable strings, numbers, booleans and null are stored as they
are. Any other value is stored as JSON text in a renamed field: `input` becomes `input_json`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar, get_args
from uuid import uuid4

from beanie import Document
from beanie.odm.utils.dump import get_dict
from beanie.odm.utils.parsing import parse_obj
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from omniagent.errors import StorageError, StorageRejected
from omniagent.messages import Feedback, Part, ToolPart, Usage, close_open_calls
from omniagent.session.live import ROOT, Change, LiveTurn, Place, QueuedMessage, Segment, SessionHead, SessionMessage
from omniagent.session.query import UserPart
from omniagent.team_code import team_code
from omniagent.validation import problems_of

Stored = TypeVar("Stored", bound=Document)
_SUFFIX: Final = "_json"
_INT64: Final = 2**63


class OpaqueDict(dict[str, Any]):
    """A dict that is stored as JSON text."""


def storable_text(text: str) -> str:
    """Return a text that BSON accepts: surrogate pairs are joined, and lone surrogates are replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def encode_part(part: BaseModel) -> dict[str, Any]:
    """Return a part as it is stored. A `request` of None, the usual case, is left out."""
    stored: dict[str, Any] = {}
    for name in type(part).model_fields:
        match value := getattr(part, name):
            case str():
                is_plain = storable_text(value) is value
            case int():
                is_plain = -_INT64 <= value < _INT64
            case _:
                is_plain = value is None or isinstance(value, float)
        stored |= {name: value} if is_plain else {f"{name}{_SUFFIX}": encode_json(value)}
    if stored.get("request", ...) is None:
        del stored["request"]
    return stored


def decode_part(stored: object) -> object:
    """Reverse `encode_part`."""
    if not isinstance(stored, Mapping):
        return stored
    return {
        name.removesuffix(_SUFFIX): decode_json(value) if name.endswith(_SUFFIX) else value
        for name, value in stored.items()
    }


def encode_json(value: object) -> str:
    """Return a value as JSON text. Raises `StorageRejected`."""
    try:
        return json.dumps(value, separators=(",", ":"), default=_jsonable)
    except (TypeError, ValueError, RecursionError) as exc:
        raise StorageRejected(f"not JSON: {type(exc).__name__}: {exc}") from exc


def decode_json(stored: Any) -> Any:
    """Reverse `encode_json`."""
    if not isinstance(stored, str):
        return stored
    try:
        return json.loads(stored)
    except (ValueError, RecursionError):
        return stored  # a session must stay readable, whatever is stored in it


StoredParts = list[Annotated[Part, BeforeValidator(decode_part)]]
StoredDict = Annotated[dict[str, Any], BeforeValidator(decode_json), AfterValidator(OpaqueDict)]

# For `Settings.bson_encoders` of a document that has such fields.
ENCODERS: Final[dict[type, Callable[[Any], Any]]] = {
    **dict.fromkeys(get_args(get_args(Part)[0]), encode_part),
    OpaqueDict: encode_json,
}


def _jsonable(value: object) -> object:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


def now() -> datetime:
    """Return the current time as MongoDB stores it: in UTC, to the millisecond."""
    time = datetime.now(UTC)
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


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
        queue=tuple(map(_queued_of, found.get("queue") or ())),
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
        joined=tuple(map(_queued_of, turn["joined"])),
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
        metadata=decode_json(stored.get("metadata") or {}),
        usage=Usage.from_dict(stored.get("usage") or {}),
        feedback=feedback,
        node=stored["_id"],
        lineage=lineage_of(stored["lineage"]),
    )


def lineage_of(stored: Sequence[Mapping[str, int]]) -> tuple[Segment, ...]:
    return tuple((segment["b"], segment["p"]) for segment in stored)


def place_of(stored: Mapping[str, Any]) -> Place:
    return Place(stored["node"], stored["place"], stored["branch"], lineage_of(stored["lineage"]))


def _place(place: Place) -> dict[str, Any]:
    return {"node": place.node, "place": place.order, "branch": place.branch, "lineage": _lineage(place.lineage)}


def _lineage(segments: Sequence[Segment]) -> list[dict[str, int]]:
    return [{"b": branch, "p": last} for branch, last in segments]


def _queued_of(stored: Mapping[str, Any]) -> QueuedMessage:
    return QueuedMessage(
        message_id=stored["id"],
        **{name: stored[name] for name in _QUEUED},
        parts=_USER_PARTS.validate_python(stored["parts"]),
        metadata=json.loads(stored["metadata"]),
        after=place_of(stored["after"]) if stored["after"] else None,
    )


def fields_of(change: Change, question: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of the session's document that a change sets. `question` is that of a new turn, as stored."""
    before, after = change.before, change.after
    stored: dict[str, Any] = {
        "version": after.version,
        "leaf": _place(after.leaf),
        "branches": after.branches,
        "latest_turn_number": after.running.number if after.running is not None else after.leaf.turn_number,
        "queue": [_queued(message) for message in after.queue],
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
    turn |= {"joined": [_queued(message) for message in after.turn.joined], "lineage": _lineage(after.turn.lineage)}
    if before.turn is None or before.turn.id != after.turn.id:
        return stored | {"turn": turn | {"message": question}}
    # The message is left as it is stored: it may have fields of a team's own.
    kept = {f"turn.{name}": value for name, value in turn.items()}
    return stored | kept | ({"turn.message": None} if after.turn.message is None else {})


def _queued(message: QueuedMessage) -> dict[str, Any]:
    return {name: getattr(message, name) for name in _QUEUED} | {
        "id": message.id,
        "parts": [encode_part(part) for part in message.parts],
        "metadata": encode_json(dict(message.metadata)),
        "after": _place(message.after) if message.after is not None else None,
    }


def message_fields(key: str, message: SessionMessage) -> dict[str, Any]:
    """Return the fields of a message's document. Tool calls without a result are closed, unless the turn waits."""
    is_waiting, is_answer = message.status == "waiting", message.role == "assistant"
    return {name: getattr(message, name) for name in _MESSAGE} | {
        "id": message.node,
        "session_id": key,
        "client_message_id": message.id,
        "place": 2 * message.turn_number + is_answer,
        "lineage": _lineage(message.lineage),
        "parts": close_open_calls(message.parts, waiting=is_waiting) if is_answer else list(message.parts),
        "metadata": dict(message.metadata),
        "usage": message.usage.to_dict() if is_answer else {},
        "asker": key.partition(":")[0] if is_waiting else None,
        "requests": [part.request.id for part in message.parts if isinstance(part, ToolPart) and part.request],
    }


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
