"""Where `make continue` writes down what it came to: `make readme` makes a table of it."""

import json

from scripts.readme import CONTINUE


def write_down(run: str, result: object) -> None:
    """Print what a run came to, and keep it for the docs."""
    print(f"{run}: {result}", flush=True)
    runs = json.loads(CONTINUE.read_text()) if CONTINUE.exists() else {}
    CONTINUE.write_text(json.dumps(runs | {run: str(result)}, indent=2) + "\n")
