"""Runs a command that cannot outlive its parent: `python leash.py PARENT_PID COMMAND...`.

The kernel kills the process when the thread that started it ends. A small program does this instead of a
`preexec_fn`, which is unsafe in a parent with threads. Only Linux can; elsewhere the command just runs.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def leashed(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` and ends with this process."""
    # -I and -S: no site, no environment, so that it starts in milliseconds.
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *command]  # noqa: PTH100


def main() -> None:
    """Request the signal from the kernel, then exec the command."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            sys.exit("the parent ended first")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
