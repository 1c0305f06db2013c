"""Reloads functions: after a source change, their processes are replaced."""

from collections.abc import Iterable
from pathlib import Path

from local.emulator import Emulator
from local.packages import REQUIREMENTS
from local.template import Function


class Reload:
    """Detects changes of the functions' source and ends the processes that run the old version."""

    def __init__(self, emulator: Emulator, functions: Iterable[Function]) -> None:
        """Take the current source as the version that the processes run."""
        self._emulator = emulator
        # Of a layer, only our own package: installed packages do not change.
        self._folders = {
            folder
            for function in functions
            for folder in (function.code, *(layer / "omniagent" for layer in function.layers))
        }
        self._stamps = self._look()

    def follow(self) -> list[Path]:
        """Return the files that changed since the last call. A process that runs an invocation ends after it."""
        stamps = self._look()
        before, self._stamps = self._stamps, stamps
        changed = sorted(file for file in stamps.keys() | before.keys() if stamps.get(file) != before.get(file))
        if changed:
            self._emulator.retire()
        return changed

    def _look(self) -> dict[Path, int]:
        """Return when each file was last written."""
        found: dict[Path, int] = {}
        for folder in self._folders:
            for file in (*folder.rglob("*.py"), *folder.glob(REQUIREMENTS)):
                try:
                    found[file] = file.stat().st_mtime_ns
                except FileNotFoundError:
                    # Editors replace files: it reappears shortly.
                    continue
        return found
