"""One MongoDB client per process, and the boundary where driver errors become ours."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from beanie import Document, init_beanie
from bson.errors import BSONError
from pymongo import AsyncMongoClient
from pymongo import errors as driver

from omniagent.errors import ConfigurationError, StorageConflict, StorageError, StorageRejected, StorageUnavailable
from omniagent.persistence.orphans import APP_NAME

# The first class that matches wins, so the specific ones stand before their bases.
TRANSLATIONS: tuple[tuple[type[driver.PyMongoError], type[StorageError]], ...] = (
    (driver.DuplicateKeyError, StorageConflict),
    (driver.ConnectionFailure, StorageUnavailable),
    (driver.WaitQueueTimeoutError, StorageUnavailable),
    (driver.ExecutionTimeout, StorageUnavailable),
    (driver.WTimeoutError, StorageUnavailable),
    (driver.WriteConcernError, StorageUnavailable),
    (driver.PyMongoError, StorageRejected),
)
# What has no place in BSON: a number of more than 64 bits, half a surrogate pair, a document of more than 16 MB.
_UNSTORABLE = (BSONError, OverflowError, UnicodeEncodeError)
# AuthenticationFailed, and Atlas's own for the same.
_REFUSED_LOGINS = (18, 8000)
_TRANSIENT = ("TransientTransactionError", "UnknownTransactionCommitResult", "RetryableWriteError")


@contextmanager
def translated() -> Iterator[None]:
    """Turn every driver error into one of ours. The driver's text goes to the log only."""
    try:
        yield
    except driver.PyMongoError as exc:
        raise translate(exc) from exc
    except _UNSTORABLE as exc:
        raise StorageRejected(f"{type(exc).__name__}: {exc}") from exc


def translate(exc: driver.PyMongoError) -> StorageError:
    if any(exc.has_error_label(label) for label in _TRANSIENT) or exc.timeout:
        return StorageUnavailable(f"{type(exc).__name__}: {exc}")
    kind = next(ours for theirs, ours in TRANSLATIONS if isinstance(exc, theirs))
    return kind(f"{type(exc).__name__}: {exc}")


def is_refused_login(error: BaseException) -> bool:
    """Say whether an error of ours began with MongoDB refusing the user or the password."""
    cause = error.__cause__
    return isinstance(cause, driver.OperationFailure) and cause.code in _REFUSED_LOGINS


class MongoDB:
    """The client of this process and the database it works on."""

    SCHEMA_COLLECTION = "omniagent_schema"

    def __init__(self, uri: str, database: str, *, timeout_seconds: float) -> None:
        self.client = _make_client(uri, int(timeout_seconds * 1000))
        self.database = self.client[database]

    async def init(self, documents: list[type[Document]]) -> None:
        """Bind the document classes and make their indexes, once per schema and not on every cold start."""
        with translated():
            await init_beanie(self.database, document_models=documents, skip_indexes=True)
            await self._ensure_indexes(documents)

    async def close(self) -> None:
        await self.client.close()

    async def _ensure_indexes(self, documents: list[type[Document]]) -> None:
        version = _schema_version(documents)
        schema = self.database[self.SCHEMA_COLLECTION]
        if await schema.find_one({"_id": version}):
            return
        for document in documents:
            indexes = _indexes(document)
            if indexes:
                await document.get_pymongo_collection().create_indexes(indexes)
        await schema.update_one({"_id": version}, {"$set": {"documents": [d.__name__ for d in documents]}}, upsert=True)


def _make_client(uri: str, milliseconds: int) -> AsyncMongoClient[dict[str, Any]]:
    try:
        return AsyncMongoClient(
            uri,
            appname=APP_NAME,
            tz_aware=True,
            serverSelectionTimeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,
            timeoutMS=milliseconds,
            # A Lambda process serves one request: a few sockets, none kept open for nothing.
            maxPoolSize=8,
            minPoolSize=0,
            maxIdleTimeMS=300_000,
            # As the driver itself chooses on Lambda: no connection is held open for heartbeats.
            serverMonitoringMode="poll",
            retryWrites=True,
            w="majority",
        )
    except (driver.PyMongoError, ValueError) as exc:
        raise ConfigurationError(f"MONGODB_URI is no address of a MongoDB: {type(exc).__name__}") from exc


def _indexes(document: type[Document]) -> list[Any]:
    return list(getattr(document.Settings, "indexes", []))


def _schema_version(documents: list[type[Document]]) -> str:
    """A fingerprint of all indexes: it changes exactly when there is something to make."""
    described = [
        (document.get_collection_name(), [index.document for index in _indexes(document)]) for document in documents
    ]
    return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()[:16]
