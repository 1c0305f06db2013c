"""The playground as the client of another stack."""

import re

from playwright.async_api import Request, expect

from tests.browser.playground import OpenPage
from tests.fixtures.proxy import Proxy


async def test_the_page_can_be_pointed_at_another_stack_with_a_token(open_page: OpenPage, wire: Proxy) -> None:
    """The page comes from one origin, the API from another: as after `sam deploy`."""
    playground = await open_page(url=wire.url)
    page = playground.page
    asked: list[Request] = []

    def note(request: Request) -> None:
        asked.append(request)

    page.on("request", note)
    await playground.button("Connection settings").click()
    await page.get_by_label("ChatUrl").fill(f"{playground.server}/chat")
    await page.get_by_label("SessionsUrl").fill(f"{playground.server}/")
    await page.get_by_label("Token", exact=True).fill("secret-token")
    await playground.button("Connect").click()
    await expect(page.get_by_text(playground.server.removeprefix("http://"))).to_be_visible()
    await playground.ask("[echo:From afar]")
    await expect(playground.answer).to_contain_text("From afar")
    await expect(playground.trace).to_have_count(0)
    api = [request for request in asked if request.url.startswith(playground.server)]
    assert {request.headers.get("authorization") for request in api} == {"Bearer secret-token"}
    assert not [request for request in asked if "secret-token" in request.url]
    assert "secret-token" not in await page.evaluate("JSON.stringify(localStorage)")


async def test_an_unreachable_stack_is_refused_and_another_can_be_left_again(open_page: OpenPage, wire: Proxy) -> None:
    playground = await open_page()
    wire.broken = True
    await playground.button("Connection settings").click()
    dialog = playground.page.get_by_role("dialog", name="Connection")
    await dialog.get_by_label("ChatUrl").fill(wire.url)
    await dialog.get_by_role("button", name="Connect").click()
    await expect(dialog).to_contain_text("Enter both addresses")
    await dialog.get_by_label("SessionsUrl").fill(wire.url)
    await dialog.get_by_role("button", name="Connect").click()
    await expect(dialog).to_contain_text(re.compile("cannot be reached.*CorsOrigins"))
    await dialog.get_by_role("button", name="Cancel").click()
    await playground.ask("Hello")
    await expect(playground.answer).to_contain_text("Hello!")

    wire.broken = False
    await playground.page.evaluate(
        "url => localStorage.setItem('omniagent.urls', JSON.stringify({ chatUrl: url, sessionsUrl: url }))", wire.url
    )
    await playground.page.reload()
    await expect(playground.page.get_by_text(wire.url.removeprefix("http://"))).to_be_visible()
    await playground.button("Connection settings").click()
    await playground.button("Use this page's stack").click()
    await expect(playground.page.get_by_text("Local stack")).to_be_visible()
    await playground.ask("Hello")
    await expect(playground.trace).to_be_visible()
