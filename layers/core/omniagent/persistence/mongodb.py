"""The client of this process, the database it works on, the document classes that are bound to it, and their indexes.

Beanie binds a class, not an instance: a second adapter for another database would take the classes away from the
first, and its documents would land in the wrong database.

Indexes are created once per schema, not on every cold start. A note per schema names its indexes. An index that neither
this release nor the one deployed before it declares is dropped by `make migrate`: during a deploy, and after a
rollback, the release before needs its own.
"""

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar

import pymongo
from beanie import Document, init_beanie
from beanie.odm.utils.typing import get_index_attributes
from bson import CodecOptions, Decimal128
from bson.codec_options import TypeDecoder, TypeRegistry
from pymongo import DESCENDING, AsyncMongoClient, IndexModel, ReadPreference, WriteConcern
from pymongo import errors as driver
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from omniagent.errors import ConfigurationError, StorageRejected
from omniagent.persistence.driver_errors import translated

logger = logging.getLogger(__name__)

APP_NAME = "omniagent"
INDEX_BUILD_SECONDS = 7 * 24 * 3600
POOL_ON_LAMBDA, POOL_OF_MANAGED_INSTANCES, POOL_ELSEWHERE = 2, 8, 100
"""A Lambda process serves one request at a time, except on Managed Instances. Thousands of processes share a cluster's
few connections."""
SCHEMA_COLLECTION = "omniagent_schema"
SMALL_COLLECTION = 10_000
"""Documents. The indexes of a smaller collection are built within a request."""
# The statements of a live transaction follow each other at once. If a live one is ended, its driver retries it.
IDLE_SECONDS = 1.0
_WRITE_CONFLICT = 112
Result = TypeVar("Result")


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
        self._timeout_seconds = timeout_seconds
        self.documents = documents
        self.loop = asyncio.get_running_loop()
        self.client = _make_client(uri, int(timeout_seconds * 1000), pool_size)
        self.address = (uri, database)
        """The URI may hold a password."""
        self.database = self.client.get_database(
            database,
            codec_options=_CODEC_OPTIONS,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("local"),
            write_concern=WriteConcern("majority"),
        )

    async def open(self) -> None:
        """Bind the document classes, and create the indexes of small collections unless that has been done."""
        try:
            with translated():
                await self._bind_classes()
                await ensure_indexes(self.database, self.documents)
        except BaseException as exc:
            await self.close()
            if isinstance(exc, StorageRejected) and isinstance(exc.__cause__, driver.ConfigurationError):
                raise ConfigurationError(f"MONGODB_URI cannot be used: {exc}") from exc
            raise

    async def build_indexes(self) -> None:
        """Create all missing indexes. The client's own time limit would abort a long build."""
        with translated(), pymongo.timeout(INDEX_BUILD_SECONDS):
            await ensure_indexes(self.database, self.documents, wait=True)

    async def close(self) -> None:
        """Close the client. Its classes are bound to a connection that is still open."""
        if self in _open:
            _open.remove(self)
        try:
            others = [other for other in _open if other.loop is self.loop and other.shares(self.documents)]
            if others:
                await others[-1].bind()
        except driver.PyMongoError as exc:
            logger.warning("document classes could not be bound again", extra={"cause": str(exc)})
        finally:
            await self.client.close()

    async def _bind_classes(self) -> None:
        """Bind the classes, or refuse when an open adapter has bound one of them to another database."""
        # A connection whose event loop is closed was left open by mistake and is unusable.
        _open[:] = [other for other in _open if not other.loop.is_closed()]
        elsewhere = [other for other in _open if other.address != self.address]
        for other in elsewhere:
            if other.shares(self.documents):
                raise ConfigurationError(
                    f"the document classes are bound to the database {other.database.name!r} by another "
                    "MongoBackendAdapter, and a class knows one database at a time: call its shutdown() first, "
                    "or pass document classes of their own in DocumentModels"
                )
        await self.bind()
        _open.append(self)
        bases = {base for document in self.documents for base in document.mro()}
        for other in elsewhere:  # Beanie has bound the base classes, too
            if other.loop is self.loop and other.shares(bases):
                await other.bind()

    def shares(self, classes: Iterable[type]) -> bool:
        return not set(self.documents).isdisjoint(classes)

    async def bind(self) -> None:
        await init_beanie(self.database, document_models=list(self.documents), skip_indexes=True)

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
                    await end_orphans(self.client)
                raise

        with translated(), pymongo.timeout(self._timeout_seconds):
            async with self.client.start_session() as session:
                return await session.with_transaction(
                    attempt,
                    read_concern=ReadConcern("snapshot"),
                    write_concern=WriteConcern("majority"),
                    read_preference=ReadPreference.PRIMARY,
                )


_open: list[MongoDB] = []


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


async def end_orphans(client: AsyncMongoClient[Any]) -> None:
    """End the package's idle transactions. MongoDB lists only those of the client's own database user.

    It keeps a transaction open for a minute after its client was killed, and its writes stay locked, so the session
    could not be answered for that long. A process that meets such a lock ends the transaction.
    """
    orphan = {
        "type": "idleSession",
        "appName": APP_NAME,
        "transaction.timeInactiveMicros": {"$gt": IDLE_SECONDS * 1_000_000},
    }
    admin = client.get_database("admin", read_preference=ReadPreference.PRIMARY)
    try:
        found = await admin.aggregate([{"$currentOp": {"idleSessions": True}}, {"$match": orphan}])
        sessions = [{"id": operation["lsid"]["id"]} async for operation in found]
        if sessions:
            await admin.command("killSessions", sessions)
            logger.warning("transactions of dead processes ended", extra={"count": len(sessions)})
    except OperationFailure as exc:
        # A shared cluster may forbid it. Then the lock lasts for that minute.
        logger.warning("transactions of dead processes cannot be ended", extra={"cause": str(exc)})


async def ensure_indexes(
    database: AsyncDatabase[Any], documents: Sequence[type[Document]], *, wait: bool = False
) -> None:
    """Create the indexes of bound documents. A request does not, if exactly these were created before.

    A request does not wait for a long build: without `wait`, the indexes of large collections are left to
    `make migrate`. Beanie itself would also create those of the base classes, and with them unused collections.
    """
    declared: dict[str, list[IndexModel]] = {}
    for document in documents:
        declared.setdefault(document.get_collection_name(), []).extend(_indexes(document))
    # Changes exactly when an index changes.
    described = [(name, [index.document for index in indexes]) for name, indexes in declared.items()]
    version = hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()[:16]
    schema = database[SCHEMA_COLLECTION]
    if await schema.find_one({"_id": version}) and not wait:
        return
    left = []
    for name, indexes in declared.items():
        if indexes and not wait and await database[name].estimated_document_count() > SMALL_COLLECTION:
            left.append(name)
        elif indexes:
            await database[name].create_indexes(indexes)
    if left:
        logger.warning("indexes may be missing: run the command `migrate`", extra={"collections": left})
        return
    names = {name: [index.document["name"] for index in indexes] for name, indexes in declared.items()}
    note = {"indexes": names, "deployed_at": datetime.now(UTC)}
    await schema.update_one({"_id": version}, {"$set": note}, upsert=True)
    if wait:
        await _drop_obsolete(database)


async def _drop_obsolete(database: AsyncDatabase[Any]) -> None:
    """Drop what only schemas before the last two have declared, and forget these schemas.

    Indexes that no schema has declared are somebody else's. A release that comes back creates its own again.
    """
    schema = database[SCHEMA_COLLECTION]
    notes = await schema.find().sort("deployed_at", DESCENDING).to_list()
    needed, obsolete = (
        {(collection, name) for note in part for collection, names in note.get("indexes", {}).items() for name in names}
        for part in (notes[:2], notes[2:])
    )
    for collection, name in sorted(obsolete - needed):
        with suppress(OperationFailure):  # it is gone already
            await database[collection].drop_index(name)
            logger.info("index dropped", extra={"collection": collection, "index": name})
    await schema.delete_many({"_id": {"$in": [note["_id"] for note in notes[2:]]}})


def _indexes(document: type[Document]) -> list[IndexModel]:
    """Return the indexes that a class declares, in its `Settings` and with `Indexed` fields."""
    settings = document.get_settings()
    bases = [base for base in reversed(document.mro()) if issubclass(base, Document) and base is not Document]
    classes = bases if settings.merge_indexes else [document]
    declared = [index.index for each in classes for index in each.get_settings().indexes]
    for name, field in document.model_fields.items():
        if attributes := get_index_attributes(field):
            direction, options = attributes
            declared.append(IndexModel([(field.alias or name, direction)], **options))
    return list({index.document["name"]: index for index in declared}.values())
