"""Binds request, user, session and turn to every span and log line of the current work."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from . import spans
from .attributes import SESSION_ID, TURN_NUMBER, USER_CATEGORY, USER_ID

_LOG_FIELDS: Final = {SESSION_ID: "session_id", USER_ID: "user_id", TURN_NUMBER: "turn"}
_bound: ContextVar[Mapping[str, Any]] = ContextVar("omniagent_bound", default=MappingProxyType({}))


def bound_fields() -> Mapping[str, Any]:
    """Return the fields that a log line written here carries."""
    return _bound.get()


@contextmanager
def bind_fields(**fields: Any) -> Iterator[None]:
    """Put these fields on every line logged inside, in this task and in those it starts."""
    before = _bound.get()
    _bound.set({**before, **fields})
    try:
        yield
    finally:
        # Not reset by token: a generator may be closed in another task, where the token is refused.
        _bound.set(before)


@contextmanager
def bind_context(
    *,
    session_id: str | None = None,
    user_id: str | None = None,
    user_category: str | None = None,
    turn: int | None = None,
) -> Iterator[None]:
    """Put the given values on every span and log line inside, in this task and in those it starts. Calls nest.

    Session and user are stored under the context keys that other OpenInference instrumentations read, too.
    """
    values = {SESSION_ID: session_id, USER_ID: user_id, USER_CATEGORY: user_category, TURN_NUMBER: turn}
    attributes = {name: value for name, value in values.items() if value is not None}
    recorder = spans.active_recorder()
    with bind_fields(**_log_fields(attributes)), nullcontext() if recorder is None else recorder.bind(attributes):
        yield


def bind_request(*, user_id: str | None = None, session_id: str | None = None) -> None:
    """Put the user's hash, or the session, on every later span and log line of this request, and on its current span.

    Called when a request has been authenticated, and when its session is known. Unlike `bind_context` it is not a
    block: it ends with the binding of the request id.
    """
    values = {USER_ID: user_id, SESSION_ID: session_id}
    attributes = {name: value for name, value in values.items() if value is not None}
    _bound.set({**_bound.get(), **_log_fields(attributes)})
    recorder = spans.active_recorder()
    if recorder is not None:
        recorder.attach(attributes)
        recorder.current().set_many(attributes)


def _log_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {_LOG_FIELDS[name]: value for name, value in attributes.items() if name in _LOG_FIELDS}
