"""Every module, class and public constant of the package has a name of its own: a name says where to look."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import omniagent

PACKAGE = Path(omniagent.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.stem.startswith("__"))


def _repeated(names: Iterator[tuple[str, Path]]) -> dict[str, list[str]]:
    places = defaultdict(list)
    for name, path in names:
        places[name].append(str(path.relative_to(PACKAGE)))
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def _classes() -> Iterator[tuple[str, Path]]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_bytes()).body:  # Beanie's inner `Settings` are no names of ours
            if isinstance(node, ast.ClassDef):
                yield node.name, path


def _constants() -> Iterator[tuple[str, Path]]:
    """Constants and type aliases: what a module assigns under a public name, apart from placeholders of generics."""
    for path in MODULES:
        for node in ast.parse(path.read_bytes()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if "TypeVar(" in ast.unparse(node):
                continue
            for target in targets:
                if isinstance(target, ast.Name) and not target.id.startswith("_") and target.id != "logger":
                    yield target.id, path


def test_no_two_modules_classes_or_public_constants_share_a_name() -> None:
    assert _repeated((path.stem, path) for path in MODULES) == {}
    assert _repeated(_classes()) == {}
    assert _repeated(_constants()) == {}
