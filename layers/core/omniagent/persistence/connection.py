"""One MongoDB client per process, and the boundary where driver errors become ours."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from beanie import Document
from bson import CodecOptions, Decimal128
from bson.codec_options import TypeDecoder, TypeRegistry
from bson.errors import BSONError
from pymongo import AsyncMongoClient, ReadPreference, WriteConcern
from pymongo import errors as driver
from pymongo.read_concern import ReadConcern

from omniagent.errors import ConfigurationError, StorageConflict, StorageError, StorageRejected, StorageUnavailable
from omniagent.persistence.bound_classes import Binding, bind_classes, release_classes
from omniagent.persistence.indexes import ensure_indexes
from omniagent.persistence.orphans import APP_NAME

logger = logging.getLogger(__name__)

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


class _DecimalDecoder(TypeDecoder):
    """Reads a decimal number as Python's: pydantic takes no other for a field annotated `Decimal`."""

    bson_type = Decimal128

    def transform_bson(self, value: Decimal128) -> Decimal:
        return value.to_decimal()


_CODEC_OPTIONS = CodecOptions[dict[str, Any]](tz_aware=True, type_registry=TypeRegistry([_DecimalDecoder()]))


class MongoDB:
    """The client of this process and the database it works on.

    What is read decides what is written next: reads go to the primary whatever the URI prefers.
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
        """Bind the document classes, and make their indexes if that has not been done."""
        with translated():
            await bind_classes(self._binding)
            await ensure_indexes(self.database, self._binding.documents)

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
