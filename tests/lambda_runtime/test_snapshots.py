"""What happens around a snapshot, run as awslambdaric runs it."""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
import snapshot_restore_py  # type: ignore[import-untyped]
from awslambdaric import lambda_runtime_hooks_runner  # type: ignore[import-untyped]
from bson import ObjectId

from omniagent.aws.client import CredentialCache
from omniagent.lambda_runtime import event_loop, snapshots
from tests.fixtures.http_server import Endpoint, container_keys
from tests.lambda_runtime import restored


@pytest.fixture(autouse=True)
def _own_hooks() -> Iterator[None]:
    """Registers go back to what they were."""
    registers = (snapshot_restore_py.get_before_snapshot(), snapshot_restore_py.get_after_restore())
    before = [list(register) for register in registers]
    for register in registers:
        register.clear()
    yield
    for register, hooks in zip(registers, before, strict=True):
        register[:] = hooks


def test_connections_are_closed_before_the_snapshot_on_the_kept_loop() -> None:
    closed: list[object] = []

    async def close() -> None:
        closed.append(asyncio.get_running_loop())

    snapshots.before_snapshot(close)
    lambda_runtime_hooks_runner.run_before_snapshot()
    event_loop.run(close())
    assert closed[0] is closed[1]


def test_restored_copies_draw_different_random_numbers() -> None:
    snapshot_restore_py.register_after_restore(snapshots.after_restore)
    frozen = random.getstate()
    drawn, processes = set(), set()
    for _ in range(3):
        random.setstate(frozen)
        lambda_runtime_hooks_runner.run_after_restore()
        drawn.add(random.getrandbits(64))
        processes.add(ObjectId().binary[4:9])
    assert len(drawn) == 3
    assert len(processes) == 3, "the part of BSON's ids that is drawn once per process"


def test_copies_with_equal_memory_and_an_equal_process_id_draw_nothing_twice() -> None:
    command = [sys.executable, "-m", restored.__name__]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode == restored.NOT_ALLOWED:
        pytest.skip("this machine lets nobody make a PID namespace")
    copies = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [copy.pop("pid") for copy in copies] == [1] * 2 * restored.COPIES, finished.stderr
    different = {
        hook: {name for name in ("OpenSSL", "random", "ObjectId", "uuid4") if len({c[name] for c in those}) > 1}
        for hook in (False, True)
        if (those := [copy for copy in copies if copy["hook"] is hook])
    }
    assert different[False] == {"uuid4"}, "what our ids are made of needs no hook; TLS, which draws from OpenSSL, does"
    assert different[True] == {"OpenSSL", "random", "ObjectId", "uuid4"}


def test_credentials_of_the_original_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with Endpoint((200, container_keys("frozen")), (200, container_keys("restored"))) as endpoint:
        cache = CredentialCache({"AWS_CONTAINER_CREDENTIALS_FULL_URI": endpoint.url})
        monkeypatch.setattr(snapshots, "process_credentials", cache)
        snapshot_restore_py.register_after_restore(snapshots.after_restore)
        assert event_loop.run(cache.get()).access_key == "key-frozen"
        lambda_runtime_hooks_runner.run_after_restore()
        assert event_loop.run(cache.get()).access_key == "key-restored"


def test_the_handlers_register_the_hooks() -> None:
    """Importing the module that every HTTP function imports is enough."""
    code = "import omniagent.lambda_runtime.asgi, snapshot_restore_py as s; print(len(s.get_after_restore()))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "1"
