"""The list of chats."""

import re

from playwright.async_api import Locator, Page, expect

from tests.browser.playground import Playground


async def test_a_chat_is_named_after_its_first_exchange(playground: Playground, page: Page) -> None:
    await playground.ask("Explain the difference between a fjord and a firth")
    await expect(playground.chats).to_have_text([re.compile("Fjord")])
    await expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("Fjord"))
    await expect(page).to_have_title(re.compile("Fjord.*OmniAgent"))


async def test_a_chat_is_renamed(playground: Playground, page: Page) -> None:
    await _have_chats(playground, "Before")
    await _open_dialog(playground, "Before", "Rename")
    await page.get_by_role("textbox", name="Name").fill("After")
    await page.keyboard.press("Enter")
    await expect(playground.chats).to_have_text(["After"])
    await page.reload()
    await expect(playground.chats).to_have_text(["After"])


async def test_a_name_that_is_not_wanted_is_not_taken(playground: Playground, page: Page) -> None:
    await _have_chats(playground, "Before")
    await _open_dialog(playground, "Before", "Rename")
    await page.get_by_role("textbox", name="Name").fill("After")
    await page.keyboard.press("Escape")
    await expect(playground.chats).to_have_text(["Before"])


async def test_a_chat_is_deleted_once_that_is_confirmed(playground: Playground, page: Page) -> None:
    await _have_chats(playground, "Old", "Kept")
    await _open_dialog(playground, "Old", "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    await expect(playground.chats).to_have_count(2)
    await _open_dialog(playground, "Old", "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(playground.chats).to_have_text(["Kept"])
    await page.reload()
    await expect(playground.chats).to_have_text(["Kept"])


async def test_the_open_chat_gives_way_to_an_empty_one_when_it_is_deleted(playground: Playground, page: Page) -> None:
    await playground.ask("Hello")
    await expect(playground.chats).to_have_count(1)
    await page.locator(".session").hover()
    await page.get_by_role("button", name=re.compile("^Delete")).click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(playground.answers).to_have_count(0)
    await expect(page.get_by_role("heading", name="What can I help with?")).to_be_visible()
    assert playground.session_id == ""


async def test_chats_are_found_by_a_part_of_their_name(playground: Playground, page: Page) -> None:
    await _have_chats(playground, "Trip to Lisbon", "Tax return", "Lisbon food (50%)")
    search = page.get_by_role("searchbox", name="Search chats")
    await search.fill("lisbon")
    await expect(playground.chats).to_have_text(["Lisbon food (50%)", "Trip to Lisbon"])
    await search.fill("(50%")
    await expect(playground.chats).to_have_text(["Lisbon food (50%)"])
    await search.fill("Madrid")
    await expect(page.get_by_text("No chat is called “Madrid”.")).to_be_visible()
    await search.fill("")
    await expect(playground.chats).to_have_count(3)


async def test_more_chats_come_page_by_page(playground: Playground) -> None:
    await _have_chats(playground, *(f"Chat {number}" for number in range(33)))
    await expect(playground.chats).to_have_count(30)
    await playground.button("More chats").click()
    await expect(playground.chats).to_have_count(33)
    await expect(playground.button("More chats")).to_have_count(0)


async def test_back_and_forward_go_through_the_chats(playground: Playground, page: Page) -> None:
    await playground.ask("[echo:First]")
    await playground.button("New chat").click()
    await playground.ask("[echo:Second]")
    await page.go_back()
    await expect(playground.answer).to_contain_text("First")
    await page.go_forward()
    await expect(playground.answer).to_contain_text("Second")


async def test_an_unknown_chat_says_so(playground: Playground) -> None:
    await playground.open("/#/chat/nothing-here")
    await expect(playground.alert).to_contain_text("It does not exist, or you have no access to it.")


async def test_earlier_messages_are_read_on_demand(playground: Playground) -> None:
    async with playground.api() as api:
        for number in range(17):
            body = {"session_id": "long", "query": f"[echo:answer {number}]"}
            assert (await api.post("/chat?stream=false", json=body)).status_code == 200
    await playground.open("/#/chat/long")
    await expect(playground.answers).to_have_count(15)
    await playground.button("Show earlier messages").click()
    await expect(playground.answers).to_have_count(17)
    await expect(playground.answers.first).to_contain_text("answer 0")


async def _have_chats(playground: Playground, *names: str) -> None:
    async with playground.api() as api:
        for name in names:
            assert (await api.post("/sessions", json={"name": name})).status_code == 201
    await playground.page.reload()
    await expect(playground.chats.filter(has_text=names[-1])).to_have_count(1)


async def _open_dialog(playground: Playground, name: str, action: str) -> Locator:
    """Choose what to do with a chat; its buttons show when the mouse is over it."""
    await playground.page.locator(".session").filter(has_text=name).hover()
    await playground.button(f"{action} {name}").click()
    dialog = playground.page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    return dialog
