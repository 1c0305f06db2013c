"""What one part of a turn costs: two stacks, one with and one without it, measured alternately."""

import statistics
import time
from collections.abc import Callable
from urllib.request import urlopen

from bench.client import Client
from bench.cold import first_byte
from bench.figure import Figure
from bench.warm import drain, new_session, whole_turn
from local.background import BackgroundStack

NOISE = 1.02
"""The watch delays at most by 2 %. Cold starts vary by as much by chance."""


def chunk_log(logged: BackgroundStack, unlogged: BackgroundStack, deltas: int, rounds: int) -> Figure:
    """Time of a long answer, from the request to its end."""
    for stack in (logged, unlogged):
        drain(Client(stack.url), "[burst:1]")

    def measure(stack: BackgroundStack) -> float:
        started = time.monotonic()
        drain(Client(stack.url), f"[burst:{deltas}]")
        return time.monotonic() - started

    ours, theirs = (min(times) for times in _alternately(measure, (logged, unlogged), rounds))
    name, note = f"{deltas:,} deltas with the chunk log", f"best of {rounds} each, measured in turns"
    return Figure(name, "s", ours, {"without": theirs}, ours / theirs, 1.05, note)


def watched_first_token(watched: BackgroundStack, unwatched: BackgroundStack, queue_url: str, turns: int) -> Figure:
    """Time from the request to the first token at the client, with a model that thinks for 30 ms."""
    sessions = {id(stack): new_session() for stack in (watched, unwatched)}

    def measure(stack: BackgroundStack) -> float:
        return whole_turn(Client(stack.stack.emulator.url_of("chat")), sessions[id(stack)])

    for stack in (watched, unwatched):
        measure(stack)
    before = _accepted(queue_url)
    figure = _medians("first token with the run queue", "ms", measure, (watched, unwatched), turns)
    sent = _accepted(queue_url) - before
    if sent != turns:
        raise RuntimeError(f"{turns} watched turns sent {sent} watch messages")
    return figure


def _accepted(queue_url: str) -> int:
    """Return how many messages the queue has accepted."""
    with urlopen(queue_url) as answer:
        return int(answer.read())


def watched_cold_start(watched: BackgroundStack, unwatched: BackgroundStack, runs: int) -> Figure:
    """Time from spawn to first byte."""
    return _medians("cold start with the run queue", "s", first_byte, (watched, unwatched), 2 * runs)


def _medians(
    name: str,
    unit: str,
    measure: Callable[[BackgroundStack], float],
    stacks: tuple[BackgroundStack, BackgroundStack],
    rounds: int,
) -> Figure:
    ours, theirs = (statistics.median(times) for times in _alternately(measure, stacks, rounds))
    note = f"medians of {rounds} each, measured in turns"
    return Figure(name, unit, ours, {"without": theirs}, ours / theirs, NOISE, note)


def _alternately(
    measure: Callable[[BackgroundStack], float], stacks: tuple[BackgroundStack, BackgroundStack], rounds: int
) -> tuple[list[float], list[float]]:
    """Measure both in every round, in alternating order, so that a slow machine slows down both."""
    first: list[float] = []
    second: list[float] = []
    pairs = list(zip(stacks, (first, second), strict=True))
    for number in range(rounds):
        for stack, times in pairs if number % 2 else pairs[::-1]:
            times.append(measure(stack))
    return first, second
