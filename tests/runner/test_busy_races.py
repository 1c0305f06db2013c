"""Races of messages with a running turn. `make races` runs a thousand."""

from tests.fixtures.examples import examples
from tests.runner.busy_races import race


def test_each_message_is_in_the_history_once_in_order_and_answered_once() -> None:
    counts = race(range(examples(20)))
    assert all(counts[what] for what in ("queue", "steer", "interrupt", "joined", "stopped", "killed")), counts
