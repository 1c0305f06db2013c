"""Questions in other words, answers once more, and the way between their versions."""

import re

from playwright.async_api import Locator, Page, expect

from tests.browser.playground import Playground


def versions(message: Locator) -> Locator:
    return message.get_by_role("group", name=re.compile("^Versions of this"))


async def test_a_question_is_edited_in_place_and_both_branches_stay(playground: Playground, page: Page) -> None:
    await playground.ask("[echo:One]")
    await playground.ask("[echo:Two]")
    await playground.ask("[echo:Three]")
    second = playground.questions.nth(1)
    await second.hover()
    await second.get_by_role("button", name="Edit this message").click()
    field = second.get_by_role("textbox", name="Your message, in other words")
    await expect(field).to_be_focused()
    await field.fill("Never mind")
    await field.press("Escape")
    await expect(second).to_contain_text("[echo:Two]")
    await expect(second.get_by_role("button", name="Edit this message")).to_be_focused()
    await page.keyboard.press("Enter")
    await field.fill("[echo:Another two]")
    await field.press("Enter")
    await expect(playground.answer).to_contain_text("Another two")
    await playground.ended()
    await expect(playground.answers).to_have_count(2)
    await expect(playground.message).to_be_focused()
    await expect(versions(second)).to_have_text("2/2")
    # Back on the first branch, which has a third turn, by the keyboard alone; and that is what a reload shows.
    await versions(second).get_by_role("button", name="Previous question").focus()
    await page.keyboard.press("Enter")
    for state in ("switched", "reloaded"):
        await expect(playground.answers).to_have_count(3)
        await expect(playground.answer).to_contain_text("Three")
        await expect(versions(second)).to_have_text("1/2")
        if state == "switched":
            await page.reload()
    await playground.ask("[echo:Four]")
    await expect(playground.answers).to_have_count(4)


async def test_an_earlier_answer_is_generated_again_as_a_version_of_its_own(playground: Playground) -> None:
    await playground.ask("[echo:One]")
    await playground.ask("[echo:Two]")
    first = playground.answers.first
    await first.hover()
    await first.get_by_role("button", name="Regenerate").click()
    await expect(playground.answers).to_have_count(1)
    await expect(versions(first)).to_have_text("2/2")
    await playground.ended()
    await versions(first).get_by_role("button", name="Previous answer").click()
    await expect(playground.answers).to_have_count(2)
    await expect(playground.answer).to_contain_text("Two")


async def test_an_edit_that_is_refused_leaves_what_was_there(playground: Playground, page: Page) -> None:
    await playground.ask("[echo:One]")
    first = playground.questions.first
    await first.hover()
    await first.get_by_role("button", name="Edit this message").click()
    await page.route("**/chat", lambda route: route.fulfill(status=429, json={"title": "Too many", "detail": "Wait."}))
    await first.get_by_role("textbox").fill("[echo:Something else]")
    await first.get_by_role("textbox").press("Enter")
    await expect(playground.alert).to_contain_text("Wait.")
    await expect(playground.questions).to_have_text(["[echo:One]"])
    await expect(playground.answers).to_have_count(1)
