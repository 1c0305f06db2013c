"""Calls go one way. What each part of the package may import of the others is written here, and nothing else."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "layers" / "core" / "omniagent"


def _table(text: str) -> dict[str, set[str]]:
    table: dict[str, set[str]] = {}
    for word in text.split():
        if word.endswith(":"):
            allowed = table[word[:-1]] = set()
        else:
            allowed.add(word)
    return table


LEAVES = _table(
    """\
    invocation:
    lazy:
    aio:
    errors:
    messages:
    tls: errors
    network:
    tracing:
    settings: errors
    team_code: aio errors
    validation: errors"""
)
# From the bottom up: what a part may import stands above it, or is a leaf.
ALLOWED = LEAVES | _table(
    """\
    budget: errors messages settings team_code
    protocol: errors messages
    ai.prompts: messages
    aws.client: network tls
    ai.providers: aws.client errors messages network settings team_code tls tracing validation
    session: ai.prompts ai.providers budget errors messages settings
    persistence: budget errors messages session settings team_code tracing turns validation
    ai: ai.providers errors messages protocol session settings team_code validation
    turns: ai ai.providers aio budget errors messages protocol session team_code tracing validation
    project: ai ai.providers errors persistence session settings team_code validation
    ai.runner: ai ai.providers budget errors messages project session settings tracing turns validation
    ai.operator: ai ai.runner budget session settings turns
    aws: aws.client budget errors invocation messages tracing turns
    app: ai ai.operator ai.providers ai.runner aio budget errors invocation messages network persistence project
        session settings tls tracing turns
    app.on_lambda: app aws aws.client budget errors persistence project settings tls tracing turns
    http: ai ai.operator app budget errors invocation messages network persistence protocol session settings tls
        tracing validation
    server: ai.operator app http lazy
    lambda_runtime: aws.client http invocation network tracing
    providers: ai.providers lazy messages
    testing: ai.providers budget lazy session turns"""
)

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def part_of(module: str) -> str:
    """The part that a module belongs to: the longest name of it in the table."""
    names = module.split(".")
    candidates = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((name for name in candidates if name in ALLOWED), module)


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it."""
    home = ["omniagent", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = home[: len(home) + 1 - node.level] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                yield whole if is_module(whole) else module


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def ours(path: Path) -> set[str]:
    return {name.removeprefix("omniagent.") for name in imported(path) if name.startswith("omniagent.")}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Imports inside functions count, and those for types."""
    try:
        TopologicalSorter({dotted(path): ours(path) for path in MODULES}).prepare()
    except CycleError as exc:
        pytest.fail(" -> ".join(reversed(exc.args[1])))


def test_the_arrow_has_no_circle() -> None:
    assert list(TopologicalSorter(ALLOWED).static_order())


def test_a_part_imports_what_the_table_says_and_nothing_else() -> None:
    used: dict[str, set[str]] = {part: set() for part in ALLOWED}
    for path in MODULES:
        here = part_of(dotted(path))
        used[here] |= {part_of(name) for name in ours(path)} - {here}
    assert used == ALLOWED


def test_the_drawn_arrow_has_every_part() -> None:
    _, _, drawing = (ROOT / "CONTRIBUTING.md").read_text().partition("Imports go one way")
    drawn = set(re.findall(r"[a-z_.]*[a-z_]", drawing.partition("\n## ")[0]))
    assert ALLOWED.keys() - LEAVES <= drawn


def reachable(part: str) -> set[str]:
    return ALLOWED[part].union(*(reachable(next_part) for next_part in ALLOWED[part]))


@pytest.mark.parametrize("part", ["session", "ai", "turns"])
def test_the_life_of_a_turn_knows_neither_aws_nor_http_nor_mongodb(part: str) -> None:
    assert not {"app", "aws", "http", "lambda_runtime", "persistence", "project"} & reachable(part)


@pytest.mark.parametrize("part", ["ai.operator", "app", "http", "server"])
def test_a_server_knows_no_aws(part: str) -> None:
    assert not {"app.on_lambda", "aws", "lambda_runtime"} & reachable(part)


def test_providers_know_nothing_of_sessions_and_turns() -> None:
    """Of AWS, they know only the client that signs: a model on Bedrock is called with the role of the process."""
    assert reachable("ai.providers") <= {*LEAVES, "aws.client"}


def test_the_leaves_hang_on_nothing() -> None:
    assert all(reachable(leaf) <= {"aio", "errors", "validation"} for leaf in LEAVES)


def test_the_package_knows_neither_its_functions_nor_its_stand_ins() -> None:
    for path in MODULES:
        assert not {name.partition(".")[0] for name in imported(path)} & {"functions", "local", "tests", "agent", "app"}
