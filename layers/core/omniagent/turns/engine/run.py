"""`TurnRun`: one run of a turn. What it was given, and what its loop, its keeper and its end share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omniagent.ai.context import RunContext
from omniagent.messages import Part, StepPart, StopReason, ToolPart, Usage, steering_of
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage, SessionState
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.engine.keeper import Keeper
from omniagent.turns.journal.fold import Draft
from omniagent.turns.journal.live_journal import LiveJournal
from omniagent.turns.journal.recorder import AnswerRecorder
from omniagent.turns.setup import TurnSetup


@dataclass(slots=True)
class Progress:
    """The loop's progress. It stays readable when the loop is stopped or fails."""

    usage: Usage = Usage()
    steps: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    first_token_at: float | None = None
    output: Any = None
    is_waiting: bool = False
    """The last step has calls that wait for an approval or a client tool."""
    usage_before: Usage = Usage()
    """The part of `usage` from before the turn waited."""
    has_moved: bool = False
    """This process has completed a model call or tools."""
    calls_before: int = 0
    """The tool calls from before the turn waited. `tool_calls` and `tool_errors` are those of this run."""
    models: list[str] = field(default_factory=list)
    """The models that wrote the answer's steps, each once. The last one wrote the last step."""

    def note_model(self, model: str) -> None:
        self.models = [*(known for known in self.models if known != model), model]


class TurnRun:
    """One run of a turn. Creating it starts the journal."""

    def __init__(
        self,
        setup: TurnSetup,
        head: SessionHead,
        state: SessionState,
        limit: TimeLimit,
        question: SessionMessage | None,
        *,
        previous: SessionMessage | None = None,
        kept: Sequence[Part] = (),
        base: SessionMessage | None = None,
        draft: Draft | None = None,
    ) -> None:
        self.setup = setup
        self.state = state
        """The history that the model is shown."""
        self.limit = limit
        self.question = question
        """The message that is answered. None: it was deleted while the turn waited."""
        self.previous = previous
        """The existing answer, if a message is answered again."""
        self.kept = kept
        """The steps of `previous` whose tools may have taken effect. The turn continues after them and repeats none."""
        self.base = base
        """The answer of a turn that waited, as it goes on."""
        self.draft = draft
        """What the journal of a turn that is taken over has."""
        self.journal = LiveJournal(draft.lines if draft is not None else ())
        self.keeper = Keeper(setup, head, self.journal, next_chunk=draft.next_chunk if draft is not None else 0)
        self.recorder = draft.recorder if draft is not None else AnswerRecorder()
        self.recorder.attach(self.journal.push, self.journal.note)
        self.progress = _progress(base, kept)
        self.stop_reason: StopReason | None = None
        self.context: RunContext | None = None
        self.late_instructions = ""
        """What the agent's functions say for this turn."""

    @property
    def turn(self) -> LiveTurn:
        return self.keeper.turn

    @property
    def text(self) -> str:
        return self.question.text if self.question is not None else ""

    @property
    def joined(self) -> set[str]:
        """The ids of the messages that the answer shows as joined."""
        return {part.message_id for part in steering_of(self.recorder.parts)}

    @property
    def may_hand_over(self) -> bool:
        """Whether another process may continue the turn if it runs out of time in this one."""
        return self.setup.hooks.on_work is not None and not self.limit.is_last

    @property
    def is_closing(self) -> bool:
        """Whether no new work may start here, because another process will continue the turn."""
        return self.limit.is_closing and self.stop_reason is None and self.may_hand_over

    @property
    def tool_seconds(self) -> float:
        """The time left for a tool. A turn that can be handed over sets no limit: it cuts the tool off."""
        return math.inf if self.may_hand_over else self.limit.time_left()


def _progress(base: SessionMessage | None, kept: Sequence[Part]) -> Progress:
    """Return the progress that a run starts with: that of an answer that goes on, or of the kept steps."""
    if base is None:
        return Progress(calls_before=sum(isinstance(part, ToolPart) for part in kept))
    return Progress(
        usage=base.usage,
        usage_before=base.usage,
        steps=sum(isinstance(part, StepPart) for part in base.parts),
        calls_before=sum(isinstance(part, ToolPart) for part in base.parts),
        models=[*(base.metadata.get("models") or filter(None, [base.metadata.get("model")]))],
    )
