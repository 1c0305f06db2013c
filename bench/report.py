"""The table, on the terminal and in `bench/RESULTS.md`, and a plot for each figure with a comparison."""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path

from bench.figure import Figure
from bench.peers import PEERS

FOLDER = Path(__file__).parent
PLOTS = FOLDER / "plots"
HEADER = ("figure", "ours", "beside", "ratio", "target", "")


def row(figure: Figure) -> tuple[str, ...]:
    beside = ", ".join(f"{name} {_number(value, figure.unit)}" for name, value in figure.others.items())
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    target = "" if figure.target is None else f"≤ {figure.target:g}"
    return figure.name, _number(figure.ours, figure.unit), beside, ratio, target, figure.verdict


def table(figures: Sequence[Figure]) -> str:
    """Return the figures in columns, for a terminal."""
    rows = [HEADER, *(row(figure) for figure in figures)]
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(HEADER))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) for cells in rows)


def write(figures: Sequence[Figure], minutes: float) -> None:
    """Write RESULTS.md and the plots."""
    PLOTS.mkdir(exist_ok=True)
    lines = [
        "# Benchmark results",
        "",
        f"Made by `make bench` on {datetime.now(UTC):%Y-%m-%d} in {minutes:.0f} minutes.",
        "All in one run, against the same model server; what counts are the ratios.",
        "",
        f"Machine: {_cpu()}, {platform.system()} {platform.machine()}, Python {platform.python_version()}.",
        f"Beside: {', '.join(names[0] for names in PEERS.values())}; openai {version('openai')}.",
        "",
        "| " + " | ".join(HEADER) + " |",
        "|---" * len(HEADER) + "|",
        *("| " + " | ".join(row(figure)) + " |" for figure in figures),
        "",
    ]
    lines += [f"- {figure.name}: {figure.note}." for figure in figures if figure.note]
    for figure in figures:
        if figure.others:
            name = f"{''.join(c if c.isalnum() else '-' for c in figure.name.lower()).strip('-')}.svg"
            (PLOTS / name).write_text(bars(figure))
            lines += ["", f"![{figure.name}](plots/{name})"]
    (FOLDER / "RESULTS.md").write_text("\n".join(lines) + "\n")


def bars(figure: Figure) -> str:
    """Return an SVG with one horizontal bar per value, ours first."""
    values = {"OmniAgent": figure.ours, **figure.others}
    most = max(values.values()) or 1
    height = 44 + 30 * len(values)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{height}" font-family="sans-serif">',
        "<style>text { font-size: 13px }</style>",
        f'<rect width="640" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-weight="bold">{escape(figure.name)}</text>',
    ]
    for number, (name, value) in enumerate(values.items()):
        top, width = 40 + 30 * number, max(2, 340 * value / most)
        color = "#2563eb" if number == 0 else "#94a3b8"
        drawn += [
            f'<text x="150" y="{top + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="160" y="{top}" width="{width:.1f}" height="18" rx="3" fill="{color}"/>',
            f'<text x="{168 + width:.1f}" y="{top + 14}">{_number(value, figure.unit)}</text>',
        ]
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _number(value: float, unit: str) -> str:
    digits = 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}".strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown CPU"
