"""Cold start and size: the built artifact compared with the peers' bare scripts."""

import statistics
import subprocess
import time
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.client import Client
from bench.figure import Figure, compared
from bench.peers import FRAMEWORKS, PEERS, python_of, script_of, site_packages_of
from bench.system import folder_mb
from bench.warm import new_session
from local.background import BackgroundStack

PROMPT = "[echo:Hello there.]"


def cold_start(stack: BackgroundStack, model_url: str, runs: int) -> list[Figure]:
    """Time from spawn to first byte. Ours also serves HTTP, opens MongoDB and claims the turn; peers only answer."""
    ours = []
    peers: dict[str, list[float]] = {name: [] for name in PEERS}
    for _ in range(runs):
        ours.append(first_byte(stack))
        for name, times in peers.items():
            times.append(_first_output(name, model_url))
    best = {name: min(times) for name, times in peers.items()}
    middle = {name: statistics.median(times) for name, times in peers.items()}
    floor = f"the bare SDK: {best['openai SDK']:.2f} s best, {middle['openai SDK']:.2f} s median"
    return [
        compared("cold start, best", "s", min(ours), {name: best[name] for name in FRAMEWORKS}, target=0.8, note=floor),
        compared(
            "cold start, median", "s", statistics.median(ours), {name: middle[name] for name in FRAMEWORKS}, target=0.8
        ),
        compared(
            "cold start against the bare SDK",
            "s",
            statistics.median(ours),
            {"openai SDK": middle["openai SDK"]},
            target=1.0,
            note="medians",
        ),
    ]


def first_byte(stack: BackgroundStack) -> float:
    """Return the seconds from the request to the first event of a new process."""
    emulator = stack.stack.emulator
    for process in emulator.processes("chat"):
        emulator.kill(process.pid)
    while emulator.processes("chat"):
        time.sleep(0.01)
    started = time.monotonic()
    arrivals = Client(stack.url).ask(PROMPT, new_session())
    first = next(arrivals).at - started
    for _ in arrivals:
        pass
    return first


def _first_output(peer: str, model_url: str) -> float:
    command = [str(python_of(peer)), str(script_of(peer)), model_url, PROMPT, "1"]
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        if process.stdout is None or not process.stdout.read(1):
            raise RuntimeError(f"{peer} answered nothing")
        first = time.monotonic() - started
        process.stdout.read()
    return first


def package_size(layer: Path) -> list[Figure]:
    """Size of the layer, compared with what the peers install for the same job."""
    peers = {name: folder_mb(site_packages_of(name)) - _tools_mb(name) for name in FRAMEWORKS}
    unzipped = compared(
        "package, unzipped", "MB", folder_mb(layer), peers, target=1.0, note="ours with HTTP, MongoDB and AWS"
    )
    with TemporaryDirectory() as folder:
        zipped = Path(folder) / "layer.zip"
        with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in layer.rglob("*"):
                archive.write(path, path.relative_to(layer))
        return [unzipped, Figure("package, zipped", "MB", zipped.stat().st_size / 1e6)]


def _tools_mb(peer: str) -> float:
    """Return the size of pip and setuptools, which belong to the environment, not to the job."""
    return sum(folder_mb(path) for tool in ("pip*", "setuptools*") for path in site_packages_of(peer).glob(tool))
