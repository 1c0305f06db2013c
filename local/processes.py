"""Services as child processes that log to a file and never outlive their parent."""

import fcntl
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from local.leash import leashed

POLL_SECONDS = 0.02
# The only variables of the caller's environment that a process gets.
PASSED_ON = ("LD_LIBRARY_PATH", "PATH", "TMPDIR")


class ServiceError(RuntimeError):
    """A local service could not be started. The message is one sentence for the person at the terminal."""


def clean_environment() -> dict[str, str]:
    """Return the variables that every process needs, without the caller's keys."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time work in a folder, which is created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_private(folder: Path) -> None:
    """Create a folder that no other user can read. An existing one is made private, too."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise ServiceError(f"The data folder {folder} cannot be made: {error.strerror}.") from None


class Service:
    """A child process that ends with its parent and writes to a log file.

    It has its own session, so that Ctrl-C reaches only the parent, which then ends its services in order. Start it
    from a thread that lives as long as the service: the service ends with that thread.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        """Start the command with these variables. `wait_until` waits until it is ready."""
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                leashed(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**clean_environment(), **(variables or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Poll `ready` until it returns True. Raises if the process ends first or the time is up."""
        deadline = time.monotonic() + seconds
        while not ready():
            if (code := self._process.poll()) is not None:
                raise ServiceError(f"{self.name} ended with code {code}: {self.tail()}")
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} was not ready after {seconds:g} seconds: {self.tail()}")
            time.sleep(POLL_SECONDS)

    def check(self) -> None:
        """Raise if the process has ended by itself."""
        if (code := self._process.poll()) is not None:
            cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
            raise ServiceError(f"{self.name} ended unexpectedly with {cause}; its log is {self.log}.")

    def tail(self, lines: int = 5) -> str:
        """Return the last lines of the log."""
        text = self.log.read_text(errors="replace").strip() if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:]) or "it wrote nothing"

    def stop(self, *, seconds: float = 10) -> None:
        """Terminate the process, and kill it if that takes too long."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        self._process.kill()
        self._process.wait()


class LocalServer:
    """A server in a process of its own, while the context is open. A restarted one keeps its port."""

    def __init__(self, name: str, folder: Path | None) -> None:
        """Set the folder of its data and its log. By default it is deleted with the server."""
        self._name = name
        self._temporary = tempfile.TemporaryDirectory(prefix="local-") if folder is None else None
        self.folder = folder or Path(self._temporary.name if self._temporary else "")
        self._service: Service | None = None

    def start(self) -> None:
        """Start the server and wait until it can be used."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._service is None:
            raise ServiceError(f"{self._name} does not run.")
        return self._service.pid

    def check(self) -> None:
        """Raise if the server has ended by itself."""
        if self._service:
            self._service.check()

    def stop(self) -> None:
        """End the server."""
        self.kill()

    def kill(self) -> None:
        """Kill the server, as a crash would."""
        if self._service:
            self._service.kill()
            self._service = None

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End. Where its data is deleted, the server is not shut down cleanly."""
        if self._temporary:
            self.kill()
            self._temporary.cleanup()
        else:
            self.stop()
