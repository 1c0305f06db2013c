"""The one boundary to a team's code: its tools, callbacks, hooks, rules, validators and providers.

What that code raises becomes an error of ours, except for what ends a process: another one then continues the turn.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omniagent.aio import is_cancelled
from omniagent.errors import OmniAgentError

logger = logging.getLogger(__name__)


@contextmanager
def team_code(
    failure: str,
    error: Exception | type[OmniAgentError] | None = None,
    *,
    passes: tuple[type[Exception], ...] = (),
    may_exit: bool = True,
    **fields: Any,
) -> Iterator[None]:
    """Raise `error` for what a team's code raises, except for the errors that it `passes`.

    A class is raised with the cause in its text. Any other error hides the cause from those who read it, so the cause
    is logged here: as `failure`, with `fields`. `SystemExit` ends the process, unless it may not exit: argparse in a
    tool raises it.
    """
    try:
        yield
    except BaseException as exc:  # a panic of an extension written in Rust is no `Exception`
        is_end = may_exit if isinstance(exc, SystemExit) else isinstance(exc, KeyboardInterrupt | GeneratorExit)
        is_stop = isinstance(exc, asyncio.CancelledError) and is_cancelled()
        if is_end or is_stop or isinstance(exc, passes):
            raise
        if isinstance(error, type):
            raise error(f"{failure}: {type(exc).__name__}: {exc}") from exc
        logger.exception(failure, extra=fields)
        raise error or OmniAgentError(failure) from exc
