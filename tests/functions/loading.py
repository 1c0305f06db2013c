"""The functions' code: a module loaded as Lambda loads it, fresh and with its environment; a copy with other files."""

import asyncio
import importlib.util
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from omniagent.aws.services import Services, get_services
from omniagent.lambda_runtime import event_loop

FUNCTIONS = Path(__file__).parents[2] / "functions"


def functions_with(folder: Path, **modules: Path | str) -> Path:
    """Copy the functions into a folder with modules of the test's own: `functions_with(tmp_path, agent=…)`."""
    ignored = shutil.ignore_patterns("__pycache__", "agent.py")
    shutil.copytree(FUNCTIONS, folder, ignore=ignored, dirs_exist_ok=True)
    for name, source in {"agent": FUNCTIONS / "agent.py", **modules}.items():
        (folder / f"{name}.py").write_text(source if isinstance(source, str) else source.read_text())
    return folder


@contextmanager
def loaded(function: str, environment: Mapping[str, str]) -> Iterator[Any]:
    """Load `functions/<function>/app.py`. What it did to the process's logging is undone afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    spec = importlib.util.spec_from_file_location(f"{function}.app", FUNCTIONS / function / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(FUNCTIONS))
        patch.setitem(sys.modules, spec.name, module)  # FastAPI looks up annotations by the module's name
        get_services.cache_clear()
        try:
            spec.loader.exec_module(module)
            yield module
        finally:
            get_services.cache_clear()
            root.handlers[:] = handlers
            root.setLevel(level)


def close(services: Services) -> None:
    """Close what a handler opened on the kept loop, and let the loop finish with it."""

    async def closed() -> None:
        await services.close()
        for _ in range(10):  # tasks that were cancelled end in the next rounds, and then their transports
            await asyncio.sleep(0)

    event_loop.run(closed())
