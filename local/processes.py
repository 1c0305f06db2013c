"""Services as child processes: their output in a file, their end certain."""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from local.leash import leashed

POLL_SECONDS = 0.02
# All that a process gets of the environment of whoever started the stack.
PASSED_ON = ("LD_LIBRARY_PATH", "PATH", "TMPDIR")


class ServiceError(RuntimeError):
    """A local service could not be started. The message is one sentence for the person at the terminal."""


def clean_environment() -> dict[str, str]:
    """Return what every process needs, and none of the keys of whoever runs this."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time work in a folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_private(folder: Path) -> None:
    """Make a folder that nobody else on this machine may look into, one that is there already included."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise ServiceError(f"The data folder {folder} cannot be made: {error.strerror}.") from None


class Service:
    """A child process on a leash, writing to a log file.

    It leads a session of its own: Ctrl-C reaches the parent only, which then ends its services in order.
    Start it from a thread that lives as long as the service should.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        """Start the command, with these variables; `wait_until` tells when it serves."""
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
        """Poll `ready` until it holds. Raises when the process ends first or the time is over."""
        deadline = time.monotonic() + seconds
        while not ready():
            if (code := self._process.poll()) is not None:
                raise ServiceError(f"{self.name} ended with code {code}: {self.tail()}")
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} was not ready after {seconds:g} seconds: {self.tail()}")
            time.sleep(POLL_SECONDS)

    def check(self) -> None:
        """Raise when the process has ended by itself."""
        if (code := self._process.poll()) is not None:
            cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
            raise ServiceError(f"{self.name} ended unexpectedly with {cause}; its log is {self.log}.")

    def tail(self, lines: int = 5) -> str:
        """Return the last lines of the log."""
        text = self.log.read_text(errors="replace").strip() if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:]) or "it wrote nothing"

    def stop(self, *, seconds: float = 10) -> None:
        """End the process politely, then by force."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self._process.kill()
        self._process.wait()
