"""Generates the tables of the pages from the code: `make readme`. A test compares the pages with it."""

import ast
import inspect
import json
import re
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
import omniagent.stores
import omniagent.testing
from local.template import ROOT
from omniagent.ai.providers.model_rules import FAMILIES, FILE_KINDS, ModelRules
from omniagent.lazy import public_imports
from omniagent.settings import Settings, env_name
from scripts.capacity import bottleneck_table, capacity_table

PUBLIC_MODULES = (omniagent, omniagent.providers, omniagent.server, omniagent.stores, omniagent.testing)
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
DOCS = ROOT / "docs"
BENCH = ROOT / "bench" / "RESULTS.md"
SOAK = DOCS / "soak.json"
BUDGET = DOCS / "budget.json"
FORGERIES = DOCS / "forgeries.json"
RACES = DOCS / "races.json"
CONTINUE = DOCS / "continue.json"
GREEN = DOCS / "green.json"
FIRST_RUN = DOCS / "first_run.json"
UNITS = DOCS / "units.json"

TURN_SECONDS = 10
CHAT_GB = 1.0
DOLLARS_PER_GB_SECOND = 0.0000133334
DOLLARS_PER_REQUEST = 0.20 / 1e6
DOLLARS_PER_WRITE = 0.625 / 1e6
DOLLARS_PER_READ = 0.125 / 1e6
DOLLARS_PER_GB_MONTH = 0.25

FIGURES = {"cold start": "cold start, median", "peak memory": "peak memory after 100 turns"}
"""Figures of `make bench` that compare us with the best other framework."""


def settings_table() -> str:
    """Return every setting with its default."""
    rows = ["| variable | default | what it does |", "|---|---|---|"]
    for setting in fields(Settings):
        default = "" if setting.default in ("", None) else f"`{setting.default}`"
        rows.append(f"| `{env_name(setting)}` | {default} | {setting.metadata['doc']} |")
    return "\n".join(rows)


def turn_costs() -> list[tuple[str, str, float]]:
    """Return the parts of a turn's cost without the model and MongoDB: name, arithmetic, dollars."""
    units: dict[str, float] = json.loads(UNITS.read_text())
    write, read, days = units["write"], units["read"], Settings().journal_days
    second = f"${DOLLARS_PER_GB_SECOND:.10f}".rstrip("0")
    compute = TURN_SECONDS * CHAT_GB * DOLLARS_PER_GB_SECOND
    storage = write / 1e6 * days / 30 * DOLLARS_PER_GB_MONTH  # a unit is one kilobyte at most
    return [
        (f"Lambda, arm64, {CHAT_GB:g} GB", f"{TURN_SECONDS} s * {CHAT_GB:g} GB * {second}", compute),
        ("Lambda requests", f"${DOLLARS_PER_REQUEST * 1e6:.2f} / 1M", DOLLARS_PER_REQUEST),
        ("DynamoDB writes", f"{write:g} units * ${DOLLARS_PER_WRITE * 1e6:.3f} / 1M", write * DOLLARS_PER_WRITE),
        ("DynamoDB reads", f"{read:g} units * ${DOLLARS_PER_READ * 1e6:.3f} / 1M", read * DOLLARS_PER_READ),
        ("`JournalDays` of storage", f"{write:g} KB * {days} / 30 * ${DOLLARS_PER_GB_MONTH:.2f} / GB", storage),
    ]


def costs_table() -> str:
    """Return the cost of 1,000 turns with the arithmetic."""
    rows = [f"| {name} | 1,000 * {product} | {1000 * dollars:.4f} |" for name, product, dollars in turn_costs()]
    head = [f"| 1,000 turns of {TURN_SECONDS} seconds | arithmetic | $ |", "|---|---|---|"]
    return "\n".join([*head, *rows, f"| **together** | | **{_dollars_of_1000_turns():.2f}** |"])


def _dollars_of_1000_turns() -> float:
    return 1000 * sum(dollars for _, _, dollars in turn_costs())


def models_table() -> str:
    """Return what each family of models takes."""
    names = ["reads", "context window", "longest answer", "temperature", "reasoning can be off", "forced tools"]
    names += ["instructions after the question", "price of a cached token"]
    rows = [f"| models | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for family, rules in FAMILIES.items():
        reads = rules.files if rules.files is None else [kind for kind in FILE_KINDS if kind in rules.files]
        cells = [
            "not known" if reads is None else ", ".join(reads),
            _tokens(rules.context_window),
            _tokens(rules.max_output),
            rules.sampling,
            _reasoning_off(rules),
            "yes" if rules.forced_tool else "no",
            "yes" if rules.late_system else "no",
            "not known" if rules.cached_price == 1 else f"{rules.cached_price:.0%}",
        ]
        rows.append(f"| {', '.join(f'`{name}`' for name in family.split(', '))} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _tokens(count: int | None) -> str:
    return "not known" if count is None else f"{count:,}"


def _reasoning_off(rules: ModelRules) -> str:
    if rules.thinking is None:
        if not rules.reasons:
            return "does not reason"
        return "no" if rules.efforts else "effort `none`" if rules.sampling == "without reasoning" else "not known"
    if rules.thinking_off is None:
        return "no"
    off = "yes" if rules.thinking_off["type"] == "disabled" else f"`{rules.thinking_off['type']}`"
    return off if rules.off_up_to == "max" else f"{off}, up to the effort `{rules.off_up_to}`"


def first_run() -> str:
    """Return what the last `make first-run` measured."""
    if not FIRST_RUN.exists():
        return not_run("first-run")
    run: dict[str, Any] = json.loads(FIRST_RUN.read_text())
    machine = f"{run['system']}, {run['cores']} cores at a load of {run['load']}"
    return (
        f"The first run takes {run['megabytes']} MB of disk. It gave its first answer after {run['seconds']} s, "
        f"the second run after {run['again']} s\n(`make first-run`: {machine})."
    )


def proofs_table() -> str:
    """Return what is guaranteed, each with the result of its last proof in one line."""
    rows = {
        "**Nothing is lost.** `200` means that the question is stored, `finish` that the answer is": (
            "soak",
            _result(SOAK, _soaked),
        ),
        "**Every answer finishes.** If its process dies, another one continues it, without a new request. "
        "Finished model calls and tools are not repeated": ("continue", _result(CONTINUE, lambda run: run["recovery"])),
        "**Nothing happens twice.** A retry joins the running answer or replays the stored one. "
        "Messages that arrive together are answered once each, in order": ("races", _result(RACES, _raced)),
        "**Approvals cannot be forged.** What runs is what the server stored, never what a client claims": (
            "forgeries",
            _result(FORGERIES, lambda run: f"{sum(run['bodies'].values()):,} forged replies: {_listed(run['found'])}"),
        ),
        "**Spending has limits**, per user, in tokens a day and requests a minute": (
            "budget",
            _result(BUDGET, lambda run: run["budget"]),
        ),
        "**A turn costs little**, and one that waits costs nothing": (
            "units",
            f"${_dollars_of_1000_turns():.2f} for 1,000 turns of {TURN_SECONDS} s, without the model, MongoDB and logs",
        ),
        "**The overhead is small**": (
            "bench",
            f"{' and '.join(f'{_ratio(FIGURES[name])} of the {name}' for name in FIGURES)} of the best other framework",
        ),
    }
    lines = [f"| {claim} | `make {command}` | {result} |" for claim, (command, result) in rows.items()]
    return "\n".join(["| guaranteed | proved by | last result |", "|---|---|---|", *lines])


def not_run(command: str) -> str:
    return f"`make {command}` has not been run for this version yet."


def _result(path: Path, line: Callable[[dict[str, Any]], str]) -> str:
    return line(json.loads(path.read_text())) if path.exists() else "not run for this version yet"


def _soaked(run: dict[str, Any]) -> str:
    cuts = sum(run["partitions"].values())
    return (
        f"{sum(run['turns'].values()):,} turns, {run['kills']} processes killed, {run['freezes']} frozen, "
        f"{cuts} servers cut off: {_listed(run['found'])}"
    )


def _raced(run: dict[str, Any]) -> str:
    return f"{run['races']:,} races of {sum(run['messages'].values()):,} messages: {_listed(run['found'])}"


def _ratio(figure: str) -> str:
    """Return the ratio of a figure in the last `make bench`."""
    found = re.search(rf"^\| {figure} \| [^|]+ \| [^|]+ \| ([0-9.]+) \|", BENCH.read_text(), re.MULTILINE)
    if not found:
        raise ValueError(f"{BENCH.name} has no figure {figure!r}")
    return found[1]


def soak_table() -> str:
    """Return the result of the last `make soak`."""
    if not SOAK.exists():
        return not_run("soak")
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
        "history": f"{soak['branches']:,} branches; answers: {_listed(soak['answers'])}",
        "paid for": f"{_listed(calls)}, {soak['tool runs']:,} tool runs",
        "**found**": f"**{_listed(soak['found'])}**",
    }
    return _rows(rows)


def forgeries_table() -> str:
    """Return the result of the last `make forgeries`."""
    if not FORGERIES.exists():
        return not_run("forgeries")
    forgeries: dict[str, Any] = json.loads(FORGERIES.read_text())
    bodies = forgeries["bodies"]
    rows = {"bodies": f"{sum(bodies.values()):,}: {_listed(bodies)}", "**found**": f"**{_listed(forgeries['found'])}**"}
    return _rows(rows)


def races_table() -> str:
    """Return the result of the last `make races`."""
    if not RACES.exists():
        return not_run("races")
    races: dict[str, Any] = json.loads(RACES.read_text())
    rows = {"races": f"{races['races']:,}"} | _raced_rows(races, "messages", "answers", "events")
    if trees := races.get("trees"):
        rows["races of branches"] = f"{trees['races']:,}"
        rows |= {f"{name} ": row for name, row in _raced_rows(trees, "requests", "answers", "events").items()}
    return _rows(rows)


def _raced_rows(races: dict[str, Any], *names: str) -> dict[str, str]:
    rows = {name: f"{sum(races[name].values()):,}: {_listed(races[name])}" for name in names}
    return rows | {"**found**": f"**{_listed(races['found'])}**"}


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
        return not_run("green")
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
        return not_run(command)
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
    body = ast.parse(inspect.getsource(import_module(public_imports(module.__name__)[name]))).body
    texts = {ast.unparse(node).split(" = ")[0]: below for node, below in pairwise(body) if isinstance(node, ast.Assign)}
    match texts[name]:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
    return ""


Tables = dict[str, Callable[[], str]]
PAGES: dict[Path, Tables] = {
    README: {"first-run": first_run, "proofs": proofs_table},
    CONTRIBUTING: {"green": green_table},
    DOCS / "agents.md": {"names": names_table},
    DOCS / "capacity.md": {"capacity": capacity_table, "bottlenecks": bottleneck_table},
    DOCS / "costs.md": {"costs": costs_table},
    DOCS / "models.md": {"models": models_table},
    DOCS / "proofs.md": {
        "soak": soak_table,
        "continue": continue_table,
        "races": races_table,
        "forgeries": forgeries_table,
        "budget": budget_table,
    },
    DOCS / "settings.md": {"settings": settings_table},
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
