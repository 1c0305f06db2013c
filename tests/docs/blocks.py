"""Code blocks of a Markdown page."""

import re
from dataclasses import dataclass
from pathlib import Path

from local.template import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_FENCE = re.compile(r"^```(?P<info>.*)$")
_REASON = re.compile(r"^<!-- no-run: \S.*-->$")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `line` is the line of the page that its first line stands on."""

    language: str
    options: frozenset[str]
    text: str
    line: int
    has_reason: bool
    """Whether the line before the fence says, in a comment, why the block is not run."""

    @property
    def runs(self) -> bool:
        return self.language == "python" and "no-run" not in self.options


def read_blocks(page: Path) -> list[Block]:
    """Return the page's fenced blocks in order."""
    blocks: list[Block] = []
    lines = page.read_text().splitlines()
    opened: int | None = None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if opened is None:
            opened = number
            continue
        info = lines[opened].removeprefix("```").split()
        before = lines[opened - 1] if opened else ""
        blocks.append(
            Block(
                language=info[0] if info else "",
                options=frozenset(info[1:]),
                text="\n".join(lines[opened + 1 : number]) + "\n",
                line=opened + 2,
                has_reason=bool(_REASON.match(before)),
            )
        )
        opened = None
    if opened is not None:
        raise ValueError(f"{page.name}:{opened + 1}: the block is never closed")
    return blocks
