"""`ConversationStore`: client, collections, transactions, and the translation of driver errors."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar
from uuid import uuid4

import pymongo
from beanie import Document
from beanie.odm.utils.dump import get_dict
from beanie.odm.utils.parsing import parse_obj
from bson import CodecOptions, Decimal128
from bson.codec_options import TypeDecoder, TypeRegistry
from bson.errors import BSONError
from pydantic import ValidationError
from pymongo import ASCENDING, DESCENDING, AsyncMongoClient, ReadPreference, ReturnDocument, WriteConcern
from pymongo import errors as driver
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from omniagent.errors import (
    ConfigurationError,
    OmniAgentError,
    StorageConflict,
    StorageError,
    StorageRejected,
    StorageUnavailable,
)
from omniagent.messages import ToolPart, Usage, close_open_calls
from omniagent.persistence.bound_classes import Binding, bind_classes, release_classes
from omniagent.persistence.contracts import DocumentModels, check_filled, checked_filling
from omniagent.persistence.cursor import SessionCursor
from omniagent.persistence.documents import HAS_EXPIRY, UNFINISHED, Message, Summary
from omniagent.persistence.indexes import ensure_indexes
from omniagent.persistence.orphans import APP_NAME, end_orphans
from omniagent.session.addresses import SessionAddress, SessionInfo
from omniagent.session.manager import OpenTurns, SessionManager, SessionMessage, public_session_id, user_id_of
from omniagent.session.summary_store import RollingSummary
from omniagent.team_code import team_code
from omniagent.validation import problems_of

logger = logging.getLogger(__name__)

# The first class that matches wins, so subclasses come before their bases.
STORAGE_ERRORS: tuple[tuple[type[driver.PyMongoError], type[StorageError]], ...] = (
    (driver.DuplicateKeyError, StorageConflict),
    (driver.ConnectionFailure, StorageUnavailable),
    (driver.WaitQueueTimeoutError, StorageUnavailable),
    (driver.ExecutionTimeout, StorageUnavailable),
    (driver.WTimeoutError, StorageUnavailable),
    (driver.WriteConcernError, StorageUnavailable),
    (driver.PyMongoError, StorageRejected),
)
# What BSON cannot represent: an integer of more than 64 bits, a lone surrogate, a document of more than 16 MB.
_UNSTORABLE = (BSONError, OverflowError, UnicodeEncodeError)
# AuthenticationFailed, and Atlas's own code for it.
_REFUSED_LOGINS = (18, 8000)
_TRANSIENT = ("TransientTransactionError", "UnknownTransactionCommitResult", "RetryableWriteError")


@contextmanager
def translated() -> Iterator[None]:
    """Raise every driver error as one of ours. The driver's text is only logged."""
    try:
        yield
    except driver.PyMongoError as exc:
        raise translate(exc) from exc
    except _UNSTORABLE as exc:
        raise StorageRejected(f"{type(exc).__name__}: {exc}") from exc


def translate(exc: driver.PyMongoError) -> StorageError:
    if any(exc.has_error_label(label) for label in _TRANSIENT) or exc.timeout or _is_unresolved(exc):
        return StorageUnavailable(f"{type(exc).__name__}: {exc}")
    kind = next(ours for theirs, ours in STORAGE_ERRORS if isinstance(exc, theirs))
    return kind(f"{type(exc).__name__}: {exc}")


def _is_unresolved(exc: driver.PyMongoError) -> bool:
    """Whether the name in a `mongodb+srv://` address was not resolved, which the driver calls a wrong configuration."""
    if not isinstance(exc, driver.ConfigurationError) or exc.__cause__ is None:
        return False
    from dns import exception as dns  # the driver loads it only for such an address

    is_malformed = isinstance(exc.__cause__, dns.SyntaxError | dns.FormError)
    return isinstance(exc.__cause__, dns.DNSException) and not is_malformed


def is_refused_login(error: BaseException) -> bool:
    """Whether the cause of an error is that MongoDB refused the user or the password."""
    cause = error.__cause__
    return isinstance(cause, driver.OperationFailure) and cause.code in _REFUSED_LOGINS


class _DecimalDecoder(TypeDecoder):
    """Reads decimals as Python's `Decimal`: pydantic does not accept Decimal128 for a field of that type."""

    bson_type = Decimal128

    def transform_bson(self, value: Decimal128) -> Decimal:
        return value.to_decimal()


_CODEC_OPTIONS = CodecOptions[dict[str, Any]](tz_aware=True, type_registry=TypeRegistry([_DecimalDecoder()]))


class MongoDB:
    """The client of this process and the database it works on.

    Reads go to the primary, whatever the URI prefers, because they decide what is written next.
    """

    def __init__(self, uri: str, database: str, documents: Sequence[type[Document]], *, timeout_seconds: float) -> None:
        self.client = _make_client(uri, int(timeout_seconds * 1000))
        self.database = self.client.get_database(
            database,
            codec_options=_CODEC_OPTIONS,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("local"),
            write_concern=WriteConcern("majority"),
        )
        self._binding = Binding(uri, self.database, documents)

    async def open(self) -> None:
        """Bind the document classes, and create their indexes unless that has been done."""
        try:
            with translated():
                await bind_classes(self._binding)
                await ensure_indexes(self.database, self._binding.documents)
        except StorageRejected as exc:
            if isinstance(exc.__cause__, driver.ConfigurationError):
                raise ConfigurationError(f"MONGODB_URI cannot be used: {exc}") from exc
            raise

    async def close(self) -> None:
        try:
            await release_classes(self._binding)
        except driver.PyMongoError as exc:
            logger.warning("document classes could not be bound again", extra={"cause": str(exc)})
        finally:
            await self.client.close()


def _make_client(uri: str, milliseconds: int) -> AsyncMongoClient[dict[str, Any]]:
    try:
        return AsyncMongoClient(
            uri,
            appname=APP_NAME,
            serverSelectionTimeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,
            timeoutMS=milliseconds,
            # A Lambda process serves one request at a time: it needs few sockets, and keeps none open for nothing.
            maxPoolSize=8,
            minPoolSize=0,
            maxIdleTimeMS=300_000,
            # The driver's own choice on Lambda: no connection is held open for heartbeats.
            serverMonitoringMode="poll",
            retryWrites=True,
            w="majority",
        )
    except (driver.PyMongoError, ValueError) as exc:
        raise ConfigurationError(f"MONGODB_URI is no address of a MongoDB: {type(exc).__name__}") from exc


Result = TypeVar("Result")
Stored = TypeVar("Stored", bound=Document)
Collection = AsyncCollection[dict[str, Any]]
_WRITE_CONFLICT = 112
PAGE = 100
"""Number of sessions per read."""


class ConversationStore:
    """The conversations in MongoDB: what `MongoBackendAdapter.initialize()` returns."""

    outlives_process = True

    def __init__(self, mongo: MongoDB, models: DocumentModels, *, timeout_seconds: float) -> None:
        self._mongo = mongo
        self._timeout_seconds = timeout_seconds
        self.models = models
        self.open_turns = OpenTurns()
        self.users = self._collection(models.user)
        self.sessions = self._collection(models.session)
        self.messages = self._collection(models.message)
        self.summaries = self._collection(models.summary)

    async def transaction(self, work: Callable[[AsyncClientSession], Awaitable[Result]]) -> Result:
        """Run `work` in a transaction, retried by the driver within the time limit.

        Also used for a single write of a session. Outside a transaction, it would wait for the lock of a dead
        process's transaction; inside one, it conflicts at once and ends the dead one.
        """

        async def attempt(session: AsyncClientSession) -> Result:
            try:
                return await work(session)
            except OperationFailure as exc:
                if exc.code == _WRITE_CONFLICT:
                    await end_orphans(self._mongo.client)
                raise

        with translated(), pymongo.timeout(self._timeout_seconds):
            async with self._mongo.client.start_session() as session:
                return await session.with_transaction(
                    attempt,
                    read_concern=ReadConcern("snapshot"),
                    write_concern=WriteConcern("majority"),
                    read_preference=ReadPreference.PRIMARY,
                )

    async def update_session(self, query: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Update the session that matches and return its new state, or None if none matches."""

        async def work(transaction: AsyncClientSession) -> dict[str, Any] | None:
            return await self.sessions.find_one_and_update(
                query, {"$set": changes}, return_document=ReturnDocument.AFTER, session=transaction
            )

        return await self.transaction(work)

    async def fill(self, document: Stored, session: SessionManager) -> Stored:
        """Let the team's `fill` hook set its own fields of a new document."""
        if self.models.fill is None:
            return document
        before = document.model_copy()
        failure = f"DocumentModels.fill failed for a {type(document).__name__}"
        with team_code(failure, ConfigurationError, passes=(OmniAgentError,)):
            filling: Any = self.models.fill(document, session.user, session.category)
            if filling is not None:
                await checked_filling(filling)
            check_filled(document, before)
        return document

    async def fill_or_default(self, make: Callable[[], Stored], session: SessionManager) -> Stored:
        """Build and fill a document that must be stored: its tokens are paid for. If `fill` fails, it gets defaults."""
        try:
            return await self.fill(make(), session)
        except OmniAgentError:
            logger.exception("fields of the team's own keep their defaults")
            return make()

    async def list_sessions(
        self, user: str, *, limit: int = 20, before: SessionInfo | None = None
    ) -> Sequence[SessionInfo]:
        """See `SessionDirectory.list_sessions`."""
        user_id = user_id_of(user)
        query: dict[str, Any] = {"user_id": user_id, "erased_at": None}
        if before is not None:
            query |= SessionCursor(before.updated_at, before.session_id).older(user_id)
        shown = {"name": 1, "updated_at": 1, "latest_turn_number": 1, "waiting_until": 1}
        order = [("updated_at", DESCENDING), ("_id", DESCENDING)]
        with translated():
            found = await self.sessions.find(query, shown).sort(order).limit(limit).to_list()
        return [
            SessionInfo(
                public_session_id(each["_id"]),
                each.get("name"),
                each["updated_at"],
                each["latest_turn_number"],
                each.get("waiting_until"),
            )
            for each in found
        ]

    async def unfinished(self, before: datetime) -> AsyncIterator[Sequence[SessionAddress]]:
        """See `SessionDirectory.unfinished`."""
        begun: dict[str, Any] = {"updated_at": {"$lt": before}}
        while True:
            query = UNFINISHED | {"erased_at": None} | begun
            with translated():
                found = self.sessions.find(query, {"user_id": 1, "updated_at": 1})
                page = await found.sort([("updated_at", ASCENDING), ("_id", ASCENDING)]).limit(PAGE).to_list()
                addresses = await self._addresses(page)
            yield addresses
            if len(page) < PAGE:
                return
            last = page[-1]
            begun = {
                "updated_at": {"$gte": last["updated_at"], "$lt": before},
                "$or": [{"updated_at": {"$gt": last["updated_at"]}}, {"_id": {"$gt": last["_id"]}}],
            }

    async def expired(self, limit: int) -> Sequence[SessionAddress]:
        """See `SessionDirectory.expired`."""
        is_over = {**HAS_EXPIRY, "$lte": SessionManager.now()}
        query = {"waiting_until": is_over, "active_turn_id": None, "erased_at": None}
        with translated():
            found = await self.sessions.find(query, {"user_id": 1}).sort("waiting_until").limit(limit).to_list()
            return await self._addresses(found)

    async def address_of(self, key: str) -> SessionAddress | None:
        """See `SessionDirectory.address_of`."""
        with translated():
            users = await self._users([key.partition(":")[0]])
        return _address(key, users[0]) if users else None

    async def _addresses(self, sessions: Sequence[Mapping[str, Any]]) -> list[SessionAddress]:
        """Return the addresses of sessions, without those whose user is deleted."""
        users = {user["_id"]: user for user in await self._users([session["user_id"] for session in sessions])}
        known = [(session["_id"], users.get(session["user_id"])) for session in sessions]
        return [_address(key, user) for key, user in known if user is not None]

    async def _users(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        if not ids:
            return []
        return await self.users.find({"_id": {"$in": list(ids)}}, {"client_id": 1, "category": 1}).to_list()

    def _collection(self, model: type[Document]) -> Collection:
        # Not the class's own collection: another adapter may have bound the class since.
        return self._mongo.database[model.get_collection_name()]


def _address(key: str, user: Mapping[str, Any]) -> SessionAddress:
    return SessionAddress(user["client_id"], public_session_id(key), user.get("category"))


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
        # Without pydantic's own text, which quotes the stored values: messages must not be logged.
        raise StorageRejected(f"{model.__name__} {stored.get('_id')!r} cannot be read: {problems_of(exc)}") from None
    return parsed


def from_bsons(model: type[Stored], stored: Sequence[Mapping[str, Any]]) -> list[Stored]:
    return [from_bson(model, one) for one in stored]


def session_message(message: Message) -> SessionMessage:
    return SessionMessage(
        id=message.client_message_id,
        role=message.role,
        turn_number=message.turn_number,
        parts=message.parts,
        status=message.status,
        usage=Usage.from_dict(message.usage),
        metadata=message.metadata,
        trace=message.trace,
        feedback=message.feedback,
    )


def message_document(models: DocumentModels, key: str, message: SessionMessage) -> Message:
    """Build the document of a message. Tool calls without a result are closed, unless the turn waits for them."""
    return models.message(
        session_id=key,
        turn_number=message.turn_number,
        role=message.role,
        parts=close_open_calls(message.parts, waiting=message.status == "waiting"),
        status=message.status,
        client_message_id=message.id,
        usage=message.usage.to_dict() if message.role == "assistant" else {},
        metadata=dict(message.metadata),
        trace=message.trace,
        feedback=message.feedback,
        asker=key.partition(":")[0] if message.status == "waiting" else None,
        requests=[part.request.id for part in message.parts if isinstance(part, ToolPart) and part.request],
    )


def rolling_summary(summary: Summary) -> RollingSummary:
    return RollingSummary(
        content=summary.content,
        token_count=summary.token_count,
        start_turn_number=summary.start_turn_number,
        end_turn_number=summary.end_turn_number,
    )
