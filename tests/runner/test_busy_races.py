"""Races of messages with a running turn. `make races` runs a thousand."""

from tests.fixtures.examples import examples
from tests.runner.busy_races import FAULTS, race


def test_each_message_is_in_the_history_once_in_order_and_answered_once() -> None:
    counts = race(range(examples(40)))
    happened = ("queue", "steer", "interrupt", "joined", "approved", "stopped", "killed")
    assert all(counts[what] for what in happened), counts
    assert {fault: counts[fault] for fault in FAULTS if counts[fault]} == {}
