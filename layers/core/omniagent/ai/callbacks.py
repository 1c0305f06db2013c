"""Calls an agent's callbacks so that none of them can harm the turn."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

logger = logging.getLogger("omniagent.callbacks")


async def call_back(callback: Callable[..., Awaitable[None]] | None, *arguments: Any) -> None:
    """Call a callback if there is one. Whatever it raises is logged and goes no further."""
    if callback is None:
        return
    try:
        await callback(*arguments)
    except Exception:
        logger.exception("callback failed", extra={"callback": getattr(callback, "__name__", repr(callback))})
