"""What a run gives back: the result of a turn, and the sources its stream can come from."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from omniagent.errors import OmniAgentError
from omniagent.messages import FinishReason, Part, Status, Usage
from omniagent.session.manager import SessionMessage


@dataclass(frozen=True, slots=True)
class RunResult:
    """A turn that has ended."""

    session_id: str
    message: SessionMessage
    """The answer that the turn now has."""
    status: Status
    """How the turn ended. A regeneration that showed nothing leaves the previous answer in `message`."""
    finish_reason: FinishReason = "other"
    output: Any = None
    """The validated answer of an agent with `output=Model`."""
    error: OmniAgentError | None = None
    """Why there is no whole answer; its `__cause__` is what happened."""
    stored: bool = True
    tool_calls: int = 0
    tool_errors: int = 0
    summary_missed: bool = False
    """A summary was due and was not made. Known only when everything has ended, as `on_end` is told."""

    @classmethod
    def of(cls, session_id: str, message: SessionMessage, output: Any = None) -> "RunResult":
        """Return the result of a turn that ended earlier."""
        return cls(session_id, message, message.status, message.metadata.get("finishReason", "other"), output)

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


class AnswerSource(Protocol):
    """An answer that can be read: of a turn that runs here, runs elsewhere, or has ended."""

    @property
    def message_id(self) -> str:
        """The id of the answer's message."""

    def frames(self) -> AsyncIterator[bytes]:
        """The stream's bytes from its first event to `[DONE]`."""

    async def result(self) -> RunResult:
        """Wait for the end and return what was stored."""

    async def ended(self) -> None:
        """Wait until nothing more is done for this answer in this process."""
