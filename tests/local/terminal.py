"""A terminal for a test: a program runs in it, the test types and reads."""

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local.template import ROOT

PATIENCE_SECONDS = 60.0
INTERRUPT = "\x03"
MARK_PASTES = b"\x1b[?2004h"
# Takes the terminal as its own, so that Ctrl-C is an interrupt, and becomes the command.
START = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("local", run_name="__main__", alter_sys=True)
"""
_PAINT = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]\r?")


class Terminal:
    """What the program has printed, and a keyboard."""

    def __init__(self, process: "subprocess.Popen[bytes]", device: int) -> None:
        self._process = process
        self._device = device
        self._unread = ""
        self.marks_pastes = False
        """The program has asked its terminal to mark where a pasted text begins and ends."""

    def type(self, text: str) -> None:
        os.write(self._device, text.encode())

    def read_until(self, text: str) -> str:
        """Return what was printed up to and with `text`, as a person sees it: without its colours."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in (seen := _PAINT.sub("", self._unread)):
            if not self._more(deadline):
                raise AssertionError(f"{text!r} was not printed, but {seen[-500:]!r}")
        before, _, self._unread = seen.partition(text)
        return before + text

    def wait_until_it_reads(self) -> None:
        """Wait until the program sleeps: it reads the keyboard then, and hears of an interrupt at once.

        One that comes between Python's prompt and its reading is not lost, but waits for the next key.
        """
        stat = Path(f"/proc/{self._process.pid}/stat")
        while stat.read_text().rpartition(") ")[2][0] != "S":
            time.sleep(0)

    def exit_code(self) -> int:
        """Wait for the program's end."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._more(deadline):
            pass
        return self._process.wait(PATIENCE_SECONDS)

    def _more(self, deadline: float) -> bool:
        readable, _, _ = select.select([self._device], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            return False
        try:
            data = os.read(self._device, 65536)
        except OSError:
            # How Linux says that nobody has the other end open any more.
            return False
        self._unread += data.decode(errors="replace").replace("\r\n", "\n")
        self.marks_pastes |= MARK_PASTES in data
        return bool(data)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    """Run `python -m local ...` in a terminal of its own."""
    device, inside = pty.openpty()
    _keep_output_at_interrupts(inside)
    with subprocess.Popen(
        [sys.executable, "-c", START, *arguments],
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm"},
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    ) as process:
        os.close(inside)
        try:
            yield Terminal(process, device)
        finally:
            process.kill()
            os.close(device)


def _keep_output_at_interrupts(device: int) -> None:
    """Ctrl-C otherwise discards what the program has printed and the test, on a busy machine, has not read yet."""
    attributes = termios.tcgetattr(device)
    attributes[3] |= termios.NOFLSH
    termios.tcsetattr(device, termios.TCSANOW, attributes)
