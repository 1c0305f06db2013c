"""The records of a journal, one per line: the events that clients see, and records that only a successor reads.

An event's line is the JSON object that clients get. Any other record begins with `{"record":`.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, ClassVar, Final

from omniagent.messages import FinishReason
from omniagent.protocol import sse
from omniagent.protocol.events import StreamEvent, Value

logger = logging.getLogger(__name__)


class Record(Value):
    """The base class of the records that clients do not see."""

    kind: ClassVar[str]


class RunStarted(Record):
    """A process begins to work on the turn. What an earlier one left unfinished is withdrawn."""

    kind = "run"
    run: str
    attempt: int
    at: float


class StepEnded(Record):
    """A model call has ended. Its tools run only after this is written."""

    kind = "step"
    reason: FinishReason
    calls: Sequence[tuple[str, str, str]] = ()
    """The id, name and arguments of each tool call."""
    first_token_at: float | None = None
    model: str = ""
    """The model that answered: one of the chain. Empty: the step is one of an earlier answer, and is not repeated."""


class StepWithdrawn(Record):
    """What the open step has shown so far is withdrawn. The step goes on with another model call."""

    kind = "withdrawn"
    rejected: str = ""
    """The answer that did not fit the agent's `output`, as the model reads it when it is asked to correct it."""
    correction: str = ""
    """What the model is told to correct. Empty: the call itself failed."""


class Counted(Record):
    """The cost of a model call that has ended, or was cut off."""

    kind = "counted"
    usage: dict[str, int]


class ApprovedStarted(Record):
    """The approved calls of a turn that waited are about to run."""

    kind = "approved"


class HandedOver(Record):
    """The process ran out of time and leaves the turn to another."""

    kind = "handed_over"
    has_open_calls: bool
    """The tools of the last step have not been started."""
    has_moved: bool = True
    """It made progress. Otherwise it counts as a death, and the number of deaths is limited."""


class Thought(Record):
    """Data of the open reasoning, or of hidden reasoning, that the provider needs in the next step."""

    kind = "thought"
    provider_data: dict[str, Any]


class Failed(Record):
    """The text that the model reads of the error that follows. Clients read a public one."""

    kind = "failed"
    call_id: str
    error: str


class Requested(Record):
    """A call waits for an approval or a client's output."""

    kind = "requested"
    call_id: str
    request: dict[str, Any]


class Denied(Record):
    """A call was denied."""

    kind = "denied"
    call_id: str
    error: str
    request: dict[str, Any]


Entry = StreamEvent | Record

_KINDS: Final = {each.kind: each for each in Record.__subclasses__()}


def line_of(entry: Entry) -> bytes:
    """Return the line of an event or a record. Raises `TypeError` or `ValueError` for one that is not JSON."""
    if not isinstance(entry, Record):
        return sse.line(entry)
    fields = {"record": entry.kind, **asdict(entry)}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def entries_of(lines: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the records of these lines. Raises `ValueError` or `RecursionError` at one that cannot be read."""
    for line in lines:
        if not line or line == sse.DONE_LINE:
            continue
        fields = json.loads(line)
        if "record" not in fields:
            yield sse.from_wire(fields)
        elif fields["record"] in _KINDS:
            yield _KINDS[fields.pop("record")](**fields)
        else:
            _warn_unknown(fields["record"])


@lru_cache(maxsize=256)
def _warn_unknown(kind: str) -> None:
    logger.warning("unknown record in a journal", extra={"kind": kind})
