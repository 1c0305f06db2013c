"""`TurnRun`: one run of a turn. What it was given, and what its loop, its keeper and its end share."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omniagent.messages import Part, StepPart, StopReason, ToolPart, Usage
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage, SessionState
from omniagent.session.summaries import Summarized
from omniagent.tracing import turn_state
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.engine.keeper import Keeper
from omniagent.turns.journal.fold import Draft
from omniagent.turns.journal.live_journal import LiveJournal
from omniagent.turns.journal.recorder import AnswerRecorder
from omniagent.turns.setup import TurnSetup
from omniagent.turns.state_events import Join


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
        if head.turn is None:
            raise ValueError("only a running turn is run")
        self.setup = setup
        self.head = head
        """The session after this run's last change of it."""
        self.turn: LiveTurn = head.turn
        self.state = state
        """The history that the model is shown."""
        self.limit = limit
        self.question = question
        """The message that is answered. None: it was deleted while the turn waited."""
        self.text = question.text if question is not None else ""
        self.previous = previous
        """The existing answer, if a message is answered again."""
        self.kept = kept
        """The steps of `previous` whose tools may have taken effect. The turn continues after them and repeats none."""
        self.base = base
        """The answer of a turn that waited, as it goes on."""
        self.draft = draft
        """What the journal of a turn that is taken over has."""
        self.journal = LiveJournal(draft.lines if draft is not None else ())
        next_chunk = draft.next_chunk if draft is not None else 0
        self.keeper = Keeper(setup, head.turn, self.journal, self.stop, next_chunk=next_chunk)
        self.recorder = draft.recorder if draft is not None else AnswerRecorder()
        self.recorder.attach(self.journal.add)
        self.progress = _progress(base, kept, draft)
        self.stop_reason: StopReason | None = None
        self.early_end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the answer need not go on: it was stopped, or is ending."""
        self.summary: asyncio.Task[Summarized] | None = None
        """The summary beside the answer. It stores itself when it is ready."""
        self.late_instructions = ""
        """What the agent's functions say for this turn."""
        # A message that steers may have got in line while the turn waited: nobody signals it again.
        self._read_mail = -1 if any(message.steers(head) for message in head.queue) else 0

    def stop(self, reason: StopReason) -> None:
        """End the answer early and keep its text. Does nothing if it is already ending."""
        if not self.early_end.done():
            turn_state("running", "stopping", stop_reason=reason)
            self.stop_reason = reason
            self.early_end.set_result(None)

    async def show_joined(self) -> bool:
        """Record the messages that steer this turn. Returns whether one is new to the answer.

        Those that are in line become part of the turn first, so that a successor finds them.
        """
        if self.keeper.signals.mail != self._read_mail:
            self._read_mail = self.keeper.signals.mail
            after = await self.setup.settle(self._join)
            if after is not None and after.turn is not None:
                self.head, self.turn = after, after.turn
        new = [message for message in self.turn.joined if self.recorder.steering(message.id, message.text)]
        return bool(new)

    def _join(self, head: SessionHead) -> Join | None:
        steering = tuple(each for each in head.queue if each.steers(head) and not each.is_stopped)
        return Join(self.turn.run, steering) if steering else None


def _progress(base: SessionMessage | None, kept: Sequence[Part], draft: Draft | None) -> Progress:
    """Return the progress that a run starts with: of an answer that goes on, of kept steps, of dead processes."""
    progress = Progress(calls_before=sum(isinstance(part, ToolPart) for part in kept))
    if base is not None:
        progress.usage = progress.usage_before = base.usage
        progress.steps = sum(isinstance(part, StepPart) for part in base.parts)
        progress.calls_before = sum(isinstance(part, ToolPart) for part in base.parts)
        progress.models = [*(base.metadata.get("models") or filter(None, [base.metadata.get("model")]))]
    if draft is not None:
        progress.usage += sum(draft.calls, Usage())
        progress.steps += len(draft.steps)
        progress.tool_calls = sum(len(step.calls) for step in draft.steps[:-1])
        progress.tool_errors = sum(
            isinstance(part, ToolPart) and part.error is not None for part in draft.recorder.parts
        )
        for step in draft.steps:
            progress.note_model(step.model)
        if draft.first_token_at is not None:
            progress.first_token_at = time.monotonic() - (time.time() - draft.first_token_at)
    return progress
