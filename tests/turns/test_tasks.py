"""Calls that may take too long."""

import asyncio

import pytest

from omniagent.aio import within


async def test_work_that_takes_too_long_is_left_to_itself() -> None:
    release, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await release.wait()
        ended.set()

    with pytest.raises(TimeoutError):
        await within(0.0, work())
    release.set()
    await ended.wait()
