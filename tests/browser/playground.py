"""The playground as its user knows it: what can be seen, and what can be done."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
from playwright.async_api import Locator, Page, Route, expect

PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}


@dataclass
class Playground:
    """One open page. Names of controls are their accessible names."""

    page: Page
    url: str
    server: str
    """The stack itself, also when `url` leads there through a wire."""
    user: str

    async def open(self, path: str = "/") -> None:
        await self.page.goto(self.url + path)
        await expect(self.message).to_be_visible()

    @property
    def message(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message", exact=True)

    @property
    def send(self) -> Locator:
        return self.button("Send")

    @property
    def stop(self) -> Locator:
        return self.button("Stop the answer")

    @property
    def questions(self) -> Locator:
        return self.page.get_by_role("article", name="You")

    @property
    def answers(self) -> Locator:
        return self.page.get_by_role("article", name="Assistant")

    @property
    def answer(self) -> Locator:
        """The last answer."""
        return self.answers.last

    @property
    def trace(self) -> Locator:
        """What opens the trace of the last answer: its figures."""
        return self.answer.get_by_role("button", name=re.compile("^Trace: "))

    @property
    def tools(self) -> Locator:
        return self.page.get_by_role("log").locator("details.tool")

    @property
    def chats(self) -> Locator:
        return self.page.get_by_role("navigation", name="Chats").get_by_role("link")

    @property
    def alert(self) -> Locator:
        return self.page.get_by_role("log").get_by_role("alert")

    @property
    def session_id(self) -> str:
        return urlsplit(self.page.url).fragment.removeprefix("/chat/")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    async def ask(self, text: str) -> None:
        """Send a message and wait for the end of the answer."""
        await self.begin(text)
        await self.ended()

    async def begin(self, text: str) -> None:
        """Send a message and wait until it is being answered."""
        before = await self.answers.count()
        await self.message.fill(text)
        await self.message.press("Enter")
        await expect(self.answers).to_have_count(before + 1)

    async def ended(self) -> None:
        """Wait until nothing is being answered."""
        await expect(self.send).to_be_visible()
        await expect(self.page.get_by_role("log")).to_have_attribute("aria-busy", "false")

    async def has_begun_to_answer(self) -> None:
        """Wait for the first words of the last answer."""
        await expect(self.answer.locator(".markdown").last).not_to_be_empty()

    async def traced(self, turn: int) -> None:
        """Wait until the trace of a turn is whole: its last spans arrive after its stream has ended."""
        query: dict[str, str | int] = {"session_id": self.session_id, "turn": turn}
        kinds: set[str] = set()
        async with self.api() as api, asyncio.timeout(60):
            while "REQUEST" not in kinds:  # the server itself waits a moment for more
                trace = await api.get("/local/traces", params=query)
                kinds = {span["kind"] for span in trace.json()["spans"]}

    async def stored(self) -> list[dict[str, Any]]:
        """The messages of the open chat as the server has them."""
        async with self.api() as api:
            messages: list[dict[str, Any]] = (await api.get(f"/sessions/{self.session_id}/messages")).json()["messages"]
            return messages

    def api(self) -> httpx.AsyncClient:
        """The API as this page's user calls it."""
        return httpx.AsyncClient(base_url=self.server, headers={"x-user-id": self.user}, trust_env=False, timeout=60)


OpenPage = Callable[..., Awaitable[Playground]]
"""Opens a page: `await open_page(color_scheme="dark")`."""


def text_of(message: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in message["parts"] if part["type"] == "text")


async def pace(page: Page, markers: str) -> None:
    """Let the offline model answer at the pace of a real one."""

    async def add(route: Route) -> None:
        body: dict[str, Any] = route.request.post_data_json or {}
        if body.get("messages"):
            body["messages"][-1]["parts"][0]["text"] += markers
        await route.continue_(post_data=body)

    await page.route("**/chat", add)
