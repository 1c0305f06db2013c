"""The results of a run: `RunResult` and `AnswerStream`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol

from pydantic import BaseModel
from typing_extensions import TypeVar

from omniagent.errors import ConfigurationError, OmniAgentError
from omniagent.messages import FinishReason, Part, Status, StopReason, Usage
from omniagent.protocol import sse
from omniagent.protocol.events import ResetStep, StreamEvent
from omniagent.session.live import SessionMessage

if TYPE_CHECKING:
    from omniagent.ai.approvals import ToolRequest

Output_co = TypeVar("Output_co", bound=BaseModel, covariant=True, default=BaseModel)
"""The model of `Agent(output=…)`."""
_RESET = sse.encode(ResetStep())


@dataclass(frozen=True, slots=True)
class RunResult(Generic[Output_co]):
    """A turn that has ended."""

    session_id: str
    message: SessionMessage
    """The turn's current answer."""
    status: Status
    """How the turn ended. A regeneration that showed nothing leaves the previous answer in `message`."""
    finish_reason: FinishReason = "other"
    output: Output_co | None = None
    """The validated answer of an agent with `output=Model`. None without one, and unless `status` is `complete`."""
    error: OmniAgentError | None = None
    """Why the answer is incomplete. `__cause__` is the original exception."""
    stored: bool = True
    tool_calls: int = 0
    tool_errors: int = 0
    summary_missed: bool = False
    """A due summary was not generated. Known only when everything has ended, as in `on_end`."""
    usage_before: Usage = Usage()
    """The part of `usage` from before the turn waited. `tool_calls` counts only later calls."""
    is_continued: bool = False
    """The turn waited and then continued."""

    @classmethod
    def of(cls, session_id: str, message: SessionMessage) -> "RunResult[Output_co]":
        """Return the result of a turn that ended earlier."""
        return cls(session_id, message, message.status, message.metadata.get("finishReason", "other"))

    @property
    def requests(self) -> "Sequence[ToolRequest]":
        """The open requests of a `waiting` turn: approvals, and outputs of client tools."""
        from omniagent.ai.approvals import requests_of  # only where a turn waits

        return requests_of(self.message, session_id=self.session_id)

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def parts(self) -> Sequence[Part]:
        return self.message.parts

    @property
    def usage(self) -> Usage:
        return self.message.usage

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.message.metadata

    @property
    def message_id(self) -> str:
        return self.message.id

    @property
    def turn_number(self) -> int:
        return self.message.turn_number


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Where a reader of a stream wants to go on: after the events that it has seen."""

    journal: str = ""
    """`AnswerStream.journal_id`. Empty: that of the running turn, or of the latest answer."""
    seen: int | None = 0
    """How many events it has seen. Negative: all but the last ones. None: all, to the end."""


class AnswerSource(Protocol):
    """An answer that can be read: of a turn that runs here, runs elsewhere, or has ended."""

    @property
    def message_id(self) -> str:
        """The id of the answer's message."""

    @property
    def journal_id(self) -> str:
        """The id of the journal whose events these are. Empty if they are not those of a journal, from its first."""

    def frames(self) -> AsyncIterator[bytes]:
        """The stream's bytes from its first event to `[DONE]`."""

    async def result(self) -> RunResult[Any]:
        """Wait for the end and return what was stored."""

    async def ended(self) -> None:
        """Wait for all work on this answer in this process."""

    def stop(self, reason: StopReason) -> None:
        """Stop a turn of this process and keep its text. A turn that runs elsewhere continues."""


@dataclass(eq=False, repr=False)
class AnswerStream(Generic[Output_co]):
    """A streamed answer: `async for event in stream`, `stream.sse()` for bytes, `await stream.result()`.

    After a `ResetStep`, drop what the current step has shown: it is generated again.

    The turn starts with `await stream`, `async for` or `result()`; every refusal is raised there, before the first
    event. `sse()` needs a stream that has started, as `Runner.start` returns it. A reader that stops reading does not
    stop the turn: `Runner.stop()` does.
    """

    session_id: str
    _typed: Callable[[RunResult[Any]], RunResult[Output_co]]
    _source: AnswerSource | None = None
    """None: the stream has not started. `_opening` starts it."""
    _opening: Callable[[], Awaitable[AnswerSource]] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def message_id(self) -> str:
        """The id of the answer's message. Known once the stream has started."""
        if self._source is None:
            raise _not_started("message_id")
        return self._source.message_id

    @property
    def journal_id(self) -> str:
        """The journal in which `Runner.resume` finds the rest of this stream, with a position. Empty: there is none."""
        return self._source.journal_id if self._source is not None else ""

    @property
    def seen(self) -> int | None:
        """How many events were left out at the beginning, after `Runner.resume` with a position."""
        return getattr(self._source, "seen", None)

    def __await__(self) -> Generator[Any, None, "AnswerStream[Output_co]"]:
        yield from self._opened().__await__()
        return self

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self._events()

    def sse(self, *, resets: bool = False) -> AsyncIterator[bytes]:
        """The started stream as server-sent events: `data: {json}` per event, keep-alive comments, `data: [DONE]`.

        A step that is generated again is withdrawn with `reset-step`, which only AI SDK 7 knows. Without `resets`, the
        stream ends there, without `finish`, and its client resumes. As a response body it is read after the status line
        is sent, too late for a refusal: a stream that has not started raises `ConfigurationError`.
        """
        if self._source is None:
            raise _not_started("sse()")
        frames = self._source.frames()
        return frames if resets else _until_reset(frames)

    async def result(self) -> RunResult[Output_co]:
        """Wait for the end and return what was stored, after `on_finish` if the turn runs here.

        Cancelling the waiter does not cancel the turn.
        """
        return self._typed(await (await self._opened()).result())

    async def ended(self) -> None:
        """Wait for all work on this answer here: callbacks, a summary, the release."""
        await (await self._opened()).ended()

    async def _events(self) -> AsyncIterator[StreamEvent]:
        async for frames in (await self._opened()).frames():
            for event in sse.decode_events(frames):
                yield event

    async def _opened(self) -> AnswerSource:
        async with self._lock:
            if self._source is None:
                self._source = await self._opening()  # type: ignore[misc]  # one of the two is given
            return self._source


async def _until_reset(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for frames in stream:
        if _RESET in frames:
            if before := frames[: frames.index(_RESET)]:
                yield before
            return
        yield frames


def _not_started(needed_by: str) -> ConfigurationError:
    return ConfigurationError(
        f"AnswerStream.{needed_by}: the answer has not started. Write `stream = await runner.start(…)`, which raises "
        "every refusal before a response begins"
    )
