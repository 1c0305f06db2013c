"""Run the offline model as a process: `python -m local.model --port 0` prints its URL and serves until ended."""

import argparse
import os

from local.model.journal import Journal
from local.model.offline import listen, make_server, url_of

DEFAULT_PACE = 40


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m local.model", description="The offline model.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument(
        "--tokens-per-second",
        type=float,
        default=float(os.environ.get("OFFLINE_MODEL_TOKENS_PER_SECOND", DEFAULT_PACE)),
        help="0 is as fast as possible",
    )
    options = parser.parse_args()
    listener = listen(port=options.port)
    print(url_of(listener), flush=True)
    make_server(Journal(), options.tokens_per_second, log_level="critical").run([listener])


if __name__ == "__main__":
    main()
