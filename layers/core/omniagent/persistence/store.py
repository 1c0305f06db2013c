"""`ConversationStore`: client, collections, transactions, and the translation of driver errors."""

import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
from pydantic import ValidationError
from pymongo import DESCENDING, AsyncMongoClient, ReadPreference, ReturnDocument, WriteConcern
from pymongo import errors as driver
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from omniagent.errors import (
    ConfigurationError,
    OmniAgentError,
    StorageError,
    StorageRejected,
)
from omniagent.persistence.bound_classes import Binding, bind_classes, release_classes
from omniagent.persistence.contracts import DocumentModels, check_filled, checked_filling
from omniagent.persistence.cursor import Cursor
from omniagent.persistence.documents import IS_DUE
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.erasure import Collection, Erasure
from omniagent.persistence.indexes import ensure_indexes
from omniagent.persistence.orphans import APP_NAME, end_orphans
from omniagent.session.addresses import SessionAddress, SessionInfo, checked_limit
from omniagent.session.ids import public_session_id, session_key, user_id_of
from omniagent.session.manager import OpenTurns, SessionManager
from omniagent.team_code import team_code
from omniagent.validation import problems_of

logger = logging.getLogger(__name__)


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

    def __init__(
        self,
        uri: str,
        database: str,
        documents: Sequence[type[Document]],
        *,
        timeout_seconds: float,
        pool_size: int = 0,
    ) -> None:
        self.client = _make_client(uri, int(timeout_seconds * 1000), pool_size)
        self.database = self.client.get_database(
            database,
            codec_options=_CODEC_OPTIONS,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("local"),
            write_concern=WriteConcern("majority"),
        )
        self._binding = Binding(uri, self.database, documents)

    async def open(self) -> None:
        """Bind the document classes, and create the indexes of small collections unless that has been done."""
        try:
            with translated():
                await bind_classes(self._binding)
                await ensure_indexes(self.database, self._binding.documents)
        except StorageRejected as exc:
            if isinstance(exc.__cause__, driver.ConfigurationError):
                raise ConfigurationError(f"MONGODB_URI cannot be used: {exc}") from exc
            raise

    async def build_indexes(self) -> None:
        """Create all missing indexes. The client's own time limit would abort a long build."""
        with translated(), pymongo.timeout(INDEX_BUILD_SECONDS):
            await ensure_indexes(self.database, self._binding.documents, wait=True)

    async def close(self) -> None:
        try:
            await release_classes(self._binding)
        except driver.PyMongoError as exc:
            logger.warning("document classes could not be bound again", extra={"cause": str(exc)})
        finally:
            await self.client.close()


INDEX_BUILD_SECONDS = 7 * 24 * 3600
POOL_ON_LAMBDA, POOL_OF_MANAGED_INSTANCES, POOL_ELSEWHERE = 2, 8, 100
"""A Lambda process serves one request at a time, except on Managed Instances. Thousands of processes share a cluster's
few connections."""


def _make_client(uri: str, milliseconds: int, pool_size: int) -> AsyncMongoClient[dict[str, Any]]:
    on_lambda = POOL_OF_MANAGED_INSTANCES if "AWS_LAMBDA_MAX_CONCURRENCY" in os.environ else POOL_ON_LAMBDA
    usual = on_lambda if "AWS_LAMBDA_FUNCTION_NAME" in os.environ else POOL_ELSEWHERE
    pool: dict[str, Any] = {} if "maxpoolsize=" in uri.lower() else {"maxPoolSize": pool_size or usual}
    try:
        return AsyncMongoClient(
            uri,
            appname=APP_NAME,
            serverSelectionTimeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,
            timeoutMS=milliseconds,
            **pool,
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
_WRITE_CONFLICT = 112


class ConversationStore(Erasure):
    """The conversations in MongoDB: what `MongoBackendAdapter.initialize()` returns."""

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

    async def fill(self, document: Stored, session: SessionManager, *, is_paid: bool = False) -> Stored:
        """Let the team's `fill` hook set its own fields of a new document.

        One whose tokens are paid for must be stored: if `fill` fails, it gets defaults.
        """
        if self.models.fill is None:
            return document
        before: Stored = document.model_copy(deep=is_paid)
        failure = f"DocumentModels.fill failed for a {type(document).__name__}"
        try:
            with team_code(failure, ConfigurationError, passes=(OmniAgentError,)):
                filling: Any = self.models.fill(document, session.user, session.category)
                if filling is not None:
                    await checked_filling(filling)
                check_filled(document, before)
        except OmniAgentError:
            if not is_paid:
                raise
            logger.exception("fields of the team's own keep their defaults")
            return before
        return document

    async def list_sessions(
        self, user: str, *, limit: int = 20, before: SessionInfo | None = None
    ) -> Sequence[SessionInfo]:
        """See `SessionDirectory.list_sessions`."""
        user_id = user_id_of(user)
        query: dict[str, Any] = {"user_id": user_id, "erased_at": None}
        if before is not None:
            query |= Cursor(before.updated_at, before.session_id).older("updated_at", session_key(user_id, ""))
        shown = {"name": 1, "agent": 1, "updated_at": 1, "latest_turn_number": 1, "turn.state": 1, "turn.until": 1}
        order = [("updated_at", DESCENDING), ("_id", DESCENDING)]
        with translated():
            found = await self.sessions.find(query, shown).sort(order).limit(checked_limit(limit)).to_list()
        return [
            SessionInfo(
                public_session_id(each["_id"]),
                each.get("name"),
                each["updated_at"],
                each["latest_turn_number"],
                each["turn"]["until"] if each.get("turn") else None,
                each.get("agent"),
            )
            for each in found
        ]

    async def due(self, now: datetime, limit: int) -> Sequence[SessionAddress]:
        """See `SessionDirectory.due`."""
        query = {"due": {**IS_DUE, "$lte": now}, "erased_at": None}
        with translated():
            found = await self.sessions.find(query, {"user_id": 1, "category": 1}).sort("due").limit(limit).to_list()
            users = await self._users([session["user_id"] for session in found])
        return [
            SessionAddress(users[each["user_id"]], public_session_id(each["_id"]), each.get("category"))
            for each in found
            if each["user_id"] in users
        ]

    async def address_of(self, key: str) -> SessionAddress | None:
        """See `SessionDirectory.address_of`."""
        with translated():
            users = await self._users([key.partition(":")[0]])
            session = await self.sessions.find_one({"_id": key}, {"category": 1}) if users else None
        category = session.get("category") if session is not None else None
        return SessionAddress(next(iter(users.values())), public_session_id(key), category) if users else None

    def _collection(self, model: type[Document]) -> Collection:
        # Not the class's own collection: another adapter may have bound the class since.
        return self._mongo.database[model.get_collection_name()]


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
