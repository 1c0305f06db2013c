"""The records of a journal, one per line: the events that clients see, and records that only a successor reads.

An event's line is the JSON object that clients get. Any other record begins with `{"record":`.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final

from omniagent.messages import FinishReason
from omniagent.protocol import sse
from omniagent.protocol.events import StartStep, StreamEvent
from omniagent.turns.registry import Chunk

logger = logging.getLogger(__name__)

_PREFIX: Final = b'{"record":'


@dataclass(frozen=True, slots=True)
class Record:
    """The base class of the records that clients do not see."""

    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class RunStarted(Record):
    """A process begins to work on the turn. What an earlier one left unfinished is withdrawn."""

    kind = "run"
    run: str
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class StepEnded(Record):
    """A model call has ended. Its tools run only after this is written."""

    kind = "step"
    reason: FinishReason
    calls: Sequence[tuple[str, str, str]] = ()
    """The id, name and arguments of each tool call."""
    first_token_at: float | None = None
    model: str = ""
    """The model that answered: one of the chain."""


@dataclass(frozen=True, slots=True)
class StepWithdrawn(Record):
    """What the open step has shown so far is withdrawn. The step goes on with another model call."""

    kind = "withdrawn"
    rejected: str = ""
    """The answer that did not fit the agent's `output`, as the model reads it when it is asked to correct it."""
    correction: str = ""
    """What the model is told to correct. Empty: the call itself failed."""


@dataclass(frozen=True, slots=True)
class Counted(Record):
    """The cost of a model call that has ended, or was cut off."""

    kind = "counted"
    usage: dict[str, int]


@dataclass(frozen=True, slots=True)
class ApprovedStarted(Record):
    """The approved calls of a turn that waited are about to run."""

    kind = "approved"


@dataclass(frozen=True, slots=True)
class HandedOver(Record):
    """The process ran out of time and leaves the turn to another."""

    kind = "handed_over"
    has_open_calls: bool
    """The tools of the last step have not been started."""
    has_moved: bool = True
    """It made progress. Otherwise it counts as a death, and the number of deaths is limited."""


@dataclass(frozen=True, slots=True)
class Thought(Record):
    """Data of the open reasoning, or of hidden reasoning, that the provider needs in the next step."""

    kind = "thought"
    provider_data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failed(Record):
    """The text that the model reads of the error that follows. Clients read a public one."""

    kind = "failed"
    call_id: str
    error: str


@dataclass(frozen=True, slots=True)
class Requested(Record):
    """A call waits for an approval or a client's output."""

    kind = "requested"
    call_id: str
    request: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Denied(Record):
    """A call was denied."""

    kind = "denied"
    call_id: str
    error: str
    request: dict[str, Any]


Entry = StreamEvent | Record

_KINDS: Final = {each.kind: each for each in Record.__subclasses__()}
START_STEP: Final = sse.line(StartStep())
_RUN, _STEP, _WITHDRAWN, _HANDED_OVER = (
    f'{{"record":"{each.kind}"'.encode() for each in (RunStarted, StepEnded, StepWithdrawn, HandedOver)
)
_ENDINGS = (
    *(f'{{"type":"{kind}"'.encode() for kind in ("abort", "error", "finish", "data-session")),
    sse.DONE_LINE,
)
_START: Final = b'{"type":"start",'
_TAKEOVER: Final = b'{"record":"run","run":"","attempt":1,"at":0}'


def record_line(record: Record) -> bytes:
    return json.dumps({"record": record.kind, **asdict(record)}, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


def is_shown(line: bytes) -> bool:
    """Whether clients see this line."""
    return not line.startswith(_PREFIX)


def is_start(line: bytes) -> bool:
    return line.startswith(_START)


def is_takeover(line: bytes) -> bool:
    """Whether another process than the first begins here."""
    return line.startswith(_RUN) and b'"attempt":0,' not in line


def withdraws(lines: Iterable[bytes]) -> bool:
    """Whether what the unfinished step has shown is withdrawn by one of these lines."""
    return any(line.startswith(_PREFIX) and (line.startswith(_WITHDRAWN) or is_takeover(line)) for line in lines)


def is_handed_over(lines: bytes) -> bool:
    """Whether a chunk ends with a hand-over."""
    return lines.rpartition(b"\n")[2].startswith(_HANDED_OVER)


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


def surviving(lines: Sequence[bytes], *, is_taken_over: bool = False) -> list[bytes]:
    """Return a journal without what was withdrawn: the unfinished step of a process that died, the end of a stream
    whose answer could not be stored, and what a step had shown before its call was repeated.

    `is_taken_over`: another process takes the turn over now.
    """
    if is_taken_over:
        return surviving([*lines, _TAKEOVER])[:-1]
    kept: list[bytes] = []
    open_at: int | None = None
    for line in lines:
        if line == START_STEP and open_at is None:
            open_at = len(kept)
        elif line.startswith(_STEP):
            open_at = None
        elif is_takeover(line):
            kept = [each for each in kept[:open_at] if not each.startswith(_ENDINGS)]
            open_at = None
        elif line.startswith(_WITHDRAWN) and open_at is not None:
            del kept[open_at + 1 :]
        kept.append(line)
    return kept


def unread(sent: Sequence[bytes], kept: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return what a reader of the lines `sent` has not read of those that are kept, and what was withdrawn of the
    lines that it has shown.
    """
    same = next((index for index, pair in enumerate(zip(sent, kept, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(sent), len(kept)) if same is None else same
    return list(kept[at:]), [line for line in sent[at:] if is_shown(line)]


def may_be_reset(withdrawn: Sequence[bytes]) -> bool:
    """Whether `reset-step` withdraws these lines: they are of one step, and the stream has not ended."""
    return withdrawn.count(START_STEP) <= 1 and not any(line.startswith(_ENDINGS) for line in withdrawn)


def lines_of(chunks: Iterable[Chunk]) -> list[bytes]:
    """Return the lines of these chunks."""
    return [line for chunk in chunks for line in chunk.lines.split(b"\n") if line]


def open_step(lines: Sequence[bytes]) -> int:
    """Return where the unfinished step of these lines begins. Their end if there is none."""
    last_end = max((index for index, line in enumerate(lines) if line.startswith(_STEP)), default=-1)
    return next((index for index, line in enumerate(lines) if index > last_end and line == START_STEP), len(lines))
