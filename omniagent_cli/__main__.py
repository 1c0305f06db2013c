"""`omniagent COMMAND [NAME=value ...]`: what `make` does in our repository, in a project."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import omniagent
from omniagent_cli.errors import CommandError

Run = Callable[[list[str]], int]
FOLDER = Path(__file__).resolve().parent
SHIPPED = FOLDER / "shipped" if (FOLDER / "shipped").is_dir() else FOLDER.parent
"""`local`, `scripts` and `docs`: a folder of the wheel, in our repository beside this package."""
OURS = {"local", "omniagent", "omniagent_cli", "scripts"}
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")
HELP = f"""omniagent {omniagent.__version__}: a session-aware AI chat backend for AWS Lambda

  omniagent new shop     make a project: an agent, its tests, and a template that `sam build` takes

In a project:
  omniagent run          run the whole product on this machine, with a playground in the browser: PORT=8000
  omniagent chat         chat in the terminal with the running `omniagent run`
  omniagent test         run the project's own tests; options are pytest's: omniagent test -k refund
  omniagent invoke       invoke a function once: omniagent invoke chat event.json

  omniagent preflight    check the prerequisites of a deploy: STAGE=dev
  omniagent deploy       check, build, deploy to AWS and build the indexes: STAGE=dev
  omniagent smoke        test a deployment from outside: STAGE=dev, or URL=http://127.0.0.1:8000; TOKEN=… ORIGIN=…
                         with MODEL=… a model instead
  omniagent migrate      build the indexes of a deployed release: STAGE=dev
  omniagent turns        list the turns of all users, or stop one: STAGE=dev STOP=<id>
  omniagent stop-all     stop every function of a deployed stack at once, in an emergency: STAGE=dev
  omniagent start-all    let them run again: STAGE=dev

  omniagent upgrade      bring our files in the project to the version of this command; yours stay as they are

The documents: {SHIPPED / "docs"}
"""


def _call(module: str, function: str, *arguments: Any) -> int:
    """Import a module only when its command is called: each command needs packages of its own."""
    return int(getattr(import_module(module), function)(*arguments))


IN_A_PROJECT: dict[str, Run] = {
    "chat": lambda arguments: _call("local.__main__", "main", ["chat", *arguments]),
    "deploy": lambda arguments: _call("omniagent_cli.deploy", "run", arguments),
    "invoke": lambda arguments: _call("local.__main__", "main", ["invoke", *arguments]),
    "migrate": lambda _: _call("scripts.migrate", "main"),
    "preflight": lambda arguments: _call("scripts.preflight", "main", arguments),
    "run": lambda arguments: _call("local.__main__", "main", ["run", *arguments]),
    "smoke": lambda arguments: (
        _call("scripts.smoke_model", "main", [model])
        if (model := os.environ.get("MODEL"))
        else _call("scripts.smoke", "main", arguments)
    ),
    "start-all": lambda _: _call("scripts.stop_all", "main", ["start"]),
    "stop-all": lambda _: _call("scripts.stop_all", "main", ["stop"]),
    "test": lambda arguments: _call("omniagent_cli.team_tests", "run", arguments),
    "turns": lambda _: _call("scripts.turns", "main"),
    "upgrade": lambda arguments: _call("omniagent_cli.upgrade", "run", arguments),
}
ANYWHERE: dict[str, Run] = {
    "new": lambda arguments: _call("omniagent_cli.new", "run", arguments),
    # For the recipes of `sam build`.
    "interpreter": lambda arguments: _call("omniagent_cli.recipes", "print_interpreter", arguments),
    "package": lambda _: _call("omniagent_cli.recipes", "print_package"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["help"]
    if name in {"help", "--help", "-h"}:
        print(HELP)
        return 0
    if name in {"version", "--version"}:
        print(omniagent.__version__)
        return 0
    sys.path.insert(0, str(SHIPPED))
    try:
        return _command(name)(_without_variables(rest))
    except CommandError as error:
        print(error, file=sys.stderr)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OURS:
            raise
        print(f"`omniagent {name}` needs {error.name}: pip install 'omniagent[local]'", file=sys.stderr)
    return 1


def _command(name: str) -> Run:
    if name in ANYWHERE:
        return ANYWHERE[name]
    if name not in IN_A_PROJECT:
        raise CommandError(f"There is no command {name}. `omniagent help` lists them.")
    from local.places import IS_REPOSITORY, ROOT, find_project

    if IS_REPOSITORY:
        raise CommandError(f"This is the omniagent of its repository, whose commands are `make`: make {name}")
    if find_project(ROOT) is None:
        raise CommandError(f"{ROOT} is no project. Make one: omniagent new shop")
    _check_version(name, ROOT)
    return IN_A_PROJECT[name]


def _check_version(command: str, project: Path) -> None:
    from omniagent_cli.project_files import version_of

    version = version_of(project)
    if command != "upgrade" and version != omniagent.__version__:
        raise CommandError(
            f"This project is of omniagent {version}, this command of {omniagent.__version__}. Upgrade the project: "
            f"omniagent upgrade. Or install its version: pip install 'omniagent[local]=={version}'"
        )


def _without_variables(arguments: list[str]) -> list[str]:
    """Set the variables among the arguments, as make does, and return the others, those in ARGS included."""
    variables = dict(each.split("=", 1) for each in arguments if VARIABLE.match(each))
    os.environ |= variables
    # A mirror of PyPI that pip was told of serves uv as well.
    if index := os.environ.get("PIP_INDEX_URL"):
        os.environ.setdefault("UV_DEFAULT_INDEX", index)
    named = [variables[name] for name in ("FUNCTION", "EVENT") if name in variables]
    others = [argument for argument in arguments if not VARIABLE.match(argument)]
    return [*named, *others, *shlex.split(variables.get("ARGS", ""))]


if __name__ == "__main__":
    sys.exit(main())
