"""The errors of MongoDB's driver, as the package's own."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from bson.errors import BSONError
from pymongo import errors as driver

from omniagent.errors import StorageConflict, StorageError, StorageRejected, StorageUnavailable
from omniagent.tracing import trace_database

Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])
# The first class that matches wins, so subclasses come before their bases.
STORAGE_ERRORS: tuple[tuple[type[driver.PyMongoError], type[StorageError]], ...] = (
    (driver.DuplicateKeyError, StorageConflict),
    (driver.ConnectionFailure, StorageUnavailable),
    (driver.WaitQueueTimeoutError, StorageUnavailable),
    (driver.ExecutionTimeout, StorageUnavailable),
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
        # A bulk write's own text quotes the documents: messages must not be logged.
        raise translate(exc) from (None if isinstance(exc, driver.BulkWriteError) else exc)
    except _UNSTORABLE as exc:
        raise StorageRejected(f"{type(exc).__name__}: {exc}") from exc


def on_mongodb(collection: str, operation: str | None = None) -> Callable[[Method], Method]:
    """Run a method in a span of its name, and raise every driver error as one of ours."""

    def decorate(method: Method) -> Method:
        @wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            with translated():
                return await method(*args, **kwargs)

        return cast("Method", trace_database(f"mongodb.{operation or method.__name__}", collection)(call))

    return decorate


def translate(exc: driver.PyMongoError) -> StorageError:
    if any(exc.has_error_label(label) for label in _TRANSIENT) or exc.timeout or _is_unresolved(exc):
        return StorageUnavailable(_text(exc))
    kind = next(ours for theirs, ours in STORAGE_ERRORS if isinstance(exc, theirs))
    return kind(_text(exc))


def _text(exc: driver.PyMongoError) -> str:
    if isinstance(exc, driver.BulkWriteError):
        return f"BulkWriteError: codes {[error.get('code') for error in exc.details.get('writeErrors', ())]}"
    return f"{type(exc).__name__}: {exc}"


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
