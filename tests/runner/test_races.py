"""Races of messages with a running turn, and of branches. `make races` runs a thousand of each."""

from tests.fixtures.examples import examples
from tests.runner import busy_races, tree_races
from tests.runner.busy_races import race


def test_each_message_is_in_the_history_once_in_order_and_answered_once() -> None:
    counts = race(range(examples(40)))
    happened = ("queue", "steer", "interrupt", "joined", "approved", "stopped", "killed")
    assert all(counts[what] for what in happened), counts
    assert {fault: counts[fault] for fault in busy_races.FAULTS if counts[fault]} == {}


def test_racing_branches_leave_one_whole_tree_with_one_leaf() -> None:
    counts = race(range(examples(24)), tree_races.TreeRace)
    # Few of these turns are still running when they are stopped: sometimes none.
    assert all(counts[what] for what in (*tree_races.KINDS, "approved", "killed")), counts
    assert {fault: counts[fault] for fault in tree_races.FAULTS if counts[fault]} == {}
