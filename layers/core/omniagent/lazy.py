"""Public modules whose names are imported on first use: a function pays only for what it needs."""

import re
import sys
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any, Final


def lazy_names(
    module: str, modules: Collection[str] = (), *, extra: str = ""
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return a module's `__all__`, `__getattr__` and `__dir__`.

    Its names are those that its source imports for type checkers, as `name as name`: they are listed once. The
    `modules` below it are attributes too, without an import of their own. `extra` is the extra of the wheel that has
    what the modules import.
    """
    home_of = public_imports(module)

    def load(name: str) -> Any:
        if name in modules:
            return import_module(f"{module}.{name}")
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

    return sorted(home_of), load, lambda: sorted({*home_of, *modules, *vars(sys.modules[module])})


def public_imports(module: str) -> dict[str, str]:
    """Return the public names of a module, with the modules that define them."""
    with open(str(sys.modules[module].__file__), encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs an import
        imports = _IMPORT.findall(file.read())
    return {name: home for home, names in imports for name in _PUBLIC_NAME.findall(names)}


_IMPORT: Final = re.compile(r"^ +from (omniagent\S+) import (\([^)]*\)|.*)", re.MULTILINE)
_PUBLIC_NAME: Final = re.compile(r"(\w+) as \1\b")
