"""The documents: fields and indexes, nothing else.

A session's `_id` is `<user id>:<the id the client chose>`, and messages and summaries carry it. Every key contains the
owner, so no query can reach another user's session, and two users may choose the same id. Every other `_id` is random
at the time of use, never an ObjectId: processes restored from one snapshot would generate equal ones.
"""

from datetime import UTC, datetime
from typing import Any, ClassVar, Final, NoReturn

from beanie import Document
from pydantic import Field
from pymongo import ASCENDING, DESCENDING, IndexModel

from omniagent.errors import ContractError
from omniagent.messages import Feedback, Role, Status
from omniagent.persistence.stored_session import ENCODERS, StoredDict, StoredParts, now
from omniagent.session.ids import first_version, new_id

STEERING_ID: Final = "parts.message_id"
"""The field of an answer with the ids of messages that joined it."""
HAS_REQUESTS: Final[dict[str, Any]] = {"requests.0": {"$exists": True}}
WAITING: Final[dict[str, Any]] = {"status": "waiting"}
IS_DUE: Final[dict[str, Any]] = {"$gt": datetime(1970, 1, 1, tzinfo=UTC)}
"""Any time at all. MongoDB uses a partial index only for queries that repeat its filter."""
IS_BUSY: Final[dict[str, Any]] = {"is_busy": True}
FORKED: Final[dict[str, Any]] = {"lineage.0": {"$exists": True}}
UNANNOUNCED: Final[dict[str, Any]] = {"announced": ""}
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
