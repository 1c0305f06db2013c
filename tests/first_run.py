"""`make first-run`: measures the README's first command in a fresh clone, and writes the README's sentence about it."""

import json
import os
import platform
import tempfile
from pathlib import Path

from scripts.readme import FIRST_RUN
from tests.fixtures.fresh_clone import make_clone, running

INSTALLED = (".uv", ".venv", ".build", ".local")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        clone = make_clone(Path(folder))
        with running(clone) as first:
            size = sum(_bytes(clone / name) for name in INSTALLED)
        with running(clone) as second:
            pass
    measured = {
        "seconds": round(first.seconds),
        "again": round(second.seconds),
        "megabytes": round(size / 1e6),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0]),
    }
    print(measured)
    FIRST_RUN.write_text(json.dumps(measured, indent=2) + "\n")


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink())


if __name__ == "__main__":
    main()
