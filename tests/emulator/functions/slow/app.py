"""A function that takes long to start: for good, or only the first time."""

import os
import time
from pathlib import Path
from typing import Any

MARK = Path(os.environ.get("STARTED_ONCE", "/nonexistent"))
if not MARK.exists():
    if MARK.parent.is_dir():
        MARK.touch()
    time.sleep(600)


def handler(event: dict[str, Any], context: object) -> str:
    return "started"
