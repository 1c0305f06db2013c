"""`omniagent deploy` does in a project what `make deploy` does here, in the same order."""

import sys
from pathlib import Path

import pytest

from omniagent_cli import deploy
from omniagent_cli.errors import CommandError

SAM = """#!/bin/sh
echo "$PYTHON $@" >> "{log}"
[ "$1" != "$FAILING" ]
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the steps did, with a `sam` and checks that reach no AWS."""
    log = tmp_path / "log"
    log.touch()
    (tmp_path / "sam").write_text(SAM.format(log=log))
    (tmp_path / "sam").chmod(0o755)

    def note(line: str) -> int:
        log.write_text(f"{log.read_text()}{line}\n")
        return 0

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("STAGE", "prod")
    monkeypatch.setattr("scripts.preflight.main", lambda stages: note(f"preflight {stages[0]}"))
    monkeypatch.setattr("scripts.migrate.main", lambda: note("migrate"))
    return log


def test_a_deploy_checks_builds_deploys_and_migrates(log: Path) -> None:
    assert deploy.run(["--no-execute-changeset"]) == 0
    check, build, change, migrate = log.read_text().splitlines()
    assert (check, migrate) == ("preflight prod", "migrate")
    assert build == f"{sys.executable} build"
    assert change.startswith(
        f"{sys.executable} deploy --config-env prod --parameter-overrides file://parameters/prod.yaml Release="
    )
    assert change.endswith(" --no-execute-changeset")


@pytest.mark.parametrize(("failing", "steps"), [("build", 2), ("deploy", 3)])
def test_the_first_step_that_fails_is_the_last(
    failing: str, steps: int, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILING", failing)
    assert deploy.run([]) == 1
    assert len(log.read_text().splitlines()) == steps


def test_a_machine_without_sam_is_told_how_to_get_it(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CommandError, match="uv tool install aws-sam-cli"):
        deploy.run([])
