"""The arithmetic of docs/capacity.md: how many turns run at once on what an operator has."""

from local.cloudformation import Document
from local.template import TEMPLATE
from omniagent.persistence.mongodb import POOL_OF_MANAGED_INSTANCES, POOL_ON_LAMBDA
from omniagent.settings import Settings

ATLAS_CONNECTIONS = {
    "M0": 500,
    "M10": 1_500,
    "M20": 3_000,
    "M30": 3_000,
    "M40": 6_000,
    "M50": 16_000,
    "M60": 32_000,
    "M80": 96_000,
}
"""Connections per node. https://www.mongodb.com/docs/atlas/reference/atlas-limits/"""
RESERVED_BY_ATLAS = 10
MONITORS = 1
"""Connections of a process to the primary beside its pool: the driver's own."""
ACCOUNT_CONCURRENCY = {"a new account": 10, "the usual quota": 1_000, "after a request to AWS": 10_000}
TABLE_WRITES = {"a new table": 4_000, "`TableWarmUnits: 12000`": 12_000, "the usual quota of a table": 40_000}
"""Write units per second of an on-demand table."""
TARGET = 10_000
TURN_SECONDS, TURN_TOKENS = 10, 3_300
"""A usual turn: 3,000 tokens in, 300 out."""
MANAGED_STREAMS = 64
"""Streams of one process on Lambda Managed Instances, as the template suggests."""
NEW_PROCESSES_PER_10_SECONDS = 1_000
"""Lambda's scaling rate of one function."""


def connections_per_process(pool: int = POOL_ON_LAMBDA) -> int:
    return pool + MONITORS


def turns_on_atlas(tier: str) -> int:
    """Return how many processes the primary of a cluster takes. Each runs one turn."""
    return (ATLAS_CONNECTIONS[tier] - RESERVED_BY_ATLAS) // connections_per_process()


def writes_per_second(tick_seconds: float) -> float:
    """Return the DynamoDB write units of a running turn: one chunk of its journal per tick."""
    return 1 / tick_seconds


def turns_on_table(units: int, tick_seconds: float) -> int:
    return int(units / writes_per_second(tick_seconds))


def smallest_tier(turns: int) -> str:
    return next(tier for tier in ATLAS_CONNECTIONS if turns_on_atlas(tier) >= turns)


def connections_of_managed(turns: int) -> int:
    """Return the connections of so many turns on Managed Instances, whose processes share a pool among many."""
    processes = -(-turns // MANAGED_STREAMS)
    return processes * connections_per_process(POOL_OF_MANAGED_INSTANCES)


def capacity_table() -> str:
    """Return the concurrent turns by cluster, account and table."""
    tick = Settings().tick_seconds
    rows = [
        *(
            (f"Atlas {tier}", f"{limit:,} connections", turns_on_atlas(tier))
            for tier, limit in ATLAS_CONNECTIONS.items()
        ),
        *((f"Lambda: {name}", f"{limit:,} invocations", limit) for name, limit in ACCOUNT_CONCURRENCY.items()),
        *(
            (f"DynamoDB: {name}", f"{units:,} write units per second", turns_on_table(units, tick))
            for name, units in TABLE_WRITES.items()
        ),
    ]
    lines = [f"| {name} | {limit} | {turns:,} |" for name, limit, turns in rows]
    return "\n".join(["| what you have | its limit | turns at once |", "|---|---|---|", *lines])


def bottleneck_table() -> str:
    """Return what stops a stack with the defaults on its way to 10,000 streams, in this order."""
    tick = Settings().tick_seconds
    tokens = TARGET * TURN_TOKENS * 60 // TURN_SECONDS
    seconds = TARGET // NEW_PROCESSES_PER_10_SECONDS * 10
    units = int(TARGET * writes_per_second(tick))
    run = int(Document(TEMPLATE).section("Parameters")["RunConcurrency"]["Default"])
    minutes = TARGET * TURN_SECONDS / run / 60
    rows = [
        (
            f"{ACCOUNT_CONCURRENCY['a new account']} or {ACCOUNT_CONCURRENCY['the usual quota']:,}",
            "the account's Lambda concurrency",
            f"a quota of {TARGET * 6 // 5:,} (other requests and jobs run beside the streams); `AccountConcurrency`",
        ),
        (
            f"{turns_on_atlas('M10'):,} (M10)",
            f"MongoDB connections, {connections_per_process()} per process",
            f"{smallest_tier(TARGET)}; `MONGODB_POOL_SIZE` 1 saves one of {connections_per_process()}",
        ),
        (
            f"{turns_on_table(TABLE_WRITES['a new table'], tick):,}",
            f"writes of a new table, {writes_per_second(tick):g} per second and turn",
            f"`TableWarmUnits: {units}`, before the load comes; `TICK_SECONDS` {2 * tick:g} needs half of it",
        ),
        (
            "your contract",
            "the model's tokens per minute",
            f"{tokens / 1e6:,.0f} million for {TARGET:,} turns of {TURN_SECONDS} s: several providers, reserved units",
        ),
        (
            "an incident",
            f"turns without a client that the run function continues, {run} at once",
            f"{minutes:.0f} minutes for {TARGET:,} turns; `RunConcurrency`",
        ),
    ]
    lines = [f"| {number} | {stops} | {what} | {lift} |" for number, (stops, what, lift) in enumerate(rows, 1)]
    head = ["| | stops at | what | what lifts it |", "|---|---|---|---|"]
    pace = f"Lambda adds {NEW_PROCESSES_PER_10_SECONDS:,} processes per function and ten seconds: all take {seconds} s."
    return "\n".join([*head, *lines, "", pace])
