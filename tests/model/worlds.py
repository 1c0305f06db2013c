"""A world: a session, its history, the journals and signals of its turns, and the processes that work on it."""

from typing import Any, NamedTuple

from tests.model.machine import History, Session, Turn, Violation

MESSAGES = (0, 1)
Journal = tuple[tuple[str, int], ...]
"""Records (kind, run), each number written once."""


class Process(NamedTuple):
    pid: int
    kind: str
    message: int
    step: str
    data: Any = None


class World(NamedTuple):
    session: Session
    history: History
    journals: tuple[Journal, ...]
    """By message: that of its turn, then that after it waited."""
    stopped: frozenset[int]
    """The journals that were sent a stop."""
    tools: tuple[int, ...]
    begun: tuple[int, ...]
    ended: tuple[int, ...]
    replied: int
    accepted: frozenset[int]
    processes: tuple[Process, ...]
    next_pid: int
    crashes: int
    lost: int
    suspicions: int
    resends: int
    stops: int
    replies: int


class At(NamedTuple):
    """The next step of one process."""

    world: World
    others: tuple[Process, ...]
    me: Process

    @property
    def session(self) -> Session:
        return self.world.session

    def go(self, step: str, data: Any = None, **changes: Any) -> World:
        """Return the world in which this process does that step next."""
        me = self.me._replace(step=step, data=data)
        processes = tuple(sorted((*self.others, me), key=lambda each: each.pid))
        return self.world._replace(processes=processes, **changes)

    def write(self, event: tuple[Any, ...], session: Session | None = None, **changes: Any) -> World:
        """Write an event next, from this session or as it is now."""
        return self.go("write", (session or self.session, event), **changes)

    def leave(self, **changes: Any) -> World:
        return self.world._replace(processes=self.others, **changes)

    def later(self, **changes: Any) -> "At":
        return self._replace(world=self.world._replace(**changes))

    def is_alive(self, turn: Turn) -> bool:
        return turn.run == self.me.pid or any(process.pid == turn.run for process in self.others)

    def is_mine(self, turn: Turn | None) -> bool:
        """Whether a turn answers this process's message."""
        return turn is not None and self.me.message in (turn.message, *turn.joined)


def check(world: World) -> None:
    """Raise `Violation` if a promise is broken."""
    session, history = world.session, world.history
    turn = session.turn
    queued = [message for message, _ in session.queue]
    live = [*queued, *([turn.message] if turn is not None and turn.is_new else []), *(turn.joined if turn else ())]
    done = [stored.message for stored in history]
    answers = [(stored.spot.branch, stored.number) for stored in history if stored.joined < 0]
    for is_broken, promise in (
        (len(live) != len(set(live)) or len(done) != len(set(done)), "a message is there twice"),
        (set(live) & set(done), "a message is live and in the history"),
        (max(world.tools) > 1, "a tool ran twice"),
        (max(world.begun) > 1, "a message has two turns"),
        (max(world.ended) > 1, "a turn ended twice"),
        (world.replied > 1, "a request was replied to twice"),
        (world.accepted - set(live) - set(done), "an accepted message is gone"),
        (session.leaf.turn_number != max((s.number for s in history), default=0), "the leaf is not the end"),
        (len(answers) != len(set(answers)), "two answers are in the same place"),
    ):
        if is_broken:
            raise Violation(promise)


def is_settled(world: World) -> bool:
    return not world.processes and world.session.turn is None and not world.session.queue


def with_process(world: World, process: Process, **changes: Any) -> World:
    processes = tuple(sorted((*world.processes, process), key=lambda each: each.pid))
    return world._replace(processes=processes, next_pid=world.next_pid + 1, **changes)


def added(counts: tuple[int, ...], index: int) -> tuple[int, ...]:
    return (*counts[:index], counts[index] + 1, *counts[index + 1 :])


def counted(world: World, event: tuple[Any, ...], session: Session, history: History) -> World:
    """Count what an event has done."""
    changes: dict[str, Any] = {"session": session, "history": history}
    turn = world.session.turn
    if (
        event[0] == "end"
        and turn is not None
        and any(run != event[1] for _, run in world.journals[journal_of(turn)][-1:])
    ):
        raise Violation("the stored answer is not the one in the journal")
    match event:
        case ("begin", int(message), _, True, _):
            changes["begun"] = added(world.begun, message)
        case ("begin", int(message), _, _, _):  # it was stopped, and is answered again
            changes["ended"] = tuple(0 if m == message else count for m, count in enumerate(world.ended))
        case ("end", _, _, str(status)) if status != "waiting" and world.session.turn is not None:
            changes["ended"] = added(world.ended, world.session.turn.message)
        case ("reply", _):
            changes["replied"] = world.replied + 1
    return world._replace(**changes)


def journal_of(turn: Turn) -> int:
    return turn.message + (len(MESSAGES) if turn.goes_on else 0)
