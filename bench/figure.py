"""One measured figure, and whether it meets its target."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """`ours` and `others` are in `unit`. `ratio` compares them, or ours with a bound; it should be at most `target`."""

    name: str
    unit: str
    ours: float
    others: Mapping[str, float] = field(default_factory=dict)
    ratio: float | None = None
    target: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.ratio is None or self.target is None:
            return ""
        return "pass" if self.ratio <= self.target else "miss"


def compared(
    name: str, unit: str, ours: float, others: Mapping[str, float], *, target: float, note: str = ""
) -> Figure:
    """Return a figure compared with the best of the others."""
    return Figure(name, unit, ours, others, ours / min(others.values()), target, note)
