"""`make races`: 1,000 races of messages and 1,000 of branches. Writes the counts of docs/proofs.md."""

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

from omniagent.messages import Status
from scripts.readme import RACES
from tests.runner import busy_races, tree_races
from tests.runner.busy_races import BUSY, race
from tests.runner.tree_races import KINDS, TreeRace

NUMBER = 1_000


def report(counts: Counter[str], what: str, kinds: Sequence[str], event: str, faults: Sequence[str]) -> dict[str, Any]:
    return {
        "races": counts["races"],
        what: {kind: counts[kind] for kind in kinds},
        "answers": {status: counts[status] for status in get_args(Status) if counts[status]},
        "events": {name: counts[name] for name in (event, "approved", "denied", "stopped", "killed")},
        "found": {fault: counts[fault] for fault in faults},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("races", type=int, nargs="?", default=NUMBER)
    parser.add_argument("--seed", type=int, default=0, help="the first race")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seeds = range(options.seed, options.seed + options.races)
    messages = report(race(seeds), "messages", BUSY, "joined", busy_races.FAULTS)
    trees = report(race(seeds, TreeRace), "requests", KINDS, "branches", tree_races.FAULTS)
    text = json.dumps(messages | {"trees": trees}, indent=2)
    print(text)
    if any(messages["found"].values()) or any(trees["found"].values()):
        sys.exit(1)
    if options.races >= NUMBER:
        RACES.write_text(text + "\n")


if __name__ == "__main__":
    main()
