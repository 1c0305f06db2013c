"""The alternative frameworks, each in its own virtual environment under `.bench/`."""

import subprocess
import sys
from pathlib import Path

from local.template import ROOT

FOLDER = ROOT / ".bench"
SCRIPTS = Path(__file__).with_name("scripts")
# What each also needs for the same job: HTTP on Lambda, MongoDB, DynamoDB. Only its size is measured.
SAME_JOB = ["fastapi==0.162.4", "mangum==0.22.0", "pymongo==4.19.0", "boto3==1.44.0"]
PEERS: dict[str, list[str]] = {
    "openai SDK": ["openai==3.49.0"],
    "openai-agents": ["openai-agents[mongodb]==0.24.0", "uvicorn==0.54.0", "starlette==1.10.0"],
    "pydantic-ai": ["pydantic-ai-slim[openai]==2.66.0"],
    "strands-agents": ["strands-agents[openai]==1.62.0"],
}
FRAMEWORKS = [name for name in PEERS if name != "openai SDK"]


def python_of(peer: str) -> Path:
    """Return the interpreter of a peer's environment, which is created on first use."""
    folder = FOLDER / peer.replace(" ", "-").lower()
    ready = folder / "installed"
    wanted = "\n".join(PEERS[peer] + SAME_JOB)
    if not ready.exists() or ready.read_text() != wanted:
        print(f"  installing {peer} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        packages = PEERS[peer] + (SAME_JOB if peer in FRAMEWORKS else [])
        subprocess.run([str(folder / "bin/pip"), "install", "-qqq", *packages], check=True)
        ready.write_text(wanted)
    return folder / "bin/python"


def script_of(peer: str) -> Path:
    return SCRIPTS / f"{peer.replace(' ', '_').replace('-', '_').lower()}.py"


def site_packages_of(peer: str) -> Path:
    return next((python_of(peer).parent.parent / "lib").glob("python3*")) / "site-packages"


# A short and a long answer in one process: their difference excludes the cost of imports and connecting.
_MEASURED = """
import runpy, sys, time
script, base_url, *prompts = sys.argv[1:]
path, spent = list(sys.path), []
for prompt in [prompts[0], *prompts]:
    sys.path[:], sys.argv = path, [script, base_url, prompt, "1"]
    before = time.process_time()
    runpy.run_path(script, run_name="__main__")
    spent.append(time.process_time() - before)
print(spent[2] - spent[1], file=sys.stderr)
"""


def sdk_cpu(model_url: str, *arguments: int) -> str:
    """Return what `scripts/sdk_cpu.py` prints."""
    command = [str(python_of("openai SDK")), str(SCRIPTS / "sdk_cpu.py"), model_url, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def paced_cpu_of(peer: str, model_url: str, deltas: int) -> float:
    """Return a peer's CPU microseconds per delta, at 100 deltas a second."""
    prompts = ["[burst:1]", f"[slow:10] [long:{deltas}]"]
    command = [str(python_of(peer)), "-c", _MEASURED, str(script_of(peer)), model_url, *prompts]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return float(done.stderr.split()[-1]) / deltas * 1e6
