"""`omniagent deploy`: what `make deploy` does in our repository."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from local.places import ROOT
from omniagent_cli.errors import CommandError
from scripts import migrate, preflight


def run(arguments: list[str]) -> int:
    """Check, build, deploy and build the indexes. The first step that fails is the last."""
    sam = shutil.which("sam")
    if sam is None:
        raise CommandError("The SAM CLI is not installed, which builds and deploys: uv tool install aws-sam-cli")
    stage = os.environ.get("STAGE", "dev")
    deploy = [
        *("deploy", "--config-env", "default" if stage == "dev" else stage),
        # The release is new each time, so that a parameter's new value is published as well (see template.yaml).
        *("--parameter-overrides", f"file://parameters/{stage}.yaml", f"Release={int(time.time())}"),
        *shlex.split(os.environ.get("SAM_ARGS", "")),
        *arguments,
    ]
    return preflight.main([stage]) or _sam(sam, "build") or _sam(sam, *deploy) or migrate.main()


def _sam(sam: str, *arguments: str) -> int:
    # The layer gets the omniagent of this Python.
    tools = {"PYTHON": sys.executable, "SAM_CLI_TELEMETRY": "0"}
    if uv := shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])):
        tools["UV"] = uv
    return subprocess.run([sam, *arguments], cwd=ROOT, env=os.environ | tools, check=False).returncode
