"""The animation of the README, recorded from the real page: `make animation`.

Somebody asks, kills the process that answers, sees another one go on, and approves a refund.
"""

import asyncio
import io
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from playwright.async_api import Page, expect

from local.template import ROOT
from tests.browser.playground import OpenPage, pace

FILE = ROOT / "docs" / "demo.webp"
MOST_BYTES = 1_500_000
SIZE = {"width": 1040, "height": 650}
FRAME_SECONDS = 0.12
# A wait of many seconds, for the lease, is shown in fewer.
LONGEST_STILL_MS = 1_200
LAST_STILL_MS = 2_500
QUALITY = 55


@dataclass
class Film:
    """The pictures of a page that differ, and how long each was to be seen."""

    frames: list[bytes] = field(default_factory=list)
    milliseconds: list[int] = field(default_factory=list)

    @asynccontextmanager
    async def of(self, page: Page) -> AsyncIterator[None]:
        """Record until the context ends."""
        recording = asyncio.create_task(self._record(page))
        try:
            yield
        finally:
            recording.cancel()
            await asyncio.gather(recording, return_exceptions=True)

    async def _record(self, page: Page) -> None:
        taken_at = time.monotonic()
        while True:
            frame = await page.screenshot(animations="allow")
            now = time.monotonic()
            if self.frames and self.frames[-1] == frame:
                self.milliseconds[-1] += int((now - taken_at) * 1000)
            else:
                self.frames.append(frame)
                self.milliseconds.append(int(FRAME_SECONDS * 1000))
            taken_at = now
            await asyncio.sleep(FRAME_SECONDS)

    def save(self) -> None:
        image = import_module("PIL.Image")  # installed for this command only
        pictures: list[Any] = [image.open(io.BytesIO(frame)).convert("RGB") for frame in self.frames]
        durations = [min(each, LONGEST_STILL_MS) for each in self.milliseconds[:-1]] + [LAST_STILL_MS]
        pictures[0].save(
            FILE, save_all=True, append_images=pictures[1:], duration=durations, loop=0, quality=QUALITY, method=4
        )


async def test_the_film_of_an_answer_that_survives_a_kill_is_small(open_page: OpenPage) -> None:
    playground = await open_page(viewport=SIZE, color_scheme="light", reduced_motion="no-preference")
    page = playground.page
    await pace(page, " [slow:25]")
    await expect(page.locator(".example").first).to_be_visible()
    film = Film()
    async with film.of(page):
        await _click(page, "Compare Lambda with containers")
        await expect(playground.answer.locator(".markdown td").nth(3)).to_be_visible()
        await _click(page, "Break it")
        await _click(page, "Kill this Lambda")
        strip = page.get_by_role("region", name="Processes of this stack")
        await expect(strip).to_contain_text("taken over once")
        await playground.ended()
        await page.wait_for_timeout(800)
        await playground.message.press_sequentially("Please refund order 1001, 80 euros", delay=30)
        await playground.message.press("Enter")
        approve = page.get_by_role("form", name="Allow refund?").get_by_role("button", name="Approve")
        await expect(approve).to_be_visible()
        await page.wait_for_timeout(1_200)
        await approve.hover()
        await approve.click()
        await expect(playground.answer).to_contain_text("reference")
        await playground.ended()
        await page.wait_for_timeout(800)
    film.save()
    assert FILE.stat().st_size < MOST_BYTES


async def _click(page: Page, name: str) -> None:
    """Click after the moment that somebody needs to see where."""
    button = page.get_by_role("button", name=name).first
    await button.hover()
    await page.wait_for_timeout(700)
    await button.click()
