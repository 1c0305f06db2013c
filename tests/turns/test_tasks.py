"""Calls beside each other, and calls that may take too long."""

import asyncio

import pytest

from omniagent.aio import both, within


async def test_when_one_of_two_fails_the_other_ends_by_itself() -> None:
    """On Python 3.11 a cancelled MongoDB call can take every later one with it."""
    ended = asyncio.Event()

    async def fails() -> None:
        raise ValueError("at once")

    async def takes_longer() -> None:
        await asyncio.sleep(0.01)
        ended.set()

    with pytest.raises(ValueError, match="at once"):
        await both(fails(), takes_longer())
    assert ended.is_set()


async def test_work_that_takes_too_long_is_left_to_itself() -> None:
    release, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await release.wait()
        ended.set()

    with pytest.raises(TimeoutError):
        await within(0.0, work())
    release.set()
    await ended.wait()
