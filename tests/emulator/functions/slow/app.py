"""A function that takes long to start: for good, or only the first time."""

import os
import time
from pathlib import Path
from typing import Any

MARK = os.environ.get("STARTED_ONCE")
if not MARK or not Path(MARK).exists():
    if MARK:
        Path(MARK).touch()
    time.sleep(600)


def handler(event: dict[str, Any], context: object) -> str:
    return "started"
