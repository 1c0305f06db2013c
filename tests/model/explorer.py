"""Explores every interleaving of processes that run the real `decide` and `transition`: `make model`.

A world is a session's document, its history, the journal and the signals of its turns, and some processes: requests
that send a message, reply to a waiting turn or stop it, and the sweep. A process does one remote read or write at a
time. Between any two of them it may be killed, a write's reply may be lost, and a live process may be taken for dead.

Checked in every world: a message has one home (P3); an accepted message is never gone (P1); no message gets two turns
or two endings (P2, P4); no tool runs twice (P4, P9); a reply counts once (P8); what is stored is what the journal says;
the leaf is the end of what was said, and no two answers are in the same place.
At the end: from every world, one in which everything accepted is answered can be reached (P9).
"""

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from omniagent.messages import CallRequest, Part, SteeringPart, TextPart, ToolPart
from omniagent.session.live import (
    ROOT,
    Change,
    LiveTurn,
    Place,
    QueuedMessage,
    SessionHead,
    SessionMessage,
    SessionState,
    Spot,
)
from omniagent.session.query import Query
from omniagent.settings import Busy
from omniagent.turns import decisions, state_events
from omniagent.turns import state as states

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=30)
MESSAGES = (0, 1)


class Violation(Exception):
    """A promise is broken."""


class Turn(NamedTuple):
    """`LiveTurn`, without what does not matter here."""

    message: int
    number: int
    run: int
    state: str
    goes_on: bool
    joined: tuple[int, ...]
    is_new: bool
    spot: Spot = Spot(0, ())
    """Where its answer goes."""


class Session(NamedTuple):
    """`SessionHead`."""

    version: int = 0
    leaf: Place = ROOT
    branches: int = 0
    turn: Turn | None = None
    queue: tuple[tuple[int, bool], ...] = ()
    """Messages in line, and whether they were stopped."""


class Stored(NamedTuple):
    """A user's message in the history."""

    message: int
    number: int
    status: str
    joined: int = -1
    """The message whose answer it has joined."""
    spot: Spot = Spot(0, ())
    """Where its newest answer is."""


History = tuple[Stored, ...]
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


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may go wrong in one world."""

    crashes: int = 1
    lost: int = 1
    suspicions: int = 1
    resends: int = 1
    stops: int = 1
    replies: int = 0
    busy: tuple[Busy, Busy] = ("reject", "steer")


@dataclass(slots=True)
class Rules:
    """The rules under test. A mutant replaces one of them."""

    decide: Callable[..., decisions.Decision] = states.decide
    transition: Callable[..., Change] = states.transition
    compares_version: bool = True
    reads_live_first: bool = True
    numbers_once: bool = True
    runs_in_doubt: bool = False
    writes_before_tools: bool = True


@dataclass(slots=True)
class Explorer:
    """Explores all worlds within the bounds."""

    bounds: Bounds = Bounds()
    rules: Rules = field(default_factory=Rules)
    _decided: dict[Any, decisions.Decision] = field(default_factory=dict)
    _changed: dict[Any, tuple[Session, History] | None] = field(default_factory=dict)

    # --- The real functions, on small values ---

    def decision(self, session: Session, history: History, message: int, *, dead: bool) -> decisions.Decision:
        key = (session, history, message, dead)
        if key not in self._decided:
            query = Query(f"text {message}", f"m{message}", busy=self.bounds.busy[message])
            self._decided[key] = self.rules.decide(_state(session, history, message), query, now=NOW, dead=dead)
        return self._decided[key]

    def change(self, session: Session, history: History, event: tuple[Any, ...]) -> tuple[Session, History] | None:
        """Return the session and the history after an event. None if it does not fit."""
        key = (session, history, event)
        if key not in self._changed:
            try:
                change = self.rules.transition(_head(session), self._event(session, event), NOW)
            except states.Moved:
                self._changed[key] = None
            else:
                self._changed[key] = (_session(change, session), _history(history, change))
        return self._changed[key]

    def _event(self, session: Session, event: tuple[Any, ...]) -> state_events.Event:  # noqa: PLR0911 - one per event
        match event:
            case ("begin", int(message), int(run), bool(is_new), int(number)):
                leaf = session.leaf
                spot = Spot.after(leaf, fork=None)
                if not is_new:  # beside its answer, which is the latest
                    spot = Spot.after(leaf.before(f"m{message}"), fork=session.branches + 1)
                begun = Turn(message, number, run, "running", False, (), is_new, spot)
                return state_events.Begin(_live(begun))
            case ("enqueue", int(message)):
                return state_events.Enqueue(
                    QueuedMessage(f"text {message}", f"m{message}", busy=self.bounds.busy[message])
                )
            case ("join", int(run), joined):
                messages = tuple(QueuedMessage(f"text {m}", f"m{m}", busy=self.bounds.busy[m]) for m in joined)
                return state_events.Join(str(run), messages)
            case ("take", int(run)):
                return state_events.TakeOver(str(run))
            case ("end", int(run), joined, str(status)):
                return _ending(session, run, joined, status)
            case ("reply", int(run)):
                return state_events.Reply(str(run), _answer(_running(session), (), "waiting", replied=True))
            case ("close",):
                return state_events.Close(_answer(_running(session), (), "cancelled"))
            case ("stop", int(message)):
                return state_events.StopQueued(f"m{message}")
        raise ValueError(event)

    # --- Steps ---

    def start(self) -> World:
        bounds = self.bounds
        senders = tuple(Process(m, "send", m, "load") for m in MESSAGES)
        return World(
            Session(), (), ((), (), (), ()), frozenset(), (0, 0, 0, 0), (0, 0), (0, 0), 0, frozenset(), senders, 2,
            bounds.crashes, bounds.lost, bounds.suspicions, bounds.resends, bounds.stops, bounds.replies,
        )  # fmt: skip

    def successors(self, world: World) -> Iterator[World]:
        for index, process in enumerate(world.processes):
            others = world.processes[:index] + world.processes[index + 1 :]
            if world.crashes:
                yield world._replace(processes=others, crashes=world.crashes - 1)
            yield from getattr(self, f"_{process.step}")(At(world, others, process))
        pid = world.next_pid
        if world.resends:
            for message in MESSAGES:
                yield _with(world, Process(pid, "send", message, "load"), resends=world.resends - 1)
        if world.stops:
            for message in MESSAGES:
                yield _with(world, Process(pid, "stop", message, "stop"), stops=world.stops - 1)
        turn = world.session.turn
        if world.replies and turn is not None and turn.state == "waiting":
            yield _with(world, Process(pid, "reply", turn.message, "reply"), replies=world.replies - 1)
        if not world.processes and (turn is not None or world.session.queue):
            if turn is not None and turn.state == "waiting":
                yield _with(world, Process(pid, "reply", turn.message, "reply"))  # somebody replies in the end
            else:
                yield _with(world, Process(pid, "sweep", -1, "sweep"))

    def _load(self, at: At) -> Iterator[World]:
        """Read the live state; the history is read next."""
        yield at.go("decide", at.session if self.rules.reads_live_first else at.world.history)

    def _decide(self, at: At) -> Iterator[World]:
        session, history = at.session, at.world.history
        if self.rules.reads_live_first:
            session = at.me.data
        else:
            history = at.me.data
        turn = session.turn
        is_running = turn is not None and turn.state == "running"
        is_gone = turn is not None and is_running and not at.is_alive(turn)
        yield from self._decided_as(at, session, history, dead=is_gone)
        if is_running and not is_gone and at.world.suspicions:
            yield from self._decided_as(at.later(suspicions=at.world.suspicions - 1), session, history, dead=True)

    def _decided_as(self, at: At, session: Session, history: History, *, dead: bool) -> Iterator[World]:
        me, accepted = at.me, at.world.accepted | {at.me.message}
        match self.decision(session, history, me.message, dead=dead):
            case decisions.Replay():
                yield at.leave(accepted=accepted)
            case decisions.Run(is_new=is_new, message=message, closes=None):
                yield at.write(("begin", me.message, me.pid, is_new, message.turn_number), session)
            case decisions.Follow():
                yield at.go("follow", accepted=accepted)
            case decisions.GoOn():
                yield at.write(("take", me.pid), session, accepted=accepted)
            case decisions.GetInLine(closes=None):
                yield at.write(("enqueue", me.message), session)
            case decisions.WaitInLine():
                yield at.go("wait", accepted=accepted)
            case _:  # refused, or it would close the requests of a waiting turn: not explored
                yield at.leave()

    def _write(self, at: At) -> Iterator[World]:
        """Compare and set. A lost reply ends a request with an error; whoever owns a turn reads again."""
        world, (seen, event, *_) = at.world, at.me.data
        is_current = world.session.version == seen.version or not self.rules.compares_version
        changed = self.change(at.session, world.history, event) if is_current else None
        if changed is None:
            yield at.leave() if is_current and event[0] == "end" else self._refused(at, event)  # taken over
            return
        after = _counted(world, event, *changed)
        yield self._applied(At(after, at.others, at.me), event)
        if world.lost:
            for unknown in (after, world):
                lost = At(unknown._replace(lost=world.lost - 1), at.others, at.me)
                # Otherwise the request fails, or the process gives the turn up.
                yield lost.go("end", event) if event[0] == "end" else lost.leave()

    def _applied(self, at: At, event: tuple[Any, ...]) -> World:
        accepted = at.world.accepted | ({at.me.message} if at.me.kind == "send" else set())
        turn = at.session.turn
        match event[0]:
            case "begin" if turn is not None and turn.is_new:
                return at.go("work", (_journal(turn), ()), accepted=accepted)
            case "begin" | "take" | "reply":  # what ran before is kept
                return at.go("own", accepted=accepted)
            case "enqueue":
                return at.go("wait", accepted=accepted)
            case "join":
                return at.go("work", at.me.data[2:])
        return at.leave()

    def _refused(self, at: At, event: tuple[Any, ...]) -> World:
        """The session has moved on."""
        if event[0] == "end":
            return at.go("end", event)
        if event[0] == "join":
            return at.go("work", at.me.data[2:])
        return at.go(_FIRST[at.me.kind])

    def _own(self, at: At) -> Iterator[World]:
        """Read the journal of a turn that was taken over or goes on, then write the first record behind it."""
        turn = at.session.turn
        if turn is None or turn.run != at.me.pid:
            yield at.leave()
        else:
            yield at.go("sign", (_journal(turn), at.world.journals[_journal(turn)]))

    def _work(self, at: At) -> Iterator[World]:
        """The model may call a tool, ask a human once, or end. Messages that steer join first."""
        pid, (journal, seen) = at.me.pid, at.me.data
        kinds = [kind for kind, _ in seen]
        turn = at.session.turn if at.session.turn is not None and at.session.turn.run == pid else None
        steering = tuple(m for m, stopped in at.session.queue if self.bounds.busy[m] == "steer" and not stopped)
        if steering and turn is not None:
            yield at.go("write", (at.session, ("join", pid, steering), journal, seen))
            return
        joined = turn.joined if turn is not None else ()
        ending = at.go("end", ("end", pid, joined, "complete"))
        if journal in at.world.stopped:
            yield at.go("end", ("end", pid, joined, "cancelled"))
            return
        if "ran" in kinds or ("tools" in kinds and not self.rules.runs_in_doubt):
            yield ending  # in doubt: the model reads that the outcome is unknown
            return
        yield at.go("tools" if self.rules.writes_before_tools else "tool", at.me.data)
        yield ending
        if self.bounds.replies and turn is not None and not turn.goes_on and turn.message == 0:
            yield at.go("end", ("end", pid, joined, "waiting"))

    def _tool(self, at: At) -> Iterator[World]:
        yield at.go("ran", at.me.data, tools=_added(at.world.tools, at.me.data[0]))

    def _sign(self, at: At) -> Iterator[World]:
        yield from self._append(at, "own", "work", refused=at.go("own"))

    def _tools(self, at: At) -> Iterator[World]:
        yield from self._append(at, "tools", "tool", refused=at.leave())

    def _ran(self, at: At) -> Iterator[World]:
        yield from self._append(at, "ran", "work", refused=at.leave())

    def _append(self, at: At, kind: str, after: str, *, refused: World) -> Iterator[World]:
        """Write the next record of the journal. Its number is written once; a lost reply finds itself done."""
        number, seen = at.me.data
        journals = at.world.journals
        journal, record = journals[number], (kind, at.me.pid)
        if len(journal) > len(seen) and journal[len(seen)] == record:
            yield at.go(after, (number, journal[: len(seen) + 1]))
        elif len(journal) == len(seen) or not self.rules.numbers_once:
            grown = (*journals[:number], (*journal, record), *journals[number + 1 :])
            yield at.go(after, (number, (*journal, record)), journals=grown)
            if at.world.lost:
                for journals in (grown, at.world.journals):
                    yield at.go(at.me.step, at.me.data, journals=journals, lost=at.world.lost - 1)
        else:
            yield refused

    def _end(self, at: At) -> Iterator[World]:
        """Read the session, then end the turn by compare and set."""
        turn, (_, run, joined, status) = at.session.turn, at.me.data
        if turn is None:
            yield at.leave()  # stored by an earlier try, or by a successor
        else:
            yield at.write(("end", run, turn.joined if turn.run == run else joined, status))

    def _wait(self, at: At) -> Iterator[World]:
        """In line: begin the turn when it is its turn, follow it, or take over what stands before it."""
        turn = at.session.turn
        if at.is_mine(turn):
            yield at.go("follow", at.me.data)
        elif all(message != at.me.message for message, _ in at.session.queue):
            yield at.leave()
        else:
            yield from self._sweep(at)

    def _follow(self, at: At) -> Iterator[World]:
        yield from self._sweep(at) if at.is_mine(at.session.turn) else [at.leave()]

    def _sweep(self, at: At) -> Iterator[World]:
        """Begin the first message in line, or take over a turn whose process is gone, or seems to be."""
        session, turn = at.session, at.session.turn
        if turn is None and session.queue:
            yield at.write(("begin", session.queue[0][0], at.me.pid, True, session.leaf.turn_number + 1))
        elif turn is None or turn.state == "waiting":
            yield at.leave()
        elif not at.is_alive(turn):
            yield at.write(("take", at.me.pid))
        elif at.world.suspicions and turn.run != at.me.pid:
            yield at.write(("take", at.me.pid), suspicions=at.world.suspicions - 1)

    def _stop(self, at: At) -> Iterator[World]:
        turn, message = at.session.turn, at.me.message
        if (message, False) in at.session.queue:
            yield at.write(("stop", message))
        elif turn is None or not at.is_mine(turn):
            yield at.leave()
        elif turn.state == "running":
            yield at.leave(stopped=at.world.stopped | {_journal(turn)})
        else:
            yield at.write(("close",))

    def _reply(self, at: At) -> Iterator[World]:
        """Reply to a waiting turn. One that goes on already was given this reply: a retry follows it."""
        turn = at.session.turn
        if turn is None or turn.message != at.me.message or turn.state != "waiting":
            yield at.leave()
        else:
            yield at.write(("reply", at.me.pid))

    # --- Exploration ---

    def explore(self, limit: int | None = None) -> int:
        """Explore all worlds, breadth first, and return their number. Raises `Violation`."""
        start = self.start()
        known = {start: 0}
        order, settled = [start], [False]
        heads, tails = array("I"), array("I")
        todo = deque([start])
        while todo:
            world = todo.popleft()
            here = known[world]
            for after in self.successors(world):
                there = known.get(after)
                if there is None:
                    check(after)
                    there = known[after] = len(order)
                    order.append(after)
                    settled.append(_is_settled(after))
                    todo.append(after)
                heads.append(here)
                tails.append(there)
            if limit is not None and len(order) > limit:
                return len(order)
        self._check_settling(order, settled, heads, tails)
        return len(order)

    def _check_settling(
        self, order: list[World], settled: list[bool], heads: "array[int]", tails: "array[int]"
    ) -> None:
        """From every world, one in which everything accepted is answered must be reachable."""
        before: list[list[int]] = [[] for _ in order]
        for head, tail in zip(heads, tails, strict=True):
            before[tail].append(head)
        todo = deque(index for index, is_settled in enumerate(settled) if is_settled)
        while todo:
            for index in before[todo.popleft()]:
                if not settled[index]:
                    settled[index] = True
                    todo.append(index)
        stuck = [world for world, is_settled in zip(order, settled, strict=True) if not is_settled]
        if stuck:
            raise Violation(f"{len(stuck)} worlds from which nothing settles, such as {stuck[0]}")


_FIRST = {"send": "load", "stop": "stop", "reply": "reply", "sweep": "sweep"}


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


def _is_settled(world: World) -> bool:
    return not world.processes and world.session.turn is None and not world.session.queue


def _with(world: World, process: Process, **changes: Any) -> World:
    processes = tuple(sorted((*world.processes, process), key=lambda each: each.pid))
    return world._replace(processes=processes, next_pid=world.next_pid + 1, **changes)


def _added(counts: tuple[int, ...], index: int) -> tuple[int, ...]:
    return (*counts[:index], counts[index] + 1, *counts[index + 1 :])


def _counted(world: World, event: tuple[Any, ...], session: Session, history: History) -> World:
    """Count what an event has done."""
    changes: dict[str, Any] = {"session": session, "history": history}
    turn = world.session.turn
    if (
        event[0] == "end"
        and turn is not None
        and any(run != event[1] for _, run in world.journals[_journal(turn)][-1:])
    ):
        raise Violation("the stored answer is not the one in the journal")
    match event:
        case ("begin", int(message), _, True, _):
            changes["begun"] = _added(world.begun, message)
        case ("begin", int(message), _, _, _):  # it was stopped, and is answered again
            changes["ended"] = tuple(0 if m == message else count for m, count in enumerate(world.ended))
        case ("end", _, _, str(status)) if status != "waiting" and world.session.turn is not None:
            changes["ended"] = _added(world.ended, world.session.turn.message)
        case ("reply", _):
            changes["replied"] = world.replied + 1
    return world._replace(**changes)


def _journal(turn: Turn) -> int:
    return turn.message + (len(MESSAGES) if turn.goes_on else 0)


def _running(session: Session) -> Turn:
    if session.turn is None:
        raise ValueError("no turn")
    return session.turn


def _ending(session: Session, run: int, joined: tuple[int, ...], status: str) -> state_events.Event:
    if session.turn is None:
        raise states.Moved("the turn has ended")
    answer = _answer(session.turn, joined, status)
    return state_events.Wait(str(run), answer) if status == "waiting" else state_events.End(str(run), answer)


def _answer(turn: Turn, joined: tuple[int, ...], status: Any, *, replied: bool = False) -> SessionMessage:
    parts: list[Part] = [SteeringPart(message_id=f"m{m}", text=f"text {m}") for m in joined]
    if status == "waiting":
        request = CallRequest(id="r", kind="approval", expires_at=LATER, approved=True if replied else None)
        parts.append(ToolPart(call_id="c", name="tool", input={}, request=request))
    return SessionMessage(
        f"t{turn.message}",
        "assistant",
        turn.number,
        [*parts, TextPart(text="answer")],
        status,
        parent=f"m{turn.message}",
        branch=turn.spot.branch,
        lineage=turn.spot.lineage,
    )


def _live(turn: Turn) -> LiveTurn:
    turn_id, spot = f"t{turn.message}", turn.spot
    return LiveTurn(
        turn_id,
        turn.number,
        str(turn.run),
        f"{turn_id}.goes-on" if turn.goes_on else turn_id,
        f"m{turn.message}",
        NOW,
        f"m{turn.message}",
        state=turn.state,  # type: ignore[arg-type]
        message=_question(turn.message, turn.number, spot) if turn.is_new else None,
        joined=tuple(QueuedMessage(f"text {m}", f"m{m}", busy="steer") for m in turn.joined),
        until=LATER if turn.state == "waiting" else None,
        branch=spot.branch,
        lineage=spot.lineage,
    )


def _head(session: Session) -> SessionHead:
    live = _live(session.turn) if session.turn is not None else None
    queue = tuple(QueuedMessage(f"text {m}", f"m{m}", busy="steer", is_stopped=stopped) for m, stopped in session.queue)
    return SessionHead(session.version, session.leaf, session.branches, live, queue, changed_at=NOW)


def _session(change: Change, before: Session) -> Session:
    head = change.after
    live = head.turn
    turn = None
    if live is not None:
        joined = tuple(int(message.id[1:]) for message in live.joined)
        is_new = live.message is not None
        message = int(live.message_id[1:])
        turn = Turn(
            message,
            live.number,
            int(live.run),
            live.state,
            live.journal != live.id,
            joined,
            is_new,
            Spot(live.branch, live.lineage),
        )
    queue = tuple((int(message.id[1:]), message.is_stopped) for message in head.queue)
    return Session(before.version + 1, _leaf(change), head.branches, turn, queue)


def _leaf(change: Change) -> Place:
    """Return the leaf. The answer of a message that was stopped in line has a random id: it gets that of a turn."""
    asked = {message.node: message.id for message in change.inserted if message.role == "user"}
    answered = {message.node: asked.get(message.parent) for message in change.inserted if message.role != "user"}
    leaf = change.after.leaf
    message_id = answered.get(leaf.node)
    return leaf if message_id is None else replace(leaf, node=f"t{message_id[1:]}")


def _history(history: History, change: Change) -> History:
    """Return the history after a change, with the status of each message's answer."""
    stored = {each.message: each for each in history}
    answers = {
        message.turn_number: message for message in (*change.inserted, *change.changed) if message.role != "user"
    }
    for message in change.inserted:
        if message.role == "user":
            index = int(message.id[1:])
            if index in stored:
                raise Violation("a message is stored twice")
            answer = answers[message.turn_number]
            spot = Spot(answer.branch, answer.lineage)
            stored[index] = Stored(index, message.turn_number, answer.status, spot=spot)
    for answer in answers.values():
        owner = int(answer.id[1:]) if answer.id.startswith("t") else -1
        if owner in stored:
            stored[owner] = stored[owner]._replace(status=answer.status, spot=Spot(answer.branch, answer.lineage))
        for message_id in answer.steering_ids:
            index = int(message_id[1:])
            stored.setdefault(index, Stored(index, answer.turn_number, answer.status, owner))
    return tuple(stored[index] for index in sorted(stored))


def _state(session: Session, history: History, message: int) -> SessionState:
    """Return what `SessionManager.load` would."""
    head = _head(session)
    by_message = {stored.message: stored for stored in history}
    found = by_message.get(message)
    if found is None:
        return SessionState(head, after=head.leaf)
    owner = found if found.joined < 0 else by_message[found.joined]
    question, answer = _question(owner.message, owner.number), _stored_answer(owner, history)
    earlier = question if found.joined < 0 else answer
    after = answer.place.before(question.node)
    return SessionState(head, after=after, is_end=False, earlier=earlier, question=question, answer=answer)


def _question(message: int, number: int, spot: Spot = Spot(0, ())) -> SessionMessage:
    parts = [TextPart(text=f"text {message}")]
    return SessionMessage(f"m{message}", "user", number, parts, branch=spot.branch, lineage=spot.lineage)


def _stored_answer(stored: Stored, history: History) -> SessionMessage:
    joined = tuple(each.message for each in history if each.joined == stored.message)
    turn = Turn(stored.message, stored.number, 0, "running", False, joined, False, stored.spot)
    return _answer(turn, joined, stored.status)


def main() -> None:
    """Explore several bounds and print what was found."""
    total = 0
    for bounds in (
        Bounds(1, 1, 0, 0, 1),
        Bounds(2, 0, 1, 0, 0),
        Bounds(1, 1, 1, 1, 0),
        Bounds(1, 0, 1, 1, 1),
        Bounds(1, 1, 0, 0, 0, 2),
        Bounds(1, 0, 1, 0, 1, 1),
        Bounds(1, 1, 1, 1, 0, busy=("queue", "queue")),
        Bounds(1, 1, 1, 0, 1, busy=("queue", "steer")),
    ):
        began = time.monotonic()
        count = Explorer(bounds).explore()
        total += count
        print(f"{count:>9,} worlds in {time.monotonic() - began:4.0f} s: {bounds}", flush=True)
    print(f"{total:,} worlds, 0 violations", flush=True)


if __name__ == "__main__":
    main()
