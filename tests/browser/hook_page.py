"""A page with the AI SDK's own `useChat` hook in it, on the origin of the stack."""

import json
import re
from pathlib import Path
from typing import Any

from playwright.async_api import Locator, Page, Route, expect

from local.model import OfflineModel
from local.model.conversation import Message, from_responses
from tests.client.conftest import without_places

HTML = '<!doctype html><title>useChat</title><div id="root"></div><script type="module" src="/hook.js"></script>'
Json = dict[str, Any]


class HookPage:
    """One open page. `shown` is what the hook holds, `stored` what the server does."""

    def __init__(self, page: Page, url: str, session_id: str, script: Path) -> None:
        self.page = page
        self.session_id = session_id
        self._url = url
        self._script = script

    async def open(self) -> None:
        await serve_script(self.page, self._script)
        async with self.page.expect_response("**/stream"):  # the hook has asked for what runs, and acts on nothing else
            await self.page.goto(f"{self._url}/hook?id={self.session_id}")

    async def reload(self, *, until_quiet: bool = False) -> None:
        """Open the page again; with `until_quiet` wait until it has read the messages and resumed what there was."""
        await self.page.reload(wait_until="networkidle" if until_quiet else "load")

    @property
    def answers(self) -> Locator:
        return self.page.get_by_role("article", name="assistant")

    @property
    def alert(self) -> Locator:
        return self.page.get_by_role("alert")

    async def send(self, text: str) -> None:
        await self._is_open()
        await self.page.evaluate("text => void window.chat.sendMessage({ text })", text)

    async def regenerate(self) -> None:
        await self.page.evaluate("() => void window.chat.regenerate()")

    async def ask(self, text: str, *, edited: str | None = None) -> None:
        """Send a message, or the message with this id in other words, and wait for the end of its answer."""
        await self._is_open()
        await self.page.evaluate("message => window.chat.sendMessage(message)", {"text": text, "messageId": edited})

    async def ask_again(self, answer: str | None = None) -> None:
        """Regenerate the answer with this id, or the last one, and wait for its end."""
        await self._is_open()
        await self.page.evaluate("options => window.chat.regenerate(options)", {"messageId": answer} if answer else {})

    async def switch(self, node_id: str) -> None:
        """Make the branch of a message the active one, and open the page again."""
        url = f"{self._url}/sessions/{self.session_id}/branch"
        response = await self.page.request.put(url, data={"nodeId": node_id})
        assert response.ok, await response.text()
        await self.reload(until_quiet=True)

    async def stop(self) -> None:
        """Press Stop: the page tells the server, and names the message that it shows as being answered."""
        await self.page.evaluate(
            """async id => {
                const last = window.chat.messages.at(-1).id;
                const body = JSON.stringify({ message_id: last });
                const headers = { "content-type": "application/json" };
                const response = await fetch(`/sessions/${id}/cancel`, { method: "POST", headers, body });
                if (!response.ok) throw new Error(await response.text());
            }""",
            self.session_id,
        )

    async def shown(self) -> list[Json]:
        """Wait until nothing is being answered, and return the messages on the page."""
        main = self.page.get_by_role("main")
        await expect(main).to_have_attribute("data-status", re.compile("ready|error"))
        return without_places(json.loads(await main.get_attribute("data-messages") or "[]"))

    async def stored(self) -> list[Json]:
        return without_places(await self._read())

    async def places(self) -> list[Json]:
        """The metadata of the stored messages, which says where they stand in the tree."""
        return [message["metadata"] for message in await self._read()]

    async def _read(self) -> list[Json]:
        response = await self.page.request.get(f"{self._url}/sessions/{self.session_id}/messages")
        messages: list[Json] = (await response.json())["messages"]
        return messages

    async def _is_open(self) -> None:
        await expect(self.page.get_by_role("main")).to_have_attribute("data-status", "ready")


async def serve_script(page: Page, script: Path) -> None:
    """Make `/hook` a page with this script, on whatever origin."""

    async def serve(route: Route) -> None:
        if route.request.url.endswith(".js"):
            await route.fulfill(path=script, content_type="text/javascript")
        else:
            await route.fulfill(body=HTML, content_type="text/html")

    await page.route("**/hook*", serve)


def prompt(model: OfflineModel) -> list[str]:
    """The texts of the conversation that the model was sent last."""
    items = from_responses(model.requests[-1].body).items
    return [item.text for item in items if isinstance(item, Message)]


def texts(messages: list[Json]) -> list[str]:
    """The text of each message."""
    return ["".join(part["text"] for part in message["parts"] if part["type"] == "text") for message in messages]
