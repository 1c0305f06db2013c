"""Where things are: what we ship, and the project that is run. They are one folder in our repository."""

from pathlib import Path

MANIFEST = "omniagent.lock"
"""The file that marks a project. It lists our files in it, with their hashes."""
HOME = Path(__file__).resolve().parent.parent
"""What we ship, in the layout of the repository: the repository itself, or a folder of the installed wheel."""
IS_REPOSITORY = (HOME / "pyproject.toml").is_file()


def find_project(start: Path) -> Path | None:
    """Return the project that a folder is part of."""
    return next((folder for folder in (start, *start.parents) if (folder / MANIFEST).is_file()), None)


ROOT = HOME if IS_REPOSITORY else find_project(Path.cwd()) or Path.cwd()
"""The project: what a team edits, and what is built and run."""


def command(text: str) -> str:
    """Return how a command is typed here: `make run` in the repository, `omniagent run` in a project."""
    return f"{'make' if IS_REPOSITORY else 'omniagent'} {text}"


def page(name: str) -> str:
    """Return where a page of the documents is."""
    return f"docs/{name}" if IS_REPOSITORY else str(HOME / "docs" / name)
