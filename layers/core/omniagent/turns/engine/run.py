"""`TurnRun`: one run of a turn. What it was given, and what its loop, its keeper and its end share."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from omniagent.messages import StepPart, StopReason, ToolPart, Usage
from omniagent.session.live import LiveTurn, SessionHead, SessionMessage, SessionState, turns_of
from omniagent.session.summaries import Summarized
from omniagent.tracing import turn_state
from omniagent.turns.journal.live_journal import Keeper
from omniagent.turns.journal.readers import Draft
from omniagent.turns.journal.recorder import AnswerRecorder
from omniagent.turns.setup import TimeLimit, TurnSetup
from omniagent.turns.state_events import Join


@dataclass(slots=True)
class Progress:
    """The loop's progress. It stays readable when the loop is stopped or fails."""

    usage: Usage = Usage()
    steps: int = 0
    tool_calls: int = 0
    """Those of this run, like `tool_errors`: not those from before the turn waited."""
    tool_errors: int = 0
    first_token_at: float | None = None
    output: Any = None
    has_moved: bool = False
    """This process has completed a model call or tools."""
    models: list[str] = field(default_factory=list)
    """The models that wrote the answer's steps, in order."""


@dataclass(eq=False)
class TurnRun:
    """One run of a turn. Creating it starts the journal."""

    setup: TurnSetup
    head: SessionHead
    """The session after this run's last change of it."""
    state: SessionState
    """The history that the model is shown."""
    limit: TimeLimit
    question: SessionMessage | None
    """The message that is answered. None: it was deleted while the turn waited."""
    previous: SessionMessage | None = None
    """The existing answer, if a message is answered again."""
    regenerates: bool = False
    """Whether the user wants another answer than `previous`."""
    base: SessionMessage | None = None
    """The answer of a turn that waited, as it goes on."""
    draft: Draft | None = None
    """What the journal of a turn that is taken over has."""
    stop_reason: StopReason | None = None
    summary: asyncio.Task[Summarized] | None = None
    """The summary beside the answer. It stores itself when it is ready."""
    late_instructions: str = ""
    """What the agent's functions say for this turn."""

    def __post_init__(self) -> None:
        if self.head.turn is None:
            raise ValueError("only a running turn is run")
        draft = self.draft
        self.turn: LiveTurn = self.head.turn
        """The turn, as this run has taken it."""
        self.text = self.question.text if self.question is not None else ""
        self.past = turns_of([each for each in self.state.messages if each.turn_number < self.turn.number])
        """The turns before it, as far as the model may be shown them."""
        self.progress = _progress(self.base, draft)
        lines, next_chunk = (draft.lines, draft.next_chunk) if draft is not None else ([], 0)
        self.journal = Keeper(lines, setup=self.setup, turn=self.turn, stop=self.stop, next_chunk=next_chunk)
        self.recorder = draft.recorder if draft is not None else AnswerRecorder()
        self.recorder.send = self.journal.add
        self.early_end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the answer need not go on: it was stopped, or is ending."""
        # A message that steers may have got in line while the turn waited: nobody signals it again.
        self._read_mail = -1 if any(message.steers(self.head) for message in self.head.queue) else 0

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
        if self.journal.signals.mail != self._read_mail:
            self._read_mail = self.journal.signals.mail
            after = await self.setup.settle(self._join)
            if after is not None and after.turn is not None:
                self.head, self.turn = after, after.turn
        return bool([each for each in self.turn.joined if self.recorder.steering(each.id, each.text)])

    def _join(self, head: SessionHead) -> Join | None:
        steering = tuple(each for each in head.queue if each.steers(head) and not each.is_stopped)
        return Join(self.turn.run, steering) if steering else None


def _progress(base: SessionMessage | None, draft: Draft | None) -> Progress:
    """Return the progress that a run starts with: of an answer that goes on, and of dead processes."""
    progress = Progress()
    if base is not None:
        progress.usage = base.usage
        progress.steps = sum(isinstance(part, StepPart) for part in base.parts)
        progress.models = [*(base.metadata.get("models") or filter(None, [base.metadata.get("model")]))]
    if draft is not None:
        progress.usage += sum(draft.calls, Usage())
        progress.steps += len(draft.steps)
        progress.models += [step.model for step in draft.steps]
        progress.tool_calls = sum(len(step.calls) for step in draft.steps[:-1])
        calls = [part for part in draft.recorder.parts if isinstance(part, ToolPart)]
        progress.tool_errors = sum(part.error is not None for part in calls)
        first = next((step.first_token_at for step in draft.steps if step.first_token_at is not None), None)
        if first is not None:
            progress.first_token_at = time.monotonic() - (time.time() - first)
    return progress
