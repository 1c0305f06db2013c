"""`omniagent upgrade`: brings a project to the version of this command. It changes our files only."""

import shutil
from pathlib import Path

import omniagent
from local.places import MANIFEST, ROOT
from omniagent_cli.errors import CommandError
from omniagent_cli.project_files import edited, manifest, our_files, recorded, version_of, write


def run(arguments: list[str]) -> int:
    if arguments:
        raise CommandError("`omniagent upgrade` takes no options. First install: pip install -U 'omniagent[local]'")
    upgrade(ROOT)
    return 0


def upgrade(project: Path) -> None:
    """Replace our files, unless one was edited or is in the way of a file of the team."""
    before, now = version_of(project), omniagent.__version__
    if _order(before) > _order(now):
        raise CommandError(
            f"This project is of omniagent {before}, which is newer than this command ({now}). "
            f"Install it: pip install 'omniagent[local]=={before}'"
        )
    old, new = recorded(project), our_files()
    if found := edited(project):
        raise CommandError(
            f"{', '.join(found)}: edited, but replaced by an upgrade. Move your change to a file of yours, delete "
            "this one, and run `omniagent upgrade` again: it writes the file."
        )
    if taken := [path for path in new if path not in old and (project / path).exists()]:
        raise CommandError(f"{', '.join(taken)}: yours, but omniagent {now} has a file of this name. Rename yours.")
    for path in old.keys() - new.keys():
        (project / path).unlink(missing_ok=True)
    changed = [path for path, text in new.items() if not _has(project / path, text)]
    write(project, new | {MANIFEST: manifest(new)})
    # What was built of the old version. SAM's cache would not see each change.
    shutil.rmtree(project / ".aws-sam", ignore_errors=True)
    versions = f"is of omniagent {now}" if before == now else f"was of omniagent {before} and is of {now}"
    print(f"{project.name} {versions}. Our files that changed: {len(changed)}.")
    for path in sorted(changed):
        print(f"  {path}")


def _has(file: Path, text: str) -> bool:
    return file.exists() and file.read_text() == text


def _order(version: str) -> tuple[int, ...]:
    """Compare by numbers: 0.10.0 is newer than 0.9.0."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())
