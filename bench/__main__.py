"""`python -m bench` measures everything, `--quick` a little of it. It fails only when it could not measure."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import cold, prompt_cache, providers, report, warm, windows, with_and_without, writes
from bench.figure import Figure
from bench.peers import FRAMEWORKS, paced_cpu_of, sdk_cpu
from bench.servers import served
from local.background import BackgroundStack, background_stack
from local.stack import StackOptions
from local.template import ROOT

BUILT = ROOT / ".build/here"


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    deltas: int
    paced_deltas: int
    long_answer: int
    rounds: int
    turns: int
    stops: int
    histories: list[int]
    branches: int
    memory_turns: int
    more_turns: int
    cold_runs: int
    streams: int
    load_seconds: float


SETTLING = 10
"""How many processes more than streams the function may have in the test of many streams."""
WHOLE = Size(5_000, 500, 100_000, 5, 200, 30, [10, 1_000, 100_000], 1_000, 100, 900, 10, 50, 60)
QUICK = Size(2_000, 300, 50_000, 2, 20, 5, [10, 1_000], 20, 20, 40, 2, 10, 8)


@contextmanager
def stack_with(
    model_url: str,
    concurrency: int = 1,
    *,
    beside: BackgroundStack | None = None,
    **environment: str,
) -> Iterator[BackgroundStack]:
    """Run the built functions, by default with one chat process. A stack `beside` another shares its servers."""
    options = StackOptions(
        template=BUILT / "template.yaml",
        aws=beside.stack.aws if beside else None,
        mongodb_uri=beside.stack.mongodb_uri if beside else "",
        auth="none",
        port=0,
        openai_base_url=model_url,
        environment={
            "TICK_SECONDS": str(warm.TICK_SECONDS),
            "OTEL_EXPORTER_OTLP_ENDPOINT": "",
            "LOG_LEVEL": "WARNING",
            **environment,
        },
        emulator={"concurrency": concurrency},
    )
    with background_stack(options) as stack:
        yield stack


def measure(size: Size) -> Iterator[Figure]:
    """Yield each figure when it is measured."""
    run = partial(served, sys.executable, "-m")
    with run("bench.model") as model_origin, run("bench.sqs") as queue_url:
        model_url = f"{model_origin}/v1"
        # On AWS, messages are handled elsewhere, and so are the functions that they invoke.
        stack_of = partial(stack_with, model_url, AWS_ENDPOINT_URL_SQS=queue_url)
        sdk: dict[str, float] = json.loads(sdk_cpu(model_url, size.deltas, size.rounds))
        peers = {name: paced_cpu_of(name, model_url, size.paced_deltas) for name in FRAMEWORKS}
        for api in ("responses", "chat"):
            with stack_of(OPENAI_API=api) as stack:
                figure = warm.cpu_per_delta(stack, {"openai SDK": sdk[api]}, size.deltas, size.rounds)
                yield Figure(**{**figure.__dict__, "name": f"{figure.name}, {api}"})
                if api == "chat":
                    continue
                yield warm.paced_cpu_per_delta(stack, model_url, peers, size.paced_deltas, size.rounds)
                yield from warm.first_token(stack, model_url, size.turns)
                yield from warm.history_length(stack, size.histories, max(10, size.turns // 4))
                yield from warm.stop_latency(stack, size.stops)
        # Without a table, turns are kept in the process's memory: no chunk is written.
        with stack_of() as stack, stack_of(beside=stack, TURNS_TABLE="") as unlogged:
            yield with_and_without.journal(stack, unlogged, size.long_answer, 2 * size.rounds)
        with stack_of() as stack:
            yield from cold.cold_start(stack, model_url, size.cold_runs)
        with stack_of() as stack:
            yield from warm.memory(stack, model_url, size.memory_turns, size.more_turns)
        # A process that has sent its last byte still has the rest of its turn to do.
        with stack_of(size.streams + SETTLING) as stack:
            yield from warm.load(stack, size.streams, size.load_seconds)
    yield from providers.figures()
    yield from prompt_cache.figures()
    yield from writes.figures()
    yield from windows.read_windows(size.histories[-1], size.branches, 100 * size.rounds)
    yield from cold.package_size(BUILT / "CoreLayer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under two minutes, nothing written")
    quick = parser.parse_args().quick
    if not Path(BUILT / "template.yaml").exists():
        sys.exit("Nothing is built for this machine yet: run `make build-here`.")
    started = time.monotonic()
    figures = []
    for figure in measure(QUICK if quick else WHOLE):
        figures.append(figure)
        print("  ".join(report.row(figure)), flush=True)
    print(f"\n{report.table(figures)}")
    if not quick:
        report.write(figures, (time.monotonic() - started) / 60)


if __name__ == "__main__":
    main()
