"""A function's module, loaded as Lambda loads it: fresh, with its environment."""

import asyncio
import importlib.util
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from omniagent.aws.services import Services, get_services
from omniagent.lambda_runtime import event_loop

FUNCTIONS = Path(__file__).parents[2] / "functions"


@contextmanager
def loaded(function: str, environment: Mapping[str, str]) -> Iterator[Any]:
    """Load `functions/<function>/app.py`. What it did to the process's logging is undone afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    spec = importlib.util.spec_from_file_location(f"{function}_app", FUNCTIONS / function / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
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
