"""SnapStart: a function that starts once and is restored many times."""

import asyncio
import json
import sys
from typing import Any

import httpx
import pytest

from local.emulator import Emulator, Result
from tests.emulator.conftest import Start, toy
from tests.fixtures.meetings import Meeting

KEYS = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies of a process are made by Linux")


async def restored(emulator: Emulator, copies: int, **order: Any) -> list[dict[str, Any]]:
    """Invoke the function so often at once that each invocation has a copy of its own."""
    calls = (emulator.invoke("snapped", json.dumps(order).encode()) for _ in range(copies))
    results: list[Result] = await asyncio.gather(*calls)
    assert {result.error_type for result in results} == {None}, results
    assert len(emulator.processes("snapped")) == copies
    return [json.loads(result.payload) for result in results]


async def test_copies_have_the_memory_of_the_one_that_was_started(start: Start) -> None:
    emulator = await start(toy("snapped", snap_start=True), environment=KEYS)
    copies = await restored(emulator, 4)
    assert len({json.dumps(copy["init"]) for copy in copies}) == 1
    # Nothing has told them that they are copies: they draw the same number, and have the same process id.
    assert len({(copy["drawn"], copy["pid"]) for copy in copies}) == 1
    assert [copy["hooks"] for copy in copies] == [["before", "after"]] * 4
    assert {copy["loop"] for copy in copies} == {"woken"}
    assert len({copy["stream"] for copy in copies}) == 4
    assert len({process.pid for process in emulator.processes("snapped")}) == 4


async def test_copies_have_no_keys_but_an_endpoint_for_them(start: Start, http: httpx.AsyncClient) -> None:
    emulator = await start(toy("snapped", snap_start=True), environment=KEYS)
    [copy] = await restored(emulator, 1)
    environment = copy["environment"]
    assert copy["init"]["key"] is None
    assert not KEYS.keys() & environment.keys()
    assert environment["AWS_LAMBDA_INITIALIZATION_TYPE"] == "snap-start"
    assert not [name for name in environment if name.startswith("EMULATOR")]
    address = environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
    assert (await http.get(address)).status_code == 403
    token = {"authorization": environment["AWS_CONTAINER_AUTHORIZATION_TOKEN"]}
    keys = (await http.get(address, headers=token)).json()
    assert (keys["AccessKeyId"], keys["SecretAccessKey"], keys["Token"]) == tuple(KEYS.values())
    assert emulator.snapshot("snapped").credentials.reads == 1


async def test_connections_from_before_the_snapshot_lead_nowhere(start: Start, gate: Meeting) -> None:
    emulator = await start(toy("snapped", snap_start=True), environment={"UPSTREAM": gate.address})
    await restored(emulator, 2, send="hello?")
    assert bytes(emulator.snapshot("snapped").graveyard.received) == b"hello?" * 2


async def test_a_copy_that_ends_takes_no_other_with_it(start: Start) -> None:
    emulator = await start(toy("snapped", snap_start=True))
    await restored(emulator, 2)
    died = await emulator.invoke("snapped", b'{"exit": true}')
    assert "exit status 3" in json.loads(died.payload)["errorMessage"]
    assert len(emulator.processes("snapped")) == 1
    await restored(emulator, 2)
