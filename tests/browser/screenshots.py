"""The pictures of the README, made by the product itself: `make screenshots`."""

import re
from typing import Any

import pytest
from playwright.async_api import expect

from local.template import ROOT
from tests.browser.playground import OpenPage, Playground, pace

WIDE: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}, "device_scale_factor": 2}
EARLIER = ("Packing list for Norway", "Refund policy, rewritten", "SQL for monthly revenue", "Lambda or containers?")
QUESTION = "What is 17.5% of 2,340 and what time is it in Tokyo?"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("playground", {**WIDE, "color_scheme": "light"}),
        ("playground-dark", {**WIDE, "color_scheme": "dark"}),
    ],
)
async def test_a_picture_is_taken_of(open_page: OpenPage, name: str, options: dict[str, Any]) -> None:
    playground = await open_page(reduced_motion="reduce", **options)
    await _talk(playground)
    await playground.page.screenshot(path=ROOT / "docs" / f"{name}.png")


async def _talk(playground: Playground) -> None:
    """A chat worth looking at: tools and their trace, the context with its summary, other chats beside it."""
    page = playground.page
    async with playground.api() as api:
        for earlier in EARLIER:
            await api.post("/sessions", json={"name": earlier})
    await playground.ask("My name is Ada. I plan a sale for our shop in Tokyo.")
    # The server names the chat; our name comes after that.
    await expect(playground.chats.first).not_to_have_text("New chat")
    async with playground.api() as api:
        await api.patch(f"/sessions/{playground.session_id}", json={"name": "Sale in Tokyo"})
    await page.get_by_role("button", name=re.compile("Context window")).click()
    await playground.ask("What should I prepare?")  # a summary ends before the last turn
    await playground.button("Summarise now").click()
    await expect(page.get_by_role("tabpanel")).to_contain_text("My name is Ada")
    await pace(page, " [slow:12] [reason]")
    await playground.ask(QUESTION)
    await playground.trace.click()
    await expect(page.get_by_role("region", name="Trace of this turn")).to_contain_text("calculator")
    await expect(playground.chats.first).to_have_text("Sale in Tokyo")
