"""Invokes a function at a fixed rate, as an EventBridge rule does."""

import asyncio
import logging

from local.emulator.invocation import FunctionFailed
from local.emulator.pool import Pool, Throttled
from local.template import Schedule

log = logging.getLogger(__name__)


async def invoke_regularly(pool: Pool, schedule: Schedule, seconds: float | None = None) -> None:
    """Invoke until cancelled, at the schedule's rate or once in so many `seconds`. First after one interval.

    A slow invocation delays the next one, unlike on AWS. A failed one is not retried: the next one does its work.
    """
    while True:
        await asyncio.sleep(schedule.seconds if seconds is None else seconds)
        try:
            invocation = await pool.invoke(schedule.event)
            await (await invocation.answer()).read()
        except (FunctionFailed, Throttled) as error:
            log.warning("scheduled invocation of %s failed: %s", pool.function.name, error)
