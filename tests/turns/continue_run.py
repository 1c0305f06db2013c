"""`make continue`: turns killed at random and at named stages, and finished by whoever takes them up next.

In memory, with the clock of the leases in the test's hand. `tests/faults` does it with processes.
"""

import asyncio
import logging
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from omniagent.messages import Part
from tests.turns.counts import write_down
from tests.turns.deaths import LEASE_SECONDS, STEPS, World

STAGES = (
    *("after begin", "after append", "first token", "mid text", "mid arguments", "before a tool", "in a tool"),
    *("after a tool", "between steps", "in the last text", "before end", "after end", "after take over"),
)
NEVER = 3600.0
"""A tick that never comes: only what must be in the journal is there."""
WATCH_SECONDS = 15.0
"""How long after its lease a turn that died may take to its end."""


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
    """Kill so many turns: each named stage in turn, and as many at random moments."""
    rng, report = random.Random(seed), Report()
    whole = World(retry_safe=True)
    await whole.ask()
    parts, moments = list((await whole.finish()).parts), whole.moments
    for number in range(runs):
        at_random = number % 2 == 1
        world = World(
            "" if at_random else STAGES[number // 2 % len(STAGES)],
            rng.randint(1, moments) if at_random else 0,
            deaths=rng.choice([1, 2]),
            retry_safe=rng.random() < 0.5,
            tick_seconds=rng.choice([0.005, NEVER]),
        )
        await world.ask()
        began = time.monotonic()
        answer = await world.finish()
        report.longest = max(report.longest, time.monotonic() - began)
        report.runs += 1
        report.deaths += world.deaths
        report.ended[answer.status] += 1
        # Each death may cost the step that was under way.
        report.steps_twice += max(0, len(world.model.requests) - STEPS - world.deaths)
        report.tools_twice += max(0, len(world.runs) - 1 - (world.deaths if world.retry_safe else 0))
        # A tool that may not run again, and whose outcome nobody knows, is an error in the answer.
        report.differ += world.retry_safe and list[Part](answer.parts) != parts
    return report


async def main() -> None:
    logging.disable(logging.CRITICAL)
    report = await run(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
    report.check()
    write_down("in memory", f"{report} (lease {LEASE_SECONDS:g} s, passed by a clock in the test's hand)")


if __name__ == "__main__":
    asyncio.run(main())
