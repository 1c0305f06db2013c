"""The local MongoDB server."""

import os
import select
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from local.mongod import Mongod, find_mongod
from local.processes import ServiceError


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mongod]:
    """A server that every test leaves running."""
    with Mongod(tmp_path_factory.mktemp("mongod") / "data") as server:
        yield server


def connect(server: Mongod) -> MongoClient[dict[str, Any]]:
    return MongoClient(server.uri, serverSelectionTimeoutMS=5000)


def test_acknowledged_writes_outlive_a_kill_on_another_port_and_on_its_own(server: Mongod) -> None:
    address = server.uri
    with connect(server) as client:
        client.shop.orders.insert_one({"_id": 1})
    server.kill()
    try:
        # As the next run of a stack does.
        with Mongod(server.folder) as moved, connect(moved) as client:
            assert moved.port != server.port
            client.shop.orders.insert_one({"_id": 2})
    finally:
        server.start()
    assert server.uri == address
    with connect(server) as client:
        assert client.shop.orders.count_documents({}) == 2


def test_a_folder_in_use_is_said_in_one_sentence(server: Mongod) -> None:
    with pytest.raises(ServiceError, match="another one, perhaps of another run, uses the data in"):
        Mongod(server.folder).start()


def test_a_missing_mongod_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: "nowhere")
    with pytest.raises(ServiceError, match=r"^No mongod is installed: .+ MONGODB_URI\.$"):
        find_mongod()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent")
def test_the_server_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from local.mongod import Mongod;"
        "server = Mongod(pathlib.Path(sys.argv[1])); server.start();"
        "print(server.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        watched = os.pidfd_open(pid)
        parent.send_signal(signal.SIGKILL)
        # The descriptor becomes readable when the process has ended.
        assert select.select([watched], [], [], 30)[0]
        os.close(watched)
