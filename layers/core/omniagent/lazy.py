"""Public modules whose names are imported on first use: a function pays only for what it needs."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    module: str, homes: Mapping[str, str], *, extra: str = ""
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return a module's `__all__`, `__getattr__` and `__dir__`. `homes` maps modules of the package to their names.

    `extra` is the extra of the wheel that has what the modules import.
    """
    home_of = {name: f"omniagent.{home}" for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(home_of[name]), name)
        except ModuleNotFoundError as exc:
            if not extra:
                raise
            raise ImportError(f"{module}.{name} needs {exc.name}: pip install 'omniagent[{extra}]'") from exc
        setattr(sys.modules[module], name, value)
        return value

    return sorted(home_of), load, lambda: sorted({*home_of, *vars(sys.modules[module])})
