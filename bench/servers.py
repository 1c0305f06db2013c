"""The servers of the benchmark, each in a process of its own."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

from local.ports import free_port
from local.template import ROOT


@contextmanager
def served(*command: str) -> Iterator[str]:
    """Run a server that takes its port as the last argument. Yields its address."""
    port = free_port()
    process = subprocess.Popen([*command, str(port)], cwd=ROOT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(url: str) -> None:
    for _ in range(300):
        try:
            urlopen(url).close()
        except OSError as exc:
            if getattr(exc, "code", None):
                return
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(url)
