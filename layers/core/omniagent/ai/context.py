"""`RunContext`, which tools and callbacks get, and the callbacks of an agent."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Generic

from typing_extensions import TypeVar

from omniagent.messages import DataPart, Part
from omniagent.protocol.plain_json import plain
from omniagent.session.ids import session_key, user_id_of
from omniagent.validation import check, check_async, check_fields

if TYPE_CHECKING:
    from omniagent.ai.result import RunResult

MAX_DATA_BYTES = 64 * 1024
"""Maximum size of the data of one `emit`, as JSON."""
RESERVED_NAMES = ("session", "steering", "approval-request", "approval-response")
"""Names of the runtime's own `data-` parts."""

_NAME = re.compile(r"[a-z0-9-]{1,64}")

Deps = TypeVar("Deps", default=Any)
"""The type of `context.deps`. Any unless it is given: `RunContext` alone fits every agent."""
Deps_co = TypeVar("Deps_co", covariant=True, default=Any)
Deps_contra = TypeVar("Deps_contra", contravariant=True, default=Any)
DataSink = Callable[[DataPart, bool], None]
"""Takes a part and whether it is transient. Called on the event loop only."""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(Generic[Deps_co]):
    """One turn, as a team's own code sees it. A tool gets it through a parameter annotated `RunContext`."""

    user: str
    category: str | None = None
    """The user's category, from the caller's current credentials."""
    session_id: str = ""
    turn_id: str = ""
    turn_number: int = 1
    query: str = ""
    """The text of the user's message."""
    parts: Sequence[Part] = field(default=(), compare=False, repr=False)
    """The user's message as it was sent, with its data parts. The model reads only the texts."""
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The metadata that the client sent with the message."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    deps: Deps_co = field(default=None, compare=False, repr=False)  # type: ignore[assignment]  # None without deps
    """The object that `Agent(deps=…)` opened."""
    is_continued: bool = False
    """Whether the turn waited for a reply and now continues."""
    call_id: str | None = None
    """The tool call's id, the same if it is run again: use it as the idempotency key. None outside a tool call."""
    sink: DataSink | None = field(default=None, compare=False, repr=False)
    loop: asyncio.AbstractEventLoop | None = field(default_factory=_running_loop, compare=False, repr=False)
    """Where the sink is called."""

    @property
    def session_key(self) -> str:
        """The `_id` of the session's document in MongoDB."""
        return session_key(user_id_of(self.user), self.session_id)

    def emit(self, name: str, data: Any = None, *, id: str | None = None, transient: bool = False) -> None:  # noqa: A002 - the AI SDK's word
        """Send a `data-<name>` part to the client. A second part of the same name and id replaces the first.

        A transient part is shown but not stored. May be called from any thread. Without a client, and after the call
        has ended, it does nothing.
        """
        if not _NAME.fullmatch(name) or name in RESERVED_NAMES:
            reserved = " or ".join(map(repr, RESERVED_NAMES))
            raise ValueError(
                f"emit: the name {name!r} must be 1 to 64 characters of a-z, 0-9 and -, and not {reserved}"
            )
        data = plain(data)
        if (size := len(json.dumps(data, ensure_ascii=False).encode())) > MAX_DATA_BYTES:
            raise ValueError(f"emit: the data of {name!r} has {size} bytes as JSON; at most {MAX_DATA_BYTES} are sent")
        part = DataPart(name=name, data=data, id=id)
        if self.sink is None:
            return
        if self.loop is None or self.loop is _running_loop():
            self.sink(part, transient)
        else:
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self.sink, part, transient)


ToolCallback = Callable[[RunContext[Deps], str, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks(Generic[Deps_contra]):
    """Called during a turn. Exceptions of a callback are logged and ignored."""

    on_start: Annotated[Callable[[RunContext[Deps_contra]], Awaitable[None]] | None, check(check_async, "context")] = (
        None
    )
    on_tool_start: Annotated[ToolCallback[Deps_contra] | None, check(check_async, "context", "name", "input")] = None
    """Called with the tool's name and its input."""
    on_tool_end: Annotated[ToolCallback[Deps_contra] | None, check(check_async, "context", "name", "output")] = None
    """Called with the tool's name and its output, or the `ToolError`."""
    on_finish: Annotated[
        "Callable[[RunContext[Deps_contra], RunResult[Any]], Awaitable[None]] | None",
        check(check_async, "context", "result"),
    ] = None
    """Called with the stored `RunResult`. `Runner.run` and `AnswerStream.result` return after it."""

    def __post_init__(self) -> None:
        check_fields("Callbacks", self)
