"""The documents, with their fields and indexes, and `DocumentModels`: the classes that a team may replace.

A session's `_id` is `<user id>:<the id the client chose>`, and messages and summaries carry it. Every key contains the
owner, so no query can reach another user's session, and two users may choose the same id. Every other `_id` is random
at the time of use, never an ObjectId: processes restored from one snapshot would generate equal ones.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, NoReturn, TypeVar

from beanie import Document
from beanie.odm.fields import ExpressionField
from pydantic import Field, ValidationError
from pymongo import ASCENDING, DESCENDING, IndexModel

from omniagent.errors import ContractError
from omniagent.messages import Feedback, Role, Status
from omniagent.persistence.stored_session import ENCODERS, StoredDict, StoredParts, now
from omniagent.session.ids import first_version, new_id
from omniagent.validation import problems_of

Filled = TypeVar("Filled", bound=Document)
Fill = Callable[[Any, str, str | None], Awaitable[None] | None]
STEERING_ID: Final = "parts.message_id"
"""The field of an answer with the ids of messages that joined it."""
HAS_REQUESTS: Final[dict[str, Any]] = {"requests.0": {"$exists": True}}
WAITING: Final[dict[str, Any]] = {"status": "waiting"}
IS_DUE: Final[dict[str, Any]] = {"$gt": datetime(1970, 1, 1, tzinfo=UTC)}
"""Any time at all. MongoDB uses a partial index only for queries that repeat its filter."""
IS_BUSY: Final[dict[str, Any]] = {"is_busy": True}
FORKED: Final[dict[str, Any]] = {"lineage.0": {"$exists": True}}
UNANNOUNCED: Final[dict[str, Any]] = {"announced": ""}
"""The mark of an answer whose event is still to be queued for the webhook."""
IS_ERASED: Final[dict[str, Any]] = {"erased_at": IS_DUE}
ANY_TURN_NUMBER: Final[dict[str, Any]] = {"latest_turn_number": {"$gte": 0}}


class WrittenInParts:
    """A document that the runtime changes field by field: a copy that was read earlier must not overwrite it."""

    async def save(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: it would write an older state of the runtime's fields, and lose a turn."""
        name = type(self).__name__
        raise ContractError(
            f"{name}.save() and replace() would overwrite what the runtime has stored since the document was read. "
            f"Set only fields of your own: await document.set({{{name}.your_field: value}})"
        )

    replace = save


class User(WrittenInParts, Document):
    """A caller. `_id` is derived from `client_id`, so it is known before anything is read."""

    id: str  # type: ignore[assignment]  # Beanie lets a document choose its own id type
    client_id: str
    erased_at: datetime | None = None
    """Set when the user is being deleted. The document stays for a while, so that every process sees the mark."""
    created_at: datetime = Field(default_factory=now)

    class Settings:
        name = "users"
        indexes: ClassVar = [
            IndexModel([("client_id", ASCENDING)], unique=True),
            # For the sweep.
            IndexModel([("erased_at", ASCENDING)], partialFilterExpression=IS_ERASED),
        ]


class Session(WrittenInParts, Document):
    """A conversation. Its live state, `turn` and `queue`, is what is not history yet. See `turns.state`.

    `api_fields` of a team's class names the fields of its own that the API shows.
    """

    api_fields: ClassVar[tuple[str, ...]] = ()

    id: str  # type: ignore[assignment]  # Beanie lets a document choose its own id type
    user_id: str
    category: str | None = None
    """The user's category when the last turn began."""
    name: str | None = None
    agent: str | None = None
    """The name of its agent in `Project(agents=…)`. None in a project with one agent."""
    version: int = Field(default_factory=first_version)
    """Raised by every change of the live state, which is a compare-and-set of it."""
    change: str | None = None
    """The id of the last such change."""
    leaf: dict[str, Any] | None = None
    """The end of the active path. None before the first turn ends."""
    branches: int = 0
    """The newest branch."""
    latest_turn_number: int = 0
    """The number of the last turn on the active path, for lists."""
    turn: dict[str, Any] | None = None
    """The turn that runs or waits, with the message that it answers."""
    queue: list[dict[str, Any]] = Field(default_factory=list)
    """The messages in line."""
    is_busy: bool = False
    """A turn runs, or messages are in line."""
    due: datetime | None = None
    """When the sweep looks at the session. None: there is nothing to do."""
    fence: str | None = None
    """Written by transactions that only read the session, to conflict with concurrent changes."""
    summary_queued_at: datetime | None = None
    """Set while an update of the summary waits in the queue."""
    rebuild_queued_at: datetime | None = None
    """Set while a rebuild of the summary waits in the queue."""
    rebuilt_at: datetime | None = None
    """When the summary was rebuilt. None after a message was deleted: the summary may still mention it."""
    summary_basis: str | None = None
    """Changed when a message is deleted or a rebuild is published: summaries in progress still contain what was."""
    erased_at: datetime | None = None
    """Set when the session is being deleted. From then on it is invisible."""
    created_at: datetime = Field(default_factory=now)
    updated_at: datetime = Field(default_factory=now)

    class Settings:
        name = "sessions"
        indexes: ClassVar = [
            IndexModel(
                [("user_id", ASCENDING), ("erased_at", ASCENDING), ("updated_at", DESCENDING), ("_id", DESCENDING)]
            ),
            # For retention, and for the sweep. Partial, so that MongoDB uses it only for queries with the same filter.
            IndexModel([("erased_at", ASCENDING), ("updated_at", ASCENDING)], partialFilterExpression=ANY_TURN_NUMBER),
            # For the sweep: only sessions that may need somebody.
            IndexModel([("due", ASCENDING)], partialFilterExpression={"due": IS_DUE}),
            # For the limit of running turns per user.
            IndexModel([("user_id", ASCENDING)], partialFilterExpression=IS_BUSY),
        ]


class Message(WrittenInParts, Document):
    """One message of the history, a tree: see `session.live`. Its `_id` is its node.

    `client_message_id` is the id the client knows it by: its own, or the turn's for an answer, which is also its node.
    `api_fields` of a team's class names the fields of its own that the API shows.
    """

    api_fields: ClassVar[tuple[str, ...]] = ()

    id: str = Field(default_factory=new_id)  # type: ignore[assignment]
    session_id: str
    parent: str = ""
    """The node of the message before it."""
    branch: int = 0
    lineage: list[dict[str, int]] = Field(default_factory=list)
    """The branches that lead to it, from the root on: each with its number `b` and the last place `p` of the path."""
    turn_number: int
    place: int = 0
    """Orders the messages of a path: twice the turn's number, and one more for an answer."""
    role: Role
    parts: StoredParts
    status: Status = "complete"
    client_message_id: str
    metadata: StoredDict = Field(default_factory=dict, validate_default=True)
    usage: dict[str, int] = Field(default_factory=dict)
    trace: str | None = None
    """The W3C `traceparent` of the turn, if it was traced."""
    feedback: Feedback | None = None
    """The user's feedback on an answer."""
    run: str = ""
    """The process that wrote the answer. A write whose reply was lost finds itself done."""
    announced: str | None = None
    """The last event of this answer that was queued for the webhook. Empty: one is still to be queued."""
    requests: list[str] = Field(default_factory=list)
    """The ids of this answer's requests: approvals and client tool outputs."""
    asker: str | None = None
    """The user's id while the answer waits, for the list of waiting answers."""
    created_at: datetime = Field(default_factory=now)

    class Settings:
        name = "messages"
        bson_encoders: ClassVar[dict[Any, Any]] = ENCODERS
        indexes: ClassVar = [
            IndexModel([("session_id", ASCENDING), ("branch", ASCENDING), ("place", ASCENDING)], unique=True),
            IndexModel([("session_id", ASCENDING), ("client_message_id", ASCENDING), ("branch", ASCENDING)]),
            # For the siblings of a message.
            IndexModel([("session_id", ASCENDING), ("parent", ASCENDING), ("branch", ASCENDING)]),
            # For the newest message of the branches that lead from a place.
            IndexModel(
                [("session_id", ASCENDING), ("lineage.b", ASCENDING), ("created_at", DESCENDING)],
                partialFilterExpression=FORKED,
            ),
            IndexModel(
                [("session_id", ASCENDING), (STEERING_ID, ASCENDING)],
                partialFilterExpression={STEERING_ID: {"$exists": True}},
            ),
            # For the sweep: answers whose process died before it queued their event.
            IndexModel([("created_at", ASCENDING)], partialFilterExpression=UNANNOUNCED),
            # Waiting answers are rare. These indexes hold nothing else and serve only queries with the same filter.
            IndexModel([("requests", ASCENDING)], partialFilterExpression=HAS_REQUESTS),
            IndexModel([("created_at", DESCENDING), ("_id", DESCENDING)], partialFilterExpression=WAITING),
            IndexModel(
                [("asker", ASCENDING), ("created_at", DESCENDING), ("_id", DESCENDING)], partialFilterExpression=WAITING
            ),
        ]


class Summary(WrittenInParts, Document):
    """A summary of the turns `start_turn_number` to `end_turn_number` of a path, and all earlier ones.

    It serves every path that contains its end: that turn's answer in `branch`. Two may begin at the same turn: a path
    that leaves the branch earlier needs one that ends earlier. A draft is part of a rebuild that is not published yet.
    """

    id: str = Field(default_factory=new_id)  # type: ignore[assignment]
    session_id: str
    draft: bool = False
    branch: int = 0
    content: str
    token_count: int
    start_turn_number: int
    end_turn_number: int
    created_at: datetime = Field(default_factory=now)

    class Settings:
        name = "summaries"
        indexes: ClassVar = [
            IndexModel(
                [
                    ("session_id", ASCENDING),
                    ("draft", ASCENDING),
                    ("branch", ASCENDING),
                    ("end_turn_number", DESCENDING),
                ],
                unique=True,
            ),
        ]


def api_values(document: Session | Message) -> dict[str, Any]:
    """Return the fields of a team's own that its class shows through the API, as JSON values."""
    names = type(document).api_fields
    return document.model_dump(mode="json", include=set(names)) if names else {}


@dataclass(frozen=True, slots=True)
class DocumentModels:
    """The document classes. Extend one of the four by subclassing it with fields of your own that have defaults.

    `fill(document, user, category)`, which may be async, sets your own fields of each new document of the four before
    it is inserted. `user` is the name the user authenticates with. If `fill` raises, nothing is stored, except that an
    answer or a summary, whose tokens are already paid for, is stored with the fields' defaults.

    `further` are documents of your own: they are bound to the same database, and their indexes are created.
    """

    user: type[User] = User
    session: type[Session] = Session
    message: type[Message] = Message
    summary: type[Summary] = Summary
    further: tuple[type[Document], ...] = ()
    fill: Fill | None = None

    def __post_init__(self) -> None:
        """Refuse a class that the runtime cannot use; the error names the field. Needs no connection."""
        contracts = {"user": User, "session": Session, "message": Message, "summary": Summary}
        for role, contract in contracts.items():
            _check(role, getattr(self, role), contract)
        if not isinstance(self.further, tuple | list):
            raise ContractError(f"DocumentModels.further must be a tuple of classes, not {self.further!r:.100}")
        for model in self.further:
            if not _is_document(model):
                raise ContractError(f"DocumentModels.further takes Beanie Document classes, not {model!r}")
        if self.fill is not None:
            _check_fill(self.fill)

    def all(self) -> list[type[Document]]:
        return [self.user, self.session, self.message, self.summary, *self.further]


def _check(role: str, model: Any, contract: type[Document]) -> None:
    if not _is_document(model):
        raise ContractError(f"DocumentModels.{role} must be a Beanie Document class, not {model!r}")
    _check_fields(f"DocumentModels.{role}: {model.__name__}", model, contract)
    declared = [index.document for index in _setting(model, "indexes") if isinstance(index, IndexModel)]
    for index in _setting(contract, "indexes"):
        if index.document not in declared:
            keys = ", ".join(index.document["key"])
            raise ContractError(
                f"DocumentModels.{role}: {model.__name__} lacks the index on {keys}, which keeps turns apart. "
                f"Let its Settings extend {contract.__name__}.Settings and add to its indexes"
            )
    if not set(_setting(contract, "bson_encoders")) <= set(_setting(model, "bson_encoders")):
        raise ContractError(
            f"DocumentModels.{role}: {model.__name__}.Settings.bson_encoders must hold those of "
            f"{contract.__name__}.Settings: write {{**{contract.__name__}.Settings.bson_encoders, …}}"
        )


def _check_fields(name: str, model: type[Document], contract: type[Document]) -> None:
    if any(isinstance(field.default, ExpressionField) for field in model.model_fields.values()):
        raise ContractError(f"{name} was made after its base class had been bound to a database: define it at import")
    for field_name, field in contract.model_fields.items():
        if field_name not in model.model_fields:
            raise ContractError(f"{name} lacks the field {field_name!r}")
        if (annotation := model.model_fields[field_name].annotation) != field.annotation:
            raise ContractError(f"{name}.{field_name} must be {field.annotation}, not {annotation}")
    own = set(model.model_fields) - set(contract.model_fields)
    for field_name in own:
        if model.model_fields[field_name].is_required():
            raise ContractError(f"{name}.{field_name} needs a default")
    api_fields = getattr(model, "api_fields", ())
    if isinstance(api_fields, str):
        raise ContractError(f"{name}.api_fields must be a tuple of names: write ({api_fields!r},)")
    for field_name in api_fields:
        if field_name not in own:
            raise ContractError(f"{name}.api_fields names {field_name!r}, which is no field of its own")


def _check_fill(fill: object) -> None:
    if not callable(fill):
        raise ContractError(f"DocumentModels.fill must be a function, not {fill!r}")
    try:
        inspect.signature(fill).bind(None, "", None)
    except TypeError as exc:
        raise ContractError("DocumentModels.fill must take (document, user, category)") from exc


def _is_document(model: object) -> bool:
    return isinstance(model, type) and issubclass(model, Document)


def _setting(model: type[Document], name: str) -> Any:
    return getattr(getattr(model, "Settings", None), name, ())


async def fill_own_fields(fill: Fill, document: Filled, user: str, category: str | None) -> Filled:
    """Return a new document with the fields that the team's hook has set, checked."""
    filled: Filled = document.model_copy(deep=True)
    filling: Any = fill(filled, user, category)
    if filling is not None and not inspect.isawaitable(filling):
        raise ContractError(f"DocumentModels.fill must change the document and return None, not {filling!r:.100}")
    if filling is not None:
        await filling
    _check_filled(filled, document)
    return filled


def _check_filled(document: Document, before: Document) -> None:
    """Validate the values that `fill` has set: an invalid one would make the document unreadable.

    `fill` must not change the runtime's fields.
    """
    name = type(document).__name__
    contract = next((each for each in (User, Session, Message, Summary) if isinstance(document, each)), Document)
    for field_name in type(document).model_fields:
        value, old = getattr(document, field_name), getattr(before, field_name)
        if value is old or value == old:
            continue
        if field_name in contract.model_fields:
            raise ContractError(f"DocumentModels.fill changed {name}.{field_name}: set only fields of your own")
        try:
            type(document).__pydantic_validator__.validate_assignment(document, field_name, value)
        except ValidationError as exc:
            raise ContractError(f"DocumentModels.fill set {value!r:.100} in {name}: {problems_of(exc)}") from exc
