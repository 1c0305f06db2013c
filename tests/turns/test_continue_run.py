"""The small version of `make continue`: every named stage once or twice, and as many random moments."""

from tests.turns.continue_run import STAGES, run


async def test_turns_that_are_killed_anywhere_are_finished_by_the_next_process() -> None:
    (await run(4 * len(STAGES))).check()
