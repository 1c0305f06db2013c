"""The small version of `make continue`: every named stage once or twice, and as many random moments."""

import pytest

from tests.fixtures.workers import CLOSING_LINES
from tests.turns.continue_run import STAGES, run


async def test_turns_that_are_killed_anywhere_are_finished_by_the_next_process(pytestconfig: pytest.Config) -> None:
    report = await run(4 * len(STAGES))
    pytestconfig.stash[CLOSING_LINES].append(f"continue: {report}")
    report.check()
