"""`make burst`: 50 cold starts at once on a busy machine, while Secrets Manager cannot be reached at first.

Not part of `make test`, which has a small one: 50 processes take minutes of two cores.
"""

import asyncio
import multiprocessing
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from local.aws import Aws
from local.model import OfflineModel
from tests.fixtures.calls import User
from tests.functions.test_restored_processes import without_secrets

PROCESSES = int(os.environ.get("PROCESSES", "50"))
TURNS = 3
OUTAGE = 20.0
"""How long no secret can be read. A function asks for it as long as its invocation lasts."""
PATIENCE = 600.0

pytestmark = pytest.mark.timeout(2 * PATIENCE)


async def test_no_turn_of_a_burst_is_refused(mongod: str, cloud: Aws, model: OfflineModel) -> None:
    counts: Counter[str] = Counter()
    async with without_secrets(mongod, cloud, model, snap_start=False) as (product, secrets):
        users = [product.user() for _ in range(PROCESSES)]
        with busy(), secrets.down():
            asking = [asyncio.create_task(converse(user, counts)) for user in users]
            await asyncio.wait(asking, timeout=OUTAGE)
        with busy():
            await asyncio.gather(*asking)
        stored = sum(len(product.stored(user)) for user in users)
    print(f"\n{PROCESSES} cold starts, {PROCESSES * TURNS} turns, {stored} messages stored")
    for outcome, count in sorted(counts.items()):
        print(f"{count:6} {outcome}")
    causes = Counter(
        cause for _, line in product.lines for cause in re.findall(r'"turn failed".*"cause": *("[^"]*")', line)
    )
    for cause, count in causes.items():
        print(f"{count:6} turns failed by {cause}")
    assert counts == {"200 complete": PROCESSES * TURNS}
    assert stored == 2 * PROCESSES * TURNS


async def converse(user: User, counts: Counter[str]) -> None:
    for number in range(TURNS):
        body = {"session_id": user.session, "query": f"[echo:hello {number}]"}
        response = await user.call("POST", "/chat?stream=false", json=body, timeout=PATIENCE)
        counts[f"{response.status_code} {outcome(response)}"] += 1


def outcome(response: httpx.Response) -> str:
    """Return how a turn ended, or why it was refused."""
    if "json" not in response.headers.get("content-type", ""):
        return response.text[:80]
    document = response.json()
    if "code" in document:
        return str(document["code"])
    error = document["message"]["metadata"].get("errorCode", "")
    return f"{document['status']} {error}".rstrip()


@contextmanager
def busy() -> Iterator[None]:
    """Keep every core busy with something else."""
    burners = [
        multiprocessing.get_context("spawn").Process(target=burn, daemon=True) for _ in range(os.cpu_count() or 2)
    ]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def burn() -> None:
    while True:
        pass
