"""Generates the tables of the pages from the code: `make readme`. A test compares the pages with it."""

import ast
import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import omniagent
import omniagent.providers
import omniagent.server
import omniagent.testing
from local.template import ROOT
from omniagent.settings import Settings, env_name
from scripts.capacity import bottleneck_table, capacity_table

PUBLIC_MODULES = (omniagent, omniagent.providers, omniagent.server, omniagent.testing)
README = ROOT / "README.md"
AGENTS = ROOT / "docs" / "agents.md"
CAPACITY = ROOT / "docs" / "capacity.md"
OPERATIONS = ROOT / "docs" / "operations.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
SOAK = ROOT / "docs" / "soak.json"
BUDGET = ROOT / "docs" / "budget.json"
FORGERIES = ROOT / "docs" / "forgeries.json"
RACES = ROOT / "docs" / "races.json"
CONTINUE = ROOT / "docs" / "continue.json"
GREEN = ROOT / "docs" / "green.json"

TURN_SECONDS = 10
CHAT_GB = 1.0
DOLLARS_PER_GB_SECOND = 0.0000133334
DOLLARS_PER_REQUEST = 0.20 / 1e6
DOLLARS_PER_WRITE = 0.625 / 1e6
DOLLARS_PER_READ = 0.125 / 1e6
READ_UNITS = 0.5
"""Of an eventually consistent read."""
DOLLARS_PER_GB_MONTH = 0.25


def settings_table() -> str:
    """Return every setting with its default."""
    rows = ["| variable | default | what it does |", "|---|---|---|"]
    for setting in fields(Settings):
        default = "" if setting.default in ("", None) else f"`{setting.default}`"
        rows.append(f"| `{env_name(setting)}` | {default} | {setting.metadata['doc']} |")
    return "\n".join(rows)


def write_units(turn_seconds: float, tick_seconds: float) -> int:
    """Return the DynamoDB writes of a turn: a chunk of its journal per tick, and the last one."""
    return int(turn_seconds / tick_seconds) + 1


def costs_table() -> str:
    """Return the cost of 1,000 turns without the model and MongoDB, with the arithmetic."""
    units = write_units(TURN_SECONDS, Settings().tick_seconds)
    compute = 1000 * TURN_SECONDS * CHAT_GB * DOLLARS_PER_GB_SECOND
    requests = 1000 * DOLLARS_PER_REQUEST
    writes = 1000 * units * DOLLARS_PER_WRITE
    ticks = int(TURN_SECONDS / Settings().tick_seconds)
    reads = 1000 * ticks * READ_UNITS * DOLLARS_PER_READ
    days = Settings().journal_days
    storage = 1000 * (ticks + 1) / 1e6 * days / 30 * DOLLARS_PER_GB_MONTH
    gb_second = f"{DOLLARS_PER_GB_SECOND:.10f}".rstrip("0")
    return f"""\
1,000 turns of {TURN_SECONDS} seconds in us-east-1, excluding the model's tokens, MongoDB and logs:

| | arithmetic | $ |
|---|---|---|
| Lambda, arm64, {CHAT_GB:g} GB | 1,000 * {TURN_SECONDS} s * {CHAT_GB:g} GB * ${gb_second} | {compute:.3f} |
| Lambda requests | 1,000 * ${DOLLARS_PER_REQUEST * 1e6:.2f} / 1M | {requests:.4f} |
| DynamoDB writes | 1,000 * {units} units * ${DOLLARS_PER_WRITE * 1e6:.3f} / 1M | {writes:.3f} |
| DynamoDB reads | 1,000 * {ticks} * {READ_UNITS:g} units * ${DOLLARS_PER_READ * 1e6:.3f} / 1M | {reads:.4f} |
| `JournalDays` of storage | 1,000 * {ticks + 1} KB * {days} / 30 * ${DOLLARS_PER_GB_MONTH:.2f} / GB | {storage:.4f} |
| **together** | | **{compute + requests + writes + reads + storage:.2f}** |

A turn writes {units} units: one chunk of its journal for each of its {ticks} ticks, and the last one. Each tick also
reads whether somebody stopped or steered the turn.

An idle stack writes nothing and calls no model; once a minute it looks for turns whose process died.
[docs/deploy.md](docs/deploy.md#costs) lists what it costs a month."""


def soak_table() -> str:
    """Return the result of the last `make soak`."""
    if not SOAK.exists():
        return "`make soak` has not been run for this version yet."
    soak: dict[str, Any] = json.loads(SOAK.read_text())
    calls = {f"{kind} calls": soak[f"{kind} calls"] for kind in ("model", "summary")}
    rows = {
        "turns": f"{sum(soak['turns'].values()):,}: {_listed(soak['turns'])}",
        "processes": f"{soak['kills']} killed, {soak['freezes']} frozen for up to two leases, clocks "
        f"{soak['clock skew, of a lease']:g} of a lease apart",
        "servers cut off": _listed(soak["partitions"]),
        "servers slow": f"{_listed(soak['slow'])}; MongoDB killed {soak['restarts of MongoDB']} times",
        "clients": f"{soak['followed']} followed, {soak['stopped']} stopped, {soak['left']} left, "
        f"{soak['sent twice']} sent twice, {soak['sent again']} sent again",
        "paid for": f"{_listed(calls)}, {soak['tool runs']:,} tool runs",
        "**found**": f"**{_listed(soak['found'])}**",
    }
    return _rows(rows)


def forgeries_table() -> str:
    """Return the result of the last `make forgeries`."""
    if not FORGERIES.exists():
        return "`make forgeries` has not been run for this version yet."
    forgeries: dict[str, Any] = json.loads(FORGERIES.read_text())
    bodies = forgeries["bodies"]
    rows = {"bodies": f"{sum(bodies.values()):,}: {_listed(bodies)}", "**found**": f"**{_listed(forgeries['found'])}**"}
    return _rows(rows)


def races_table() -> str:
    """Return the result of the last `make races`."""
    if not RACES.exists():
        return "`make races` has not been run for this version yet."
    races: dict[str, Any] = json.loads(RACES.read_text())
    rows = {
        name: f"{sum(races[name].values()):,}: {_listed(races[name])}" for name in ("messages", "answers", "events")
    }
    return _rows({"races": f"{races['races']:,}", **rows, "**found**": f"**{_listed(races['found'])}**"})


def _listed(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in numbers.items())


def _rows(rows: dict[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {what} |" for name, what in rows.items())])


def budget_table() -> str:
    """Return the result of the last `make budget`."""
    return _runs_table(BUDGET, "budget")


def continue_table() -> str:
    """Return the result of the last `make continue`."""
    return _runs_table(CONTINUE, "continue")


def green_table() -> str:
    """Return the result of the last `make green`."""
    if not GREEN.exists():
        return "`make green` has not been run for this version yet."
    report: dict[str, Any] = json.loads(GREEN.read_text())
    runs = report["runs"]
    green = sum(run["green"] for run in runs)
    rows = [
        f"**{green} of {report['wanted']} runs of {report['commit']} were green**, {report['at once']} at once:",
        "",
        "| run | result | passed | failed | seconds | load average |",
        "|---|---|---|---|---|---|",
    ]
    for number, run in enumerate(runs, start=1):
        failed = " ".join([str(run["failed"]), *run["failures"]])
        counts = f"{run['passed']:,} | {failed} | {run['seconds']} | {run['load']:.1f}"
        rows.append(f"| {number} | {'green' if run['green'] else '**red**'} | {counts} |")
    return "\n".join(rows)


def _runs_table(path: Path, command: str) -> str:
    if not path.exists():
        return f"`make {command}` has not been run for this version yet."
    runs: dict[str, str] = json.loads(path.read_text())
    return "\n".join(
        ["| run | what it came to |", "|---|---|", *(f"| {name} | {what} |" for name, what in runs.items())]
    )


def names_table() -> str:
    """Return every public name with the first paragraph of its docstring."""
    tables = []
    for module in PUBLIC_MODULES:
        rows = [f"| from `{module.__name__}` | what it is |", "|---|---|"]
        for name in vars(module)["__all__"]:
            lines = documentation(module, name).partition("\n\n")[0].splitlines()
            rows.append(f"| `{name}` | {' '.join(lines)} |")
        tables.append("\n".join(rows))
    return "\n\n".join(tables)


def documentation(module: ModuleType, name: str) -> str:
    """Return the docstring of a public name. That of a type alias is the text below it."""
    value = getattr(module, name)
    if str(getattr(value, "__module__", "")).startswith("omniagent"):
        return inspect.getdoc(value) or ""
    body = ast.parse(inspect.getsource(import_module(public_imports(module)[name]))).body
    texts = {ast.unparse(node).split(" = ")[0]: below for node, below in pairwise(body) if isinstance(node, ast.Assign)}
    match texts[name]:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
    return ""


def public_imports(module: ModuleType) -> dict[str, str]:
    """Return the names that a public module shows to type checkers, with the modules that define them."""
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    shown = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.name: str(node.module) for node in shown for alias in node.names if alias.asname}


Tables = dict[str, Callable[[], str]]
PAGES: dict[Path, Tables] = {
    README: {
        "settings": settings_table,
        "costs": costs_table,
        "soak": soak_table,
        "forgeries": forgeries_table,
        "races": races_table,
    },
    AGENTS: {"names": names_table},
    CAPACITY: {"capacity": capacity_table, "bottlenecks": bottleneck_table},
    OPERATIONS: {"budget": budget_table, "continue": continue_table},
    CONTRIBUTING: {"green": green_table},
}


def rendered(page: Path) -> str:
    """Return a page with its tables regenerated."""
    text = page.read_text()
    for name, make in PAGES[page].items():
        start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
        before, rest = text.split(start)
        text = f"{before}{start}\n{make()}\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rendered(path))
