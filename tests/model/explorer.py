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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from omniagent.settings import Busy
from omniagent.turns import decisions
from tests.model.machine import History, Machine, Rules, Session, Violation
from tests.model.worlds import MESSAGES, At, Process, World, added, check, counted, is_settled, journal_of, with_process


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
class Explorer:
    """Explores all worlds within the bounds."""

    bounds: Bounds = Bounds()
    rules: Rules = field(default_factory=Rules)
    _machine: Machine = field(init=False)

    def __post_init__(self) -> None:
        self._machine = Machine(self.bounds.busy, self.rules)

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
                yield with_process(world, Process(pid, "send", message, "load"), resends=world.resends - 1)
        if world.stops:
            for message in MESSAGES:
                yield with_process(world, Process(pid, "stop", message, "stop"), stops=world.stops - 1)
        turn = world.session.turn
        if world.replies and turn is not None and turn.state == "waiting":
            yield with_process(world, Process(pid, "reply", turn.message, "reply"), replies=world.replies - 1)
        if not world.processes and (turn is not None or world.session.queue):
            if turn is not None and turn.state == "waiting":
                yield with_process(world, Process(pid, "reply", turn.message, "reply"))  # somebody replies in the end
            else:
                yield with_process(world, Process(pid, "sweep", -1, "sweep"))

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
        match self._machine.decision(session, history, me.message, dead=dead):
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
        changed = self._machine.change(at.session, world.history, event) if is_current else None
        if changed is None:
            yield at.leave() if is_current and event[0] == "end" else self._refused(at, event)  # taken over
            return
        after = counted(world, event, *changed)
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
                return at.go("work", (journal_of(turn), ()), accepted=accepted)
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
            yield at.go("sign", (journal_of(turn), at.world.journals[journal_of(turn)]))

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
        yield at.go("ran", at.me.data, tools=added(at.world.tools, at.me.data[0]))

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
            yield at.leave(stopped=at.world.stopped | {journal_of(turn)})
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
                    settled.append(is_settled(after))
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
