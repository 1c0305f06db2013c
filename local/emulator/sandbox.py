"""The surroundings of a function's processes: the folders for Lambda's /opt and /var/runtime, and the environment."""

import os
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local.cloudformation import REGION
from local.interpreters import bare_python, built_for
from local.packages import ENVIRONMENTS, environment_of
from local.processes import clean_environment
from local.template import Function

BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
SNAPSHOT_AGENT = Path(__file__).with_name("snapshot_agent.py")
BYTECODE = ENVIRONMENTS / "bytecode"


@dataclass(frozen=True)
class Sandbox:
    """The folders of a function."""

    function: Function
    folder: Path
    built: bool

    @classmethod
    def prepare(cls, function: Function, folder: Path, *, built: bool) -> "Sandbox":
        """Create the folders.

        From source, a layer's folder is used as its `python` folder, and its dependencies are in a virtual environment
        for the functions. Built, the layer is the output of `sam build`, and runs on the bare interpreter.
        """
        opt = folder / "opt"
        opt.mkdir(parents=True)
        for layer in function.layers:
            parts = layer.iterdir() if built else (layer / "bin", layer)
            for part in parts:
                (opt / ("python" if part == layer else part.name)).symlink_to(part)
        runtime = folder / "runtime"
        runtime.mkdir()
        shutil.copy(BOOTSTRAP, runtime)
        if function.snap_start:
            (folder / "snapshot").mkdir()
            # Python imports a module of this name before anything else.
            shutil.copy(SNAPSHOT_AGENT, folder / "snapshot" / "sitecustomize.py")
        return cls(function, folder, built)

    def command(self) -> list[str]:
        """Return the command that Lambda would use: the bootstrap, through the exec wrapper if there is one.

        Blocks while packages are installed.
        """
        python = self._bare_python() if self.built else str(environment_of(self.function) / "bin" / "python")
        start = [python, str(self.folder / "runtime" / BOOTSTRAP.name)]
        wrapper = self.function.environment.get("AWS_LAMBDA_EXEC_WRAPPER")
        return [self._inside(wrapper), *start] if wrapper else start

    def environment(self, runtime_api: str, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a new process. Variables that Lambda reserves cannot be overridden."""
        function = self.function
        passed_on = clean_environment()
        reserved = {
            "_HANDLER": function.handler,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EXECUTION_ENV": f"AWS_Lambda_{function.runtime}",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory),
            "AWS_LAMBDA_FUNCTION_NAME": function.name,
            "AWS_LAMBDA_FUNCTION_VERSION": self.version,
            "AWS_LAMBDA_INITIALIZATION_TYPE": "snap-start" if function.snap_start else "on-demand",
            "AWS_LAMBDA_LOG_FORMAT": function.log_format,
            "AWS_LAMBDA_LOG_GROUP_NAME": function.log_group,
            **self.log_stream(),
            "AWS_LAMBDA_RUNTIME_API": runtime_api,
            "AWS_REGION": REGION,
            "LAMBDA_RUNTIME_DIR": str(self.folder / "runtime"),
            "LAMBDA_TASK_ROOT": str(function.code),
            "LANG": "en_US.UTF-8",
            **self._bytecode(),
            "PATH": f"{self.folder / 'opt' / 'bin'}{os.pathsep}{passed_on.get('PATH', os.defpath)}",
            "TZ": ":UTC",
        }
        if function.requests_at_once > 1:
            reserved["AWS_LAMBDA_MAX_CONCURRENCY"] = str(function.requests_at_once)
        if function.log_level:
            reserved["AWS_LAMBDA_LOG_LEVEL"] = function.log_level
        if wrapper := function.environment.get("AWS_LAMBDA_EXEC_WRAPPER"):
            reserved["AWS_LAMBDA_EXEC_WRAPPER"] = self._inside(wrapper)
        if function.snap_start:
            reserved["PYTHONPATH"] = str(self.folder / "snapshot")
        return {**passed_on, **function.environment, **extra, **reserved}

    @property
    def version(self) -> str:
        """The version that runs. Only a published version has a snapshot."""
        return "1" if self.function.snap_start else "$LATEST"

    def log_stream(self) -> dict[str, str]:
        """Return the variable with the name of a new log stream. Each process has its own."""
        name = f"{time.strftime('%Y/%m/%d')}/[{self.version}]{secrets.token_hex(16)}"
        return {"AWS_LAMBDA_LOG_STREAM_NAME": name}

    def _bytecode(self) -> dict[str, str]:
        """Keep bytecode away from the code, which is read-only on Lambda. A built layer has its own bytecode."""
        return {"PYTHONDONTWRITEBYTECODE": "1"} if self.built else {"PYTHONPYCACHEPREFIX": str(BYTECODE)}

    def _bare_python(self) -> str:
        """Return an interpreter of the version and CPU that the layer was built for."""
        for layer in self.function.layers:
            if target := built_for(layer / "python"):
                return bare_python(*target)
        return bare_python("{}.{}".format(*sys.version_info))

    def _inside(self, path: str) -> str:
        """Translate a path below /opt."""
        return str(self.folder / path.lstrip("/")) if path.startswith("/opt/") else path
