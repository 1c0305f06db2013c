"""`make continue`: turns killed at random and at named stages, which nobody asks for again: the watch finishes them.

In memory, with the clock of the leases in the test's hand. `tests/faults/test_continued.py` does it with processes.
"""

import asyncio
import logging
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from omniagent.messages import Part
from tests.runner.processes import Process, bury
from tests.turns.counts import write_down
from tests.turns.deaths import GRAVES, LEASE_SECONDS, NEVER, QUERY, World

STAGES = {
    "claim": "after claim",
    "begin": "after begin_turn",
    "first token": "first token",
    "mid text": "mid text",
    "mid arguments": "mid arguments",
    "before a tool": "before a tool",
    "in a tool": "in a tool",
    "after a tool": "after a tool",
    "between steps": "between steps",
    "in the last text": "in the last text",
    "in the commit": "before finish_turn",
    "after the commit": "after finish_turn",
    "in the release": "before release",
}
"""The named stages, by what `World` calls them."""
WATCH_SECONDS = 15.0
"""How long after its lease a turn that died may take to its end."""


class MortalWorld(World):
    """Dies at a stage, or at some moment: the n-th of all that pass."""

    def __init__(self, stage: str = "", moment: int = 0, *, deaths: int = 1, retry_safe: bool, tick: float) -> None:
        super().__init__(stage, retry_safe=retry_safe, tick_seconds=tick)
        self.moment = moment
        self.deaths_left = deaths
        self.deaths = 0
        self._moments = 0
        self.claimed_at = 0
        """The moment from which on there is a turn to finish."""

    async def at(self, name: str, process: Process | None = None) -> None:
        self._moments += 1
        if name == "after claim":
            self.claimed_at = self.claimed_at or self._moments
        if self.moment and self._moments == self.moment and self.deaths_left:
            self.stage = name
        await super().at(name, process)

    async def _logged(self) -> None:
        if not self.moment:  # a random one may be in the middle of a tick
            await super()._logged()


@dataclass
class Report:
    """What was counted."""

    runs: int = 0
    deaths: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    steps_twice: int = 0
    """Model steps that were asked again although they had ended."""
    tools_twice: int = 0
    """Runs of a tool that does not allow a second one, and runs too many of one that does."""
    differ: int = 0
    longest: float = 0.0
    """Seconds from the end of the lease to the end of the turn."""

    def check(self) -> None:
        assert self.ended == {"complete": self.runs}, self
        assert (self.steps_twice, self.tools_twice, self.differ) == (0, 0, 0), self
        assert self.longest <= WATCH_SECONDS, self

    def __str__(self) -> str:
        ended = ", ".join(f"{count} {status}" for status, count in self.ended.items())
        return (
            f"{self.runs} turns killed {self.deaths} times, {ended} without any request; "
            f"steps asked twice {self.steps_twice}, tools run twice "
            f"{self.tools_twice}, answers that differ {self.differ}, longest {self.longest:.1f} s after the lease"
        )


async def run(runs: int, seed: int = 1) -> Report:
    """Kill so many turns: each named stage in turn, and as many at random moments after the claim."""
    rng, report = random.Random(seed), Report()
    whole = MortalWorld(retry_safe=True, tick=0.005)
    await whole.runner().run(QUERY)
    parts, moments = list((await whole.answer()).parts), whole._moments  # noqa: SLF001 - our own
    stages = list(STAGES.values())
    for number in range(runs):
        at_random = number % 2 == 1
        world = MortalWorld(
            "" if at_random else stages[number // 2 % len(stages)],
            rng.randint(whole.claimed_at, moments) if at_random else 0,
            deaths=rng.choice([1, 2]),
            retry_safe=rng.random() < 0.5,
            tick=rng.choice([0.005, NEVER]),
        )
        await _killed_and_watched(world, parts, report)
    return report


async def _killed_and_watched(world: MortalWorld, parts: list[Part], report: Report) -> None:
    living = asyncio.all_tasks()
    report.runs += 1
    try:
        asking = asyncio.create_task(world.runner().run(QUERY))
        await _until_death_or_end(world, asking)
        began = time.monotonic()
        await _watch(world)
        report.longest = max(report.longest, time.monotonic() - began)
        await _count(world, parts, report)
    finally:
        report.deaths += world.deaths
        await bury(living)
        GRAVES.clear()


async def _watch(world: MortalWorld) -> None:
    """Look as the run function does, until nothing is to be done. Whoever takes the turn up may die as well."""
    watches = list(dict.fromkeys(world.begun))
    while watches:
        turn_id, attempt = watches.pop(0)
        seconds = await world.runner(_process(world)).look(turn_id, attempt)
        if seconds:
            world.clock.pass_by(seconds)
            watches.append((turn_id, attempt))
        if seconds != 0:
            continue
        watches.append((turn_id, attempt))
        known = len(world.begun)
        await _until_death_or_end(world, asyncio.create_task(_taken_up(world)))
        watches += world.begun[known:]


def _process(world: MortalWorld) -> Process:
    """A process that only looks: it is not the one that dies."""
    return Process(world.store, world.registry, world.settings)


async def _taken_up(world: MortalWorld) -> None:
    stream = await world.continued()
    if stream is not None:
        await stream.ended()


async def _until_death_or_end(world: MortalWorld, task: "asyncio.Task[object]") -> None:
    reached = asyncio.create_task(world.reached.wait())
    await asyncio.wait([task, reached], return_when=asyncio.FIRST_COMPLETED)
    if world.reached.is_set():
        world.deaths += 1
        await world.killed(task)
    reached.cancel()
    if task.done() and not task.cancelled():
        task.exception()


async def _count(world: MortalWorld, parts: list[Part], report: Report) -> None:
    answer = await world.answer()
    report.ended[answer.status] += 1
    retry_safe = world.agent.tools[0].retry_safe
    # Each death may cost the step that was under way.
    report.steps_twice += max(0, len(world.model.requests) - world.steps - world.deaths)
    report.tools_twice += max(0, len(world.runs) - 1 - (world.deaths if retry_safe else 0))
    # A tool that may not run again, and whose outcome nobody knows, is an error in the answer.
    report.differ += retry_safe and list(answer.parts) != parts


async def main() -> None:
    logging.disable(logging.CRITICAL)
    report = await run(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
    report.check()
    write_down("in memory", f"{report} (lease {LEASE_SECONDS:g} s, passed by a clock in the test's hand)")


if __name__ == "__main__":
    asyncio.run(main())
