"""Mutants of the rules: each must be found by the explorer, else it does not test that rule."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from omniagent.session.live import Change, SessionHead, SessionState
from omniagent.session.query import Query
from omniagent.turns import decisions, state_events
from omniagent.turns import state as states
from tests.model.explorer import Bounds, Explorer
from tests.model.machine import Rules, Violation

Transition = Callable[[SessionHead, state_events.Event, datetime], Change]


def _ignores_run(session: SessionHead, event: state_events.Event, now: datetime) -> Change:
    if isinstance(event, state_events.End) and session.turn is not None:
        event = replace(event, run=session.turn.run)
    return states.transition(session, event, now)


def _keeps_in_line(kind: type[Any]) -> Transition:
    def transition(session: SessionHead, event: state_events.Event, now: datetime) -> Change:
        change = states.transition(session, event, now)
        return replace(change, after=replace(change.after, queue=session.queue)) if isinstance(event, kind) else change

    return transition


def _queues_twice(session: SessionHead, event: state_events.Event, now: datetime) -> Change:
    if not isinstance(event, state_events.Enqueue):
        return states.transition(session, event, now)
    others = tuple(message for message in session.queue if message.id != event.message.id)
    change = states.transition(replace(session, queue=others), event, now)
    return replace(change, after=replace(change.after, queue=(*session.queue, event.message)))


def _forgets_line(state: SessionState, query: Query, **options: Any) -> decisions.Decision:
    return states.decide(replace(state, head=replace(state.head, queue=())), query, **options)


def _forgets_history(state: SessionState, query: Query, **options: Any) -> decisions.Decision:
    return states.decide(replace(state, earlier=None), query, **options)


def _drops_question(session: SessionHead, event: state_events.Event, now: datetime) -> Change:
    change = states.transition(session, event, now)
    kept = tuple(message for message in change.inserted if message.role != "user")
    return replace(change, inserted=kept) if isinstance(event, state_events.End) else change


def _replies_again(session: SessionHead, event: state_events.Event, now: datetime) -> Change:
    if isinstance(event, state_events.Reply) and session.turn is not None:
        session = replace(session, turn=replace(session.turn, state="waiting"))
    return states.transition(session, event, now)


def _leaves_leaf(session: SessionHead, event: state_events.Event, now: datetime) -> Change:
    change = states.transition(session, event, now)
    is_end = isinstance(event, state_events.End | state_events.Wait)
    return replace(change, after=replace(change.after, leaf=session.leaf)) if is_end else change


def _answers_in_place(session: SessionHead, event: state_events.Event, now: datetime) -> Change:
    if isinstance(event, state_events.Begin) and session.leaf.order > 1:
        event = replace(event, turn=replace(event.turn, number=session.leaf.turn_number, branch=0, lineage=()))
    return states.transition(session, event, now)


_STEER, _LINE = Bounds(1, 0, 1, 1, 0), Bounds(1, 0, 1, 1, 0, busy=("queue", "queue"))
_REPLY = Bounds(0, 0, 0, 0, 0, 2)
MUTANTS: dict[str, tuple[Rules, Bounds]] = {
    "the history is read before the live state": (Rules(reads_live_first=False), _STEER),
    "a write does not compare the version": (Rules(compares_version=False), _STEER),
    "a number of the journal is written twice": (Rules(numbers_once=False), _STEER),
    "a tool in doubt runs again": (Rules(runs_in_doubt=True), _STEER),
    "a tool runs before the journal says so": (Rules(writes_before_tools=False), _STEER),
    "an end does not compare the run": (Rules(transition=_ignores_run), _STEER),
    "a message that joins stays in line": (Rules(transition=_keeps_in_line(state_events.Join)), _STEER),
    "a message that begins stays in line": (Rules(transition=_keeps_in_line(state_events.Begin)), _LINE),
    "a message in line is not looked for": (Rules(decide=_forgets_line, transition=_queues_twice), _LINE),
    "the history is not looked at": (Rules(decide=_forgets_history), _STEER),
    "an end does not store the question": (Rules(transition=_drops_question), _STEER),
    "the leaf does not follow an answer": (Rules(transition=_leaves_leaf), _STEER),
    "an answer is stored in the place of another": (Rules(transition=_answers_in_place), _LINE),
    "a request is replied to again": (Rules(transition=_replies_again, compares_version=False), _REPLY),
}


def find(name: str, limit: int = 200_000) -> str:
    """Return the violation that a mutant leads to, or an empty text."""
    rules, bounds = MUTANTS[name]
    try:
        Explorer(bounds, rules).explore(limit)
    except Violation as violation:
        return str(violation)
    return ""


def main() -> None:
    """Print what each mutant leads to."""
    for name in MUTANTS:
        found = find(name)
        print(f"mutant: {name}: {f'found: {found[:80]}' if found else 'NOT FOUND'}", flush=True)
        if not found:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
