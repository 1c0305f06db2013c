"""Every error of the driver becomes one of ours, by who must act on it."""

import inspect
import traceback
from typing import Any

import pytest
from bson.errors import InvalidDocument
from pymongo import errors as driver

from omniagent.errors import StorageConflict, StorageError, StorageRejected, StorageUnavailable
from omniagent.persistence.driver_errors import translate, translated


def _every(kind: type[driver.PyMongoError]) -> list[type[driver.PyMongoError]]:
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in _every(below))]


EVERY_DRIVER_ERROR = sorted(set(_every(driver.PyMongoError)), key=lambda kind: kind.__name__)


def raised(kind: type[driver.PyMongoError]) -> driver.PyMongoError:
    """One error of the kind, made the way the driver makes it."""
    more: dict[str, Any] = {
        "results": {"writeErrors": []},
        "verbose": False,
        "encrypted_fields": {},
        "cause": OSError(),
    }
    wanted = inspect.signature(kind.__init__).parameters
    arguments: dict[str, Any] = {name: value for name, value in more.items() if name in wanted}
    if "results" in wanted or "cause" in wanted:
        return kind(**arguments)
    return kind("host db-1.internal: secret detail", **arguments)


@pytest.mark.parametrize("kind", EVERY_DRIVER_ERROR, ids=lambda kind: kind.__name__)
def test_every_error_of_the_driver_becomes_one_of_ours_and_shows_nothing(kind: type[driver.PyMongoError]) -> None:
    with pytest.raises(StorageError) as caught, translated():
        raise raised(kind)
    assert "secret" not in caught.value.public
    assert isinstance(caught.value.__cause__, kind) or kind is driver.BulkWriteError


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (driver.DuplicateKeyError("x"), StorageConflict),
        (driver.AutoReconnect("x"), StorageUnavailable),
        (driver.NetworkTimeout("x"), StorageUnavailable),
        (driver.NotPrimaryError("x"), StorageUnavailable),
        (driver.ServerSelectionTimeoutError("x"), StorageUnavailable),
        (driver.ExecutionTimeout("x"), StorageUnavailable),
        (driver.WTimeoutError("x"), StorageUnavailable),
        (driver.OperationFailure("x"), StorageRejected),
        (driver.OperationFailure("x", details={"errorLabels": ["TransientTransactionError"]}), StorageUnavailable),
        (driver.InvalidOperation("x"), StorageRejected),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_who_must_act_decides_what_an_error_becomes(theirs: driver.PyMongoError, ours: type[StorageError]) -> None:
    assert type(translate(theirs)) is ours


@pytest.mark.parametrize("unstorable", [InvalidDocument("x"), OverflowError("x")])
def test_what_has_no_place_in_bson_is_rejected(unstorable: Exception) -> None:
    with pytest.raises(StorageRejected), translated():
        raise unstorable


def test_a_rejected_document_is_not_quoted() -> None:
    rejected = driver.BulkWriteError({"writeErrors": [{"code": 11000, "errmsg": "the user's words"}]})
    with pytest.raises(StorageRejected, match="11000") as caught, translated():
        raise rejected
    assert "the user's words" not in "".join(traceback.format_exception(caught.value))
