"""Runs the Python blocks of one page in order, as one program: `python -m tests.docs.run_page docs/agents.md`.

The blocks share their names and one event loop; `await` is allowed at the top level. Line numbers in a traceback are
those of the page.
"""

import ast
import asyncio
import inspect
import sys
from pathlib import Path
from types import ModuleType

from tests.docs.blocks import read_blocks
from tests.fixtures import guard


async def run_page(page: Path) -> int:
    """Run the blocks and return how many there were."""
    module = ModuleType(page.stem)
    sys.modules[module.__name__] = module  # pydantic and dataclasses look up a class's module by its name
    blocks = [block for block in read_blocks(page) if block.runs]
    for block in blocks:
        source = "\n" * (block.line - 1) + block.text
        code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        result = eval(code, module.__dict__)
        if inspect.iscoroutine(result):
            await result
    return len(blocks)


if __name__ == "__main__":
    guard.pytest_configure()  # nothing outside this machine is reached here either
    print(asyncio.run(run_page(Path(sys.argv[1]))))
