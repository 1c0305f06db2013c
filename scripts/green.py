"""Runs the whole suite again and again on a busy machine: `make green`.

Every run is `make test` of the commit in a clone of its own. Two run at once, so each has both cores taken by the
other; where nothing is left to run, a loop takes a core in its stead. All runs have to pass.
"""

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from local.template import ROOT
from scripts.readme import GREEN

CLONES = ROOT / ".build" / "green"
# Variables of the make that started this, which the suites must not see.
OF_MAKE = ("ARGS", "COVERAGE", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")
COUNTS = re.compile(r"^=+ (?=.*\bin [\d.]+s)(.*) in [\d.]+s.*=+$", re.MULTILINE)
NAMES = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
LOAD_EVERY = 5.0
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Run:
    """The result of one run."""

    passed: int
    failed: int
    skipped: int
    seconds: int
    load: float
    """The mean load average during the run."""
    failures: tuple[str, ...]
    green: bool

    def __str__(self) -> str:
        """Return the result in one line."""
        end = "green" if self.green else "RED"
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        return f"{end}: {counts}, {self.seconds} s, load {self.load:.1f} {' '.join(self.failures)}".rstrip()


def outcome(output: str, *, code: int, seconds: float, load: float) -> Run:
    """Return the result from the output of `make test` and its exit code."""
    [*_, counts] = ["", *COUNTS.findall(output)]
    number = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", counts)}
    failures = tuple(dict.fromkeys(NAMES.findall(output)))
    return Run(
        passed=number.get("passed", 0),
        failed=number.get("failed", 0) + number.get("error", 0) + number.get("errors", 0),
        skipped=number.get("skipped", 0),
        seconds=round(seconds),
        load=round(load, 1),
        failures=failures,
        green=code == 0 and not failures and number.get("passed", 0) > 0,
    )


class Runs:
    """The runs of one commit, `at_once` at a time, none after `deadline`."""

    def __init__(self, folder: Path, *, number: int, at_once: int, deadline: float) -> None:
        self._folder = folder
        self._at_once = min(at_once, number)
        self._deadline = deadline
        self._left: queue.SimpleQueue[int] = queue.SimpleQueue()
        for run in range(1, number + 1):
            self._left.put(run)
        self._done: dict[int, Run] = {}
        self._working = self._at_once
        self._ended = threading.Condition()

    def go(self) -> list[Run]:
        """Run them all and return them in order."""
        places = [threading.Thread(target=self._place, args=(place,)) for place in range(1, self._at_once + 1)]
        for place in places:
            place.start()
        for place in places:
            place.join()
        return [run for _, run in sorted(self._done.items())]

    def stop(self) -> None:
        """End the running suites, and start no more."""
        self._deadline = 0.0

    def _place(self, place: int) -> None:
        clone = self._folder / f"clone-{place}"
        try:
            subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True, timeout=300)
            while time.monotonic() < self._deadline:
                try:
                    number = self._left.get_nowait()
                except queue.Empty:
                    break
                run = self._run(clone, self._folder / f"run-{number}.log")
                self._done[number] = run
                print(f"run {number}: {run}", flush=True)
        finally:
            with self._ended:
                self._working -= 1
                self._ended.notify_all()
        with _busy_core(), self._ended:
            self._ended.wait_for(lambda: self._working == 0)

    def _run(self, clone: Path, log: Path) -> Run:
        environment = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
        began, loads = time.monotonic(), [os.getloadavg()[0]]
        with log.open("wb") as output:
            suite = subprocess.Popen(
                ["make", "test"],
                cwd=clone,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            while suite.poll() is None:
                try:
                    suite.wait(LOAD_EVERY)
                except subprocess.TimeoutExpired:
                    loads.append(os.getloadavg()[0])
                if time.monotonic() > self._deadline:
                    _end(suite)
        seconds = time.monotonic() - began
        return outcome(
            log.read_text(errors="replace"), code=suite.wait(), seconds=seconds, load=sum(loads) / len(loads)
        )


def _end(suite: "subprocess.Popen[bytes]") -> None:
    """Interrupt a suite, so that its tests end the servers they have started."""
    os.killpg(suite.pid, signal.SIGINT)
    try:
        suite.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(suite.pid, signal.SIGKILL)


@contextmanager
def _busy_core() -> Iterator[None]:
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites, write the report, and return 0 if all runs were green."""
    parser = argparse.ArgumentParser(prog="python -m scripts.green", description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=180, help="no run lasts beyond these")
    parser.add_argument("--folder", type=Path, default=CLONES, help="emptied first; logs are left in it")
    options = parser.parse_args(arguments)
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    commit = subprocess.check_output(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, text=True).strip()
    print(f"{options.runs} runs of {commit}, {options.at_once} at once, logs in {options.folder}", flush=True)
    deadline = time.monotonic() + 60 * options.minutes
    suites = Runs(options.folder, number=options.runs, at_once=options.at_once, deadline=deadline)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: suites.stop())
    runs = suites.go()
    for clone in options.folder.glob("clone-*"):
        shutil.rmtree(clone)
    green = sum(run.green for run in runs)
    print(f"{green} of {options.runs} runs were green")
    report = {"commit": commit, "at once": options.at_once, "wanted": options.runs, "runs": [asdict(r) for r in runs]}
    GREEN.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if green == options.runs else 1


if __name__ == "__main__":
    sys.exit(main())
