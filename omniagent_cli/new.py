"""`omniagent new NAME`: makes a project."""

import re
from pathlib import Path

import omniagent
from local.places import MANIFEST, find_project
from omniagent_cli.errors import CommandError
from omniagent_cli.project_files import manifest, our_files, their_files, write


def run(arguments: list[str]) -> int:
    match arguments:
        case [folder]:
            make_project(Path(folder))
            return 0
    raise CommandError("Name the project: omniagent new shop")


def make_project(folder: Path) -> None:
    """Create the folder with everything in it, and say what comes next."""
    name = folder.absolute().name
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,29}", name):
        raise CommandError(
            f"{name!r} cannot name a project, because it names the stack: use a small letter, then up to 29 small "
            "letters, digits or hyphens."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"{folder} exists already. Choose another name, or delete it.")
    if around := find_project(folder.absolute().parent):
        raise CommandError(f"{around} is a project itself. Make the new one elsewhere.")
    ours = our_files()
    write(folder, their_files(name) | ours | {MANIFEST: manifest(ours)})
    print(f"""{folder} is a project of omniagent {omniagent.__version__}.

  cd {folder}
  omniagent run          the whole product on this machine, with a playground in the browser
  omniagent test         the tests of your agent, in tests/

Your agent is functions/agent.py. README.md says what else is yours.""")
