"""The list of chats."""

import re

from playwright.async_api import Locator, Page, Route, expect

from tests.browser.playground import Playground


async def test_chats_are_renamed_and_deleted_once_that_is_confirmed(playground: Playground, page: Page) -> None:
    await playground.ask("Hello")
    await expect(playground.chats).not_to_have_text(["New chat"])
    await _have_chats(playground, "Old", "Before")
    await _open_dialog(playground, "Before", "Rename")
    await page.get_by_role("textbox", name="Name").fill("Not wanted")
    await page.keyboard.press("Escape")
    await _open_dialog(playground, "Before", "Rename")
    await page.get_by_role("textbox", name="Name").fill("After")
    await page.keyboard.press("Enter")
    await expect(playground.chats.first).to_have_text("After")
    await _open_dialog(playground, "Old", "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    await expect(playground.chats).to_have_count(3)
    await _open_dialog(playground, "Old", "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(playground.chats).to_have_count(2)
    await page.reload()
    await expect(playground.chats.first).to_have_text("After")
    await expect(playground.chats).to_have_count(2)

    # The open chat gives way to an empty one.
    await page.locator(".session.current").hover()
    await page.locator(".session.current").get_by_role("button", name=re.compile("^Delete")).click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", name="Shop assistant")).to_be_visible()
    assert playground.session_id == ""


async def test_where_the_server_names_no_chat_the_page_lets_the_model_do_it(playground: Playground, page: Page) -> None:
    async def tell(route: Route) -> None:
        told = await (await route.fetch()).json()
        sessions = [{**session, "name": None} for session in told.get("sessions", ())]
        await route.fulfill(json={**told, "name_sessions": False, "sessions": sessions})

    await page.route(re.compile(r"/local/info$|/sessions\?"), tell)
    await page.reload()
    await expect(page.get_by_text("Offline model")).to_be_visible()
    async with page.expect_request(re.compile("/name$")):
        await playground.ask("Where do I park in Lisbon?")
    await expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("Lisbon"))


async def test_chats_are_found_by_name_and_by_content_and_the_open_one_keeps_its_name(
    playground: Playground, page: Page
) -> None:
    await playground.ask("Where do I park? [echo:In the *Alfama* quarter (50%)]")
    await expect(playground.chats).to_have_text([re.compile("park")])
    await _have_chats(playground, "Trip to Lisbon", "Tax return", "Lisbon food (50%)")
    search, heading = page.get_by_role("searchbox", name="Search chats"), page.get_by_role("heading", level=1)
    for text, found in (
        ("lisbon", ["Lisbon food (50%)", "Trip to Lisbon"]),
        ("food (50%", ["Lisbon food (50%)"]),
        ("alfama", [re.compile(r"park.*In the \*Alfama\* quarter")]),
        ("do I PARK?", [re.compile("park")]),
        ("Madrid", []),
    ):
        await search.fill(text)
        await expect(playground.chats).to_have_text(found)
        await expect(heading).to_have_text(re.compile("park"))
        if text == "alfama":
            await expect(playground.chats.locator("mark")).to_have_text("Alfama")
    await expect(page.get_by_text("No chat contains “Madrid”.")).to_be_visible()
    await playground.button("New chat").click()
    await playground.ask("Where do I park in Porto?")
    await expect(heading).to_have_text(re.compile("Porto"))
    await search.fill("")
    await expect(playground.chats).to_have_count(5)


async def test_chats_load_by_page_and_an_unlisted_chat_shows_name_and_history(
    playground: Playground, page: Page
) -> None:
    async with playground.api() as api:
        await api.post("/sessions", json={"id": "long", "name": "A long one"})
        for number in range(16):
            body = {"session_id": "long", "query": f"[echo:answer {number}]"}
            assert (await api.post("/chat?stream=false", json=body)).status_code == 200
    await _have_chats(playground, *(f"Newer {number}" for number in range(32)))
    await playground.open("/#/chat/long")
    await expect(page.get_by_role("heading", level=1)).to_have_text("A long one")
    await expect(playground.answers).to_have_count(15)
    await playground.button("Show earlier messages").click()
    await expect(playground.answers).to_have_count(16)
    await expect(playground.answers.first).to_contain_text("answer 0")
    await expect(playground.chats).to_have_count(30)
    await playground.button("More chats").click()
    await expect(playground.chats).to_have_count(33)
    await expect(playground.button("More chats")).to_have_count(0)
    await playground.open("/#/chat/nothing-here")
    await page.reload()
    await expect(playground.alert).to_contain_text("It does not exist, or you have no access to it.")


async def _have_chats(playground: Playground, *names: str) -> None:
    async with playground.api() as api:
        for name in names:
            assert (await api.post("/sessions", json={"name": name})).status_code == 201
    # Made by another client: the page shows them by itself.
    await expect(playground.chats.filter(has_text=names[-1])).to_have_count(1)


async def _open_dialog(playground: Playground, name: str, action: str) -> Locator:
    """Choose what to do with a chat; its buttons show when the mouse is over it."""
    await playground.page.locator(".session").filter(has_text=name).hover()
    await playground.button(f"{action} {name}").click()
    dialog = playground.page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    return dialog
