"""Commands of the local stack as processes of their own."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from local.template import ROOT

PATIENCE_SECONDS = 120.0
_PARENT = re.compile(r"\d+ \(.*\) \S (\d+)")


class Command:
    """`python -m local ...`, read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self.said: list[str] = []

    def read_until(self, text: str) -> str:
        """Return the next line that holds `text`."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} was not said:\n{''.join(self.said)}")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Wait for the end; returns the exit code and what was left to say, errors included."""
        assert self._process.stdout is not None
        rest = self._process.stdout.read()
        return self._process.wait(), rest


def command(*arguments: str, **environment: str) -> AbstractContextManager[Command]:
    """Run a command of the local stack."""
    return started([sys.executable, "-m", "local", *arguments], ROOT, {**os.environ, **environment})


@contextmanager
def started(program: Sequence[str | Path], cwd: Path, environment: Mapping[str, str]) -> Iterator[Command]:
    """Run a program with its output and errors in one."""
    with subprocess.Popen(
        program,
        cwd=cwd,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Command(process)
        finally:
            process.kill()


def descendants(pid: int) -> dict[int, str]:
    """Return the processes below one, by their ids, with their command lines."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if match := _PARENT.match(stat.read_text()):
                parents[int(stat.parent.name)] = int(match[1])
    found: dict[int, str] = {}
    level = {pid}
    while level := {child for child, parent in parents.items() if parent in level}:
        found |= {child: _command_line(child) for child in level}
    return found


def still_running(processes: dict[int, str]) -> dict[int, str]:
    """Return those of the processes that are there and the same, after the time that a killed one takes to end."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        there = {pid: line for pid, line in processes.items() if line and _command_line(pid) == line}
        if not there or time.monotonic() > deadline:
            return there
        time.sleep(0.02)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
