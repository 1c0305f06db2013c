"""What one part of a turn costs: two stacks, one with and one without it, measured alternately."""

import time
from collections.abc import Callable

from bench.client import Client
from bench.figure import Figure
from bench.warm import drain
from local.background import BackgroundStack


def journal(logged: BackgroundStack, unlogged: BackgroundStack, deltas: int, rounds: int) -> Figure:
    """Time of a long answer, from the request to its end."""
    for stack in (logged, unlogged):
        drain(Client(stack.url), "[burst:1]")

    def measure(stack: BackgroundStack) -> float:
        started = time.monotonic()
        drain(Client(stack.url), f"[burst:{deltas}]")
        return time.monotonic() - started

    ours, theirs = (min(times) for times in _alternately(measure, (logged, unlogged), rounds))
    name, note = f"{deltas:,} deltas with the journal", f"best of {rounds} each, measured in turns"
    return Figure(name, "s", ours, {"without": theirs}, ours / theirs, 1.05, note)


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
