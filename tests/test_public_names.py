"""The public surface: what a team may import, and what importing it costs."""

import functools
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from typing_extensions import is_protocol

import omniagent
from local.template import ROOT
from omniagent import errors
from omniagent.lazy import public_imports
from scripts.readme import PUBLIC_MODULES, documentation
from tests.docs.blocks import PAGES, read_blocks

PUBLIC = [(module, name) for module in PUBLIC_MODULES for name in vars(module)["__all__"]]


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[name for _, name in PUBLIC])
def test_programs_find_what_type_checkers_find(module: ModuleType, name: str) -> None:
    home = public_imports(module.__name__)[name]
    assert getattr(module, name) is getattr(import_module(home), name)


def test_the_errors_need_no_import_of_their_own() -> None:
    program = "import omniagent; print(omniagent.errors.NotFound.status)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("404\n", "")


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[name for _, name in PUBLIC])
def test_each_public_name_is_documented(module: ModuleType, name: str) -> None:
    """With words of its own: a base class describes something else, a dataclass only its signature."""
    text = documentation(module, name)
    assert text
    assert not text.startswith(f"{name}(")
    assert text not in [inspect.getdoc(base) for base in getattr(getattr(module, name), "__mro__", ())[1:]]


def test_each_type_that_a_public_name_takes_or_returns_is_public() -> None:
    public = {getattr(module, name) for module, name in PUBLIC if isinstance(getattr(module, name), type)}
    functions = [function for module, name in PUBLIC for function in _callables(getattr(module, name))]
    used = {each for function in functions for each in _types(_hints(function))}
    # The errors are a public module.
    missing = {each.__name__ for each in used - public if each.__module__ != errors.__name__}
    assert missing == set()


def _callables(value: Any) -> Iterator[Any]:
    """The functions that a team may call, and the classes that have fields."""
    if not isinstance(value, type):
        yield from [value] if inspect.isfunction(value) else []
        return
    for base in value.__mro__:
        if base.__module__.startswith("omniagent."):
            yield base
            for key, each in list(vars(base).items()):
                function = getattr(each, "__func__", getattr(each, "fget", getattr(each, "func", each)))
                if inspect.isfunction(function) and (not key.startswith("_") or key in ("__init__", "__call__")):
                    yield function


def _hints(annotated: Any) -> list[Any]:
    """Names are unique in the package, so that one namespace also has what a module imports for type checkers only."""
    hints = get_type_hints(annotated, localns={**_namespace(), **vars(sys.modules[annotated.__module__])})
    return [hint for name, hint in hints.items() if not name.startswith("_")]


@functools.cache
def _namespace() -> dict[str, Any]:
    modules = pkgutil.walk_packages(omniagent.__path__, "omniagent.")
    found = [vars(import_module(each.name)) for each in modules if not each.name.endswith("__main__")]
    return {name: value for names in found for name, value in names.items()} | {"TracerProvider": object}


def _types(hint: Any) -> Iterator[type]:
    """The classes of ours in an annotation. A protocol is met, not named."""
    for each in [get_origin(hint), hint]:
        if isinstance(each, type) and each.__module__.startswith("omniagent.") and not is_protocol(each):
            yield each
    for inner in hint if isinstance(hint, list) else get_args(hint):
        yield from _types(inner)


TEAM_CODE = [
    *PAGES,
    *sorted((ROOT / "examples").glob("*.py")),
    *sorted((ROOT / "functions").glob("*.py")),
]


@pytest.mark.parametrize("path", TEAM_CODE, ids=[str(path.relative_to(ROOT)) for path in TEAM_CODE])
def test_what_a_team_is_shown_to_write_imports_public_names_only(path: Path) -> None:
    shown = "".join(block.text for block in read_blocks(path) if block.runs) if path in PAGES else path.read_text()
    imports = set(re.findall(r"^ *(?:from|import) (omniagent\S*)", shown, re.MULTILINE))
    # The errors have a module of their own. A page compares its own code with what the run function sends.
    assert imports <= {*(module.__name__ for module in PUBLIC_MODULES), "omniagent.errors", "omniagent.app.webhook"}


def test_another_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = omniagent.Nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("imports", ["import omniagent.errors", "from omniagent import Project"])
def test_importing_the_package_loads_nothing_that_is_not_asked_for(imports: str) -> None:
    """Cold starts are paid for by the name: errors, tools and projects need no driver and no SDK."""
    heavy = ["openai", "beanie", "pymongo", "boto3", "fastapi", "opentelemetry.sdk"]
    code = f"import sys; {imports}; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def _tree(kind: type[errors.OmniAgentError]) -> list[type[errors.OmniAgentError]]:
    below = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return [kind, *(deeper for each in below for deeper in _tree(each))]


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    drawn = [line.split()[-1] if "──" not in line else line.split("──")[1].split()[0] for line in _drawing()]
    assert drawn == [kind.__name__ for kind in _tree(errors.OmniAgentError)]


def _drawing() -> list[str]:
    lines = (errors.__doc__ or "").splitlines()
    return [line for line in lines if line == "OmniAgentError" or "──" in line]


def test_every_error_has_a_public_text_a_code_and_a_status() -> None:
    renamed = {}
    for kind in _tree(errors.OmniAgentError):
        assert kind.public.endswith((".", "it."))
        assert kind.title == kind.code.replace("_", " ").capitalize()
        assert 400 <= kind.status < 600
        if kind.code.replace("_", "") != kind.__name__.lower():
            renamed[kind.__name__] = kind.code
    assert renamed == {
        "OmniAgentError": "internal_error",
        "RequestError": "bad_request",
        "NotAllowed": "method_not_allowed",
        **dict.fromkeys(["UnknownModelError", "ContractError", "RegistryMisconfigured"], "configuration_error"),
    }
    for kind in (errors.TurnInProgress, errors.TooManyTurns, errors.StorageUnavailable, errors.RegistryUnavailable):
        assert kind.retry_after is not None
