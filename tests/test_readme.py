"""The pages against the repository: every table, command, link, path, setting, parameter and alarm in them is real."""

import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from local.template import ROOT, TEMPLATE
from omniagent.ai.providers.llm_provider import Purpose
from omniagent.app.on_lambda import SECRET_KEYS
from omniagent.settings import Settings, env_name
from scripts.readme import PAGES as TABLES
from scripts.readme import README, rendered
from tests.security.routes import ROUTES

PAGES = [
    README,
    *(ROOT / name for name in ("CONTRIBUTING.md", "examples/nextjs/README.md", "events/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
# What the pages name that neither the settings nor the template define: AWS does, and the metrics' namespace.
OF_OTHERS = {"AWS_LAMBDA_EXEC_WRAPPER", "AWS_REGION", "AllAtOnce", "OmniAgent", "ROLLBACK_COMPLETE", "Url5xxCount"}
OF_CLOUDFRONT = {"AllViewerExceptHostHeader", "CachingDisabled"}
COMMANDS = {"aws", "git", "make", "npm", "npx", "omniagent", "sam"}
MOST_LINES = 160
OF_THE_WORKFLOW = set(re.findall(r"(?:vars|secrets)\.(\w+)", (ROOT / ".github/workflows/deploy.yml").read_text()))

every_page = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])


@pytest.mark.parametrize("page", TABLES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_code(page: Path) -> None:
    assert rendered(page) == page.read_text(), "run `make readme`"


@every_page
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`|… )make ([a-z][a-z0-9-]+)", page.read_text(), re.MULTILINE)) <= targets


@every_page
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", _without_code(page)):
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not heading or heading in _anchors(target), link


@every_page
def test_every_path_that_is_named_exists(page: Path) -> None:
    folders = "functions|tests|events|local|bench|layers|parameters|examples|scripts|docs"
    for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", page.read_text()):
        assert (ROOT / path).exists(), path


@every_page
def test_every_setting_that_is_named_exists(page: Path) -> None:
    settings = {env_name(setting) for setting in fields(Settings)} | {*SECRET_KEYS["mongodb"], *SECRET_KEYS["openai"]}
    named = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", page.read_text()))
    assert named <= settings | OF_OTHERS | OF_THE_WORKFLOW


@pytest.mark.parametrize("name", ["deploy.md", "operations.md"])
def test_every_name_of_the_template_that_is_named_exists(name: str) -> None:
    of_the_template = set(re.findall(r"^  (\w+):$", TEMPLATE.read_text(), re.MULTILINE))
    named = set(re.findall(r"`((?:[A-Z][A-Za-z]*[a-z0-9]){2,})(?:: [^`]+)?`", _without_code(ROOT / "docs" / name)))
    assert named <= of_the_template | _metrics() | OF_OTHERS | OF_CLOUDFRONT


def test_every_alarm_and_every_metric_is_explained() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    alarms = set(re.findall(r"^  (\w+):\n    Type: AWS::CloudWatch::Alarm$", TEMPLATE.read_text(), re.MULTILINE))
    assert alarms
    assert {name for name in alarms | _metrics() if f"`{name}`" not in page} == set()


@every_page
def test_every_log_message_that_is_named_is_logged(page: Path) -> None:
    package = "".join(path.read_text() for path in (ROOT / "layers/core/omniagent").rglob("*.py"))
    phrases = set(re.findall(r"`([a-z']+(?: [a-z']+)+)`", _without_code(page)))
    assert {phrase for phrase in phrases if phrase not in package and phrase.split()[0] not in COMMANDS} == set()


def test_the_sections_stand_in_the_order_a_newcomer_needs_them() -> None:
    assert re.findall(r"^## (.+)$", README.read_text(), re.MULTILINE) == [
        "Try it",
        "Write an agent",
        "Connect a page",
        "What is guaranteed",
        "When to use it, and when not",
        "Deploy",
        "Read on",
    ]
    assert len(README.read_text().splitlines()) <= MOST_LINES


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)", README.read_text()))
    assert {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")} <= linked


def test_the_api_page_lists_every_route() -> None:
    listed = set()
    for cell in re.findall(r"^\| (`[A-Z]+ /[^|]+) \|", (ROOT / "docs/api.md").read_text(), re.MULTILINE):
        path = ""
        for method, own_path in re.findall(r"`([A-Z]+)(?: ([^`?]+))?[^`]*`", cell):
            path = own_path or path
            listed.add((method, _with_unnamed_ids(path)))
    assert listed == {(route.method, _with_unnamed_ids(route.path)) for route in ROUTES}


def test_help_begins_with_the_commands_of_a_team_s_day() -> None:
    listed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^  make ([\w-]+)", listed, re.MULTILINE)
    assert names[:5] == ["run", "chat", "test", "deploy", "smoke"]
    assert sorted(names) == sorted(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _with_unnamed_ids(path: str) -> str:
    return re.sub(r"\{\w+\}", "{}", path)


def _metrics() -> set[str]:
    """Our own metrics: those of the dashboard, and the tokens of other model calls than answers."""
    rows = re.findall(r'"title": .*?\n *"metrics": \[(.*?)\]\}\}', TEMPLATE.read_text(), re.DOTALL)
    own = [row for row in rows if '["OmniAgent"' in row]
    shown = {name for row in own for name in re.findall(r'\["(?:OmniAgent|\.)", "(\w+)"', row)}
    others = [purpose.capitalize() for purpose in get_args(Purpose) if purpose != "answer"]
    return shown | {f"{purpose}{direction}Tokens" for purpose in others for direction in ("Input", "Output")}


def _without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
