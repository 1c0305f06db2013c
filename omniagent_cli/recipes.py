"""What the recipes of `sam build` ask for: the package of a project, and the Python that compiles."""

import sys
from pathlib import Path

import omniagent
from local.interpreters import main as find_interpreter
from omniagent_cli.errors import CommandError
from omniagent_cli.project_files import version_of


def print_package() -> int:
    """Print the folder of the installed package, if it has the version of the project in this folder."""
    if (version := version_of(Path.cwd())) != omniagent.__version__:
        raise CommandError(f"omniagent {version} is not installed for {sys.executable}.")
    print(Path(omniagent.__file__).parent)
    return 0


def print_interpreter(arguments: list[str]) -> int:
    """Print the path of a Python of some version."""
    find_interpreter(arguments)
    return 0
