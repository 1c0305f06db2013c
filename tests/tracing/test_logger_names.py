"""Every module logs under its own name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LITERAL = re.compile(r"""getLogger\(\s*["']""")
# The one that sets the level of the package's loggers.
SETUP = "layers/core/omniagent/tracing/logs.py"
# Still to follow.
LATER = {
    "functions/summary/app.py",
}


def test_no_logger_has_a_literal_name() -> None:
    modules = (
        module
        for folder in ("functions", "layers/core/omniagent", "local")
        for module in ROOT.glob(f"{folder}/**/*.py")
    )
    literal = {str(module.relative_to(ROOT)) for module in modules if LITERAL.search(module.read_text())}
    assert literal - LATER == {SETUP}
