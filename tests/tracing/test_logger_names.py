"""Every module logs under its own name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LITERAL = re.compile(r"""getLogger\(\s*["']""")
# The one that sets the level of the package's loggers.
SETUP = "layers/core/omniagent/tracing/logs.py"
# Still to follow.
LATER = {
    "functions/chat/app.py",
    "functions/summary/app.py",
    "layers/core/omniagent/ai/callbacks.py",
    "layers/core/omniagent/ai/runner.py",
    "layers/core/omniagent/aws/turn_table.py",
    "layers/core/omniagent/turns/keeper.py",
    "layers/core/omniagent/turns/repair.py",
    "layers/core/omniagent/turns/tool_loop.py",
    "layers/core/omniagent/turns/turn.py",
}


def test_no_logger_has_a_literal_name() -> None:
    modules = (
        module
        for folder in ("functions", "layers/core/omniagent", "local")
        for module in ROOT.glob(f"{folder}/**/*.py")
    )
    literal = {str(module.relative_to(ROOT)) for module in modules if LITERAL.search(module.read_text())}
    assert literal - LATER == {SETUP}
