"""A span that is not recorded, and the fields that are bound to every span and log line of the current work."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

_bound: ContextVar[Mapping[str, str | int]] = ContextVar("omniagent_bound", default=MappingProxyType({}))


def bound_fields() -> Mapping[str, str | int]:
    """Return the fields that a log line written here carries."""
    return _bound.get()


def bind_fields(**fields: str | int | None) -> None:
    """Bind these fields until the block of `bind_context` around it ends. None and empty text are left out."""
    _bound.set({**_bound.get(), **{name: value for name, value in fields.items() if value not in (None, "")}})


@contextmanager
def bind_context(**fields: str | int | None) -> Iterator[None]:
    """Put these fields on every span and log line inside, in this task and in those it starts. Calls nest.

    Spans have those of `BOUND_ATTRIBUTES`: `session_id`, `user_id`, `user_category` and `turn`.
    """
    before = _bound.get()
    bind_fields(**fields)
    try:
        yield
    finally:
        # Not reset by token: a generator may be closed in another task, where the token is refused.
        _bound.set(before)


class Span:
    """A span that is not recorded: its methods do nothing. `RecordedSpan` overrides them."""

    __slots__ = ()

    @property
    def captures_content(self) -> bool:
        """Whether input and output are recorded. Check it before work that only collects them."""
        return False

    def set(self, key: str, value: Any) -> None:
        """Set an attribute. None is ignored; content is ignored unless content capture is on."""
        self.set_many({key: value})

    def set_many(self, attributes: Mapping[str, Any]) -> None:
        """Set several attributes."""

    def set_content(self, *, input: Any = None, output: Any = None) -> None:  # noqa: A002 - OpenInference's names
        """Record the input and the output of the operation, as text or JSON, if content capture is on."""

    def set_response(self, status: int, name: str | None = None) -> None:
        """Record the HTTP status of a request, and rename its span. A 5xx marks the span as failed."""

    def add_event(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Record that something happened. The attributes follow the rules of `set`."""

    def error(self, exc: BaseException) -> None:
        """Mark the span as failed and record the exception's type, and its message if content capture is on.

        A cancellation is not an error.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the span. An exception is recorded and propagates."""

    def resumed(self) -> AbstractContextManager[None]:
        """Make the span current for one step of a generator. Afterwards the caller's span is current again."""
        return nullcontext()

    def end(self) -> None:
        """End a span that was made current by `resumed` instead of `with`."""


NO_SPAN: Final = Span()
