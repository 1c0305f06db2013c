"""`omniagent test`: the tests of a team, with the packages that its functions have on Lambda, and pytest."""

import subprocess

from local.packages import project_environment
from local.places import HOME, ROOT
from local.processes import ServiceError
from omniagent_cli.errors import CommandError


def run(arguments: list[str]) -> int:
    """Run pytest in the project. Its exit code is ours."""
    try:
        python = project_environment(HOME / "requirements-test.txt") / "bin" / "python"
    except ServiceError as error:
        raise CommandError(str(error)) from None
    return subprocess.run([str(python), "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode
