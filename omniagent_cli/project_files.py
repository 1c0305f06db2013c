"""What a project is made of: our files, which an upgrade replaces, and the first version of a team's files."""

import hashlib
import re
from pathlib import Path

import omniagent
from local.places import HOME, MANIFEST
from omniagent_cli.errors import CommandError

SKELETON = Path(__file__).with_name("skeleton")
PIN = "layers/core/omniagent.txt"
"""Our file with the version of a project."""
OURS = (
    "functions/Makefile",
    "functions/chat/app.py",
    "functions/run/app.py",
    "functions/sessions/app.py",
    "functions/summary/app.py",
    "layers/core/Makefile",
    "layers/core/bin/streaming",
    "layers/core/requirements.txt",
    "layers/target.mk",
    "template.yaml",
)
THEIRS = {
    ".gitignore": SKELETON / "gitignore",
    "README.md": SKELETON / "README.md",
    "functions/agent.py": HOME / "functions/agent.py",
    "functions/project.py": HOME / "functions/project.py",
    "functions/requirements.txt": HOME / "functions/requirements.txt",
    "parameters/dev.yaml": HOME / "parameters/dev.yaml",
    "parameters/local.example.json": HOME / "parameters/local.example.json",
    "parameters/prod.yaml": HOME / "parameters/prod.yaml",
    "pytest.ini": SKELETON / "pytest.ini",
    "samconfig.toml": HOME / "samconfig.toml",
    "tests/test_agent.py": HOME / "tests/agent/test_agent.py",
}


def our_files() -> dict[str, str]:
    """Return the text of each of our files in a project of this version."""
    pin = f"# The version of this project. `omniagent upgrade` changes it.\nomniagent=={omniagent.__version__}\n"
    return {PIN: pin, **{path: _as_typed_there((HOME / path).read_text()) for path in OURS}}


def their_files(name: str) -> dict[str, str]:
    """Return the first text of each file that a team edits."""
    texts = {path: _as_typed_there(source.read_text()) for path, source in THEIRS.items()}
    # The name of the stacks, and of the project.
    named = {
        "samconfig.toml": re.sub(r'(?<=["=])omniagent\b', name, texts["samconfig.toml"]),
        "README.md": texts["README.md"].replace("PROJECT", name),
    }
    return texts | named


def manifest(files: dict[str, str]) -> str:
    """Return the list of our files, in the format of sha256sum."""
    return "".join(f"{_digest(text.encode())}  {path}\n" for path, text in sorted(files.items()))


def recorded(project: Path) -> dict[str, str]:
    """Return the hash of each of our files when it was written."""
    lines = (project / MANIFEST).read_text().splitlines()
    return {path: digest for digest, _, path in (line.partition("  ") for line in lines)}


def edited(project: Path) -> list[str]:
    """Return those of our files that somebody has changed since. A deleted one is not changed."""
    return [
        path
        for path, digest in recorded(project).items()
        if (project / path).exists() and _digest((project / path).read_bytes()) != digest
    ]


def version_of(project: Path) -> str:
    """Return the version of a project."""
    try:
        found = re.search(r"^omniagent==(\S+)$", (project / PIN).read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        raise CommandError(f"{PIN} does not say the project's version: restore it, or write `omniagent==VERSION`.")
    return found[1]


def write(project: Path, files: dict[str, str]) -> None:
    """Write files. Programs are executable."""
    for path, text in files.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
        if text.startswith("#!"):
            (project / path).chmod(0o755)


def _as_typed_there(text: str) -> str:
    """What is `make run` in the repository is `omniagent run` in a project."""
    return text.replace("`make ", "`omniagent ")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
