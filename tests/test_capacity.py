"""The numbers of docs/capacity.md, checked against the driver and by hand."""

import pytest

from local.template import ROOT
from omniagent.persistence.mongodb import MongoDB
from omniagent.settings import Settings
from scripts import capacity

URI = "mongodb://127.0.0.1:1/"


@pytest.mark.parametrize(
    ("uri", "variables", "pool_size", "expected"),
    [
        (URI, ["AWS_LAMBDA_FUNCTION_NAME"], 0, 2),
        (URI, ["AWS_LAMBDA_FUNCTION_NAME", "AWS_LAMBDA_MAX_CONCURRENCY"], 0, 8),
        (URI, [], 0, 100),
        (URI, ["AWS_LAMBDA_FUNCTION_NAME"], 5, 5),
        (f"{URI}?maxPoolSize=7", ["AWS_LAMBDA_FUNCTION_NAME"], 0, 7),
        (f"{URI}?maxpoolsize=7", ["AWS_LAMBDA_FUNCTION_NAME"], 5, 7),
    ],
    ids=["lambda", "managed instances", "elsewhere", "setting", "uri", "uri wins"],
)
async def test_a_process_opens_as_many_connections_as_it_may(
    uri: str, variables: list[str], pool_size: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME", raising=False)
    for name in variables:
        monkeypatch.setenv(name, "64")
    mongo = MongoDB(uri, "any", [], timeout_seconds=1, pool_size=pool_size)
    assert mongo.client.options.pool_options.max_pool_size == expected
    await mongo.client.close()


def test_the_turns_of_a_cluster_are_its_connections_by_three() -> None:
    assert capacity.connections_per_process() == 3
    assert capacity.turns_on_atlas("M10") == (1500 - 10) // 3 == 496
    assert capacity.turns_on_atlas("M0") == 163
    assert capacity.smallest_tier(10_000) == "M60"


def test_the_turns_of_a_table_are_its_writes_by_two() -> None:
    tick = Settings().tick_seconds
    assert capacity.writes_per_second(tick) == 2
    assert capacity.turns_on_table(4_000, 0.5) == 2_000
    assert capacity.turns_on_table(40_000, 1.0) == 40_000


def test_managed_instances_share_connections_as_the_page_says() -> None:
    page = (ROOT / "docs" / "capacity.md").read_text()
    assert capacity.connections_of_managed(10_000) == 157 * 9 == 1_413
    assert "157 processes with 1,413 connections" in page


def test_the_bottlenecks_stand_in_the_order_in_which_they_are_met() -> None:
    rows = [line.split(" | ") for line in capacity.bottleneck_table().splitlines() if line.startswith("| ")]
    assert [row[1] for row in rows[1:]] == ["10 or 1,000", "496 (M10)", "2,000", "your contract", "an incident"]
    assert "198 million for 10,000 turns" in rows[4][3]
    assert "17 minutes for 10,000 turns" in rows[5][3]
