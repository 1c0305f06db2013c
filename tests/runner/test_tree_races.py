"""Races of edits, regenerations, switches and messages. `make races` runs a thousand."""

from tests.fixtures.examples import examples
from tests.runner.busy_races import race
from tests.runner.tree_races import FAULTS, KINDS, TreeRace


def test_racing_branches_leave_one_whole_tree_with_one_leaf() -> None:
    counts = race(range(examples(24)), TreeRace)
    assert all(counts[what] for what in (*KINDS, "approved", "stopped", "killed")), counts
    assert {fault: counts[fault] for fault in FAULTS if counts[fault]} == {}
