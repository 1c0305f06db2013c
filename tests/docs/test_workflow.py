"""The workflow for GitHub Actions: what it runs exists, and it holds no key."""

import re
from typing import Any

import yaml

from local.template import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "deploy.yml"


def read() -> dict[str, Any]:
    # YAML takes the key `on` for true.
    found: dict[str, Any] = {str(key): value for key, value in yaml.safe_load(WORKFLOW.read_text()).items()}
    return found


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_it_checks_tests_and_audits_before_it_deploys_and_proves() -> None:
    jobs = read()["jobs"]
    assert commands(jobs["test"]) == ["make check", "make validate", "make test COVERAGE=1", "make audit"]
    assert jobs["deploy"]["needs"] == "test"
    assert [command.split()[1] for command in commands(jobs["deploy"])] == ["deploy", "smoke"]
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {command.split()[1] for job in jobs.values() for command in commands(job)}
    assert used <= targets


def test_it_assumes_a_role_and_knows_no_key() -> None:
    workflow = read()
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["jobs"]["deploy"]["permissions"] == {"contents": "read", "id-token": "write"}
    assert "aws-access-key-id" not in WORKFLOW.read_text()
    assert set(re.findall(r"secrets\.(\w+)", WORKFLOW.read_text())) == {"SMOKE_TOKEN"}


def test_a_script_reads_no_expression() -> None:
    """An input inside a script would be run as a part of it."""
    for job in read()["jobs"].values():
        assert not [command for command in commands(job) if "${{" in command]


def test_every_action_is_pinned_by_its_commit() -> None:
    """A tag can be moved. One of these jobs may assume the deploy role."""
    uses = [step["uses"] for job in read()["jobs"].values() for step in job["steps"] if "uses" in step]
    assert uses
    assert [each for each in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each)] == []
