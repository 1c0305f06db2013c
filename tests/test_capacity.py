"""The numbers of docs/capacity.md, checked against the driver and by hand."""

import pytest

from omniagent.persistence.store import MongoDB
from scripts import capacity

URI = "mongodb://127.0.0.1:1/"


@pytest.mark.parametrize(
    ("uri", "on_lambda", "pool_size", "expected"),
    [
        (URI, True, 0, 2),
        (URI, False, 0, 100),
        (URI, True, 5, 5),
        (f"{URI}?maxPoolSize=7", True, 0, 7),
        (f"{URI}?maxpoolsize=7", True, 5, 7),
    ],
    ids=["lambda", "elsewhere", "setting", "uri", "uri wins"],
)
async def test_a_process_opens_as_many_connections_as_it_may(
    uri: str, on_lambda: bool, pool_size: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME", raising=False)
    if on_lambda:
        monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "chat")
    mongo = MongoDB(uri, "any", [], timeout_seconds=1, pool_size=pool_size)
    assert mongo.client.options.pool_options.max_pool_size == expected
    await mongo.client.close()


def test_the_turns_of_a_cluster_are_its_connections_by_three() -> None:
    assert capacity.connections_per_process() == 3
    assert capacity.turns_on_atlas("M10") == (1500 - 10) // 3 == 496
    assert capacity.turns_on_atlas("M0") == 163
    assert capacity.smallest_tier(10_000) == "M60"


def test_the_turns_of_a_table_are_its_writes_by_four() -> None:
    assert capacity.writes_per_second(0.5) == 4
    assert capacity.turns_on_table(4_000, 0.5) == 1_000
    assert capacity.turns_on_table(40_000, 1.0) == 20_000


def test_the_bottlenecks_stand_in_the_order_in_which_they_are_met() -> None:
    rows = [line.split(" | ") for line in capacity.bottleneck_table().splitlines() if line.startswith("| ")]
    assert [row[1] for row in rows[1:]] == ["10 or 1,000", "496 (M10)", "1,000", "10,000", "your contract"]
    assert "198 million for 10,000 turns" in rows[5][3]
