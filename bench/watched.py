"""The cost of the watch for a turn: the chat function with and without the run queue, measured alternately."""

import statistics
from collections.abc import Callable
from urllib.request import urlopen

from bench.client import Client
from bench.cold import first_byte
from bench.figure import Figure
from bench.warm import new_session, whole_turn
from local.background import BackgroundStack

NOISE = 1.02
"""At most 2 % later. Cold starts vary by as much by chance."""


def first_token(watched: BackgroundStack, unwatched: BackgroundStack, queue_url: str, turns: int) -> Figure:
    """Time from the request to the first token at the client, with a model that thinks for 30 ms."""
    sessions = {id(stack): new_session() for stack in (watched, unwatched)}

    def measure(stack: BackgroundStack) -> float:
        return whole_turn(Client(stack.stack.emulator.url_of("chat")), sessions[id(stack)])

    for stack in (watched, unwatched):
        measure(stack)
    before = _accepted(queue_url)
    figure = _figure("first token with the run queue", "ms", measure, (watched, unwatched), turns)
    sent = _accepted(queue_url) - before
    if sent != turns:
        raise RuntimeError(f"{turns} watched turns sent {sent} watch messages")
    return figure


def _accepted(queue_url: str) -> int:
    """Return how many messages the queue has accepted."""
    with urlopen(queue_url) as answer:
        return int(answer.read())


def cold_start(watched: BackgroundStack, unwatched: BackgroundStack, runs: int) -> Figure:
    """Time from spawn to first byte."""
    return _figure("cold start with the run queue", "s", first_byte, (watched, unwatched), 2 * runs)


def _figure(
    name: str,
    unit: str,
    measure: Callable[[BackgroundStack], float],
    stacks: tuple[BackgroundStack, BackgroundStack],
    rounds: int,
) -> Figure:
    """Measure both in every round, in alternating order, so that a slow machine slows down both."""
    with_queue: list[float] = []
    without: list[float] = []
    pairs = list(zip(stacks, (with_queue, without), strict=True))
    for number in range(rounds):
        for stack, times in pairs if number % 2 else pairs[::-1]:
            times.append(measure(stack))
    ours, theirs = statistics.median(with_queue), statistics.median(without)
    note = f"medians of {rounds} each, measured in turns"
    return Figure(name, unit, ours, {"without": theirs}, ours / theirs, NOISE, note)
