"""The cards of a turn that waits: an approval, a question, a tool that only the client can run."""

import asyncio

import pytest
from playwright.async_api import Locator, Route, expect

from local.background import BackgroundStack
from tests.browser.playground import PHONE, OpenPage, Playground
from tests.browser.test_access import audit_phone, axe

__all__ = ["axe"]
REFUND = '[tool:refund {"order": "42"}] [then] [echo:All done.]'
WHICH = '[tool:ask_user {"question": "Which colour?", "choices": ["red", "blue"]}] [then] [echo:All done.]'
WHY = '[tool:ask_user {"question": "Why?", "choices": []}] [then] [echo:All done.]'


@pytest.fixture(scope="session")
def stack(waiting_stack: BackgroundStack) -> BackgroundStack:
    return waiting_stack


def card(playground: Playground, name: str) -> Locator:
    return playground.page.get_by_role("form", name=name)


async def test_an_approval_survives_a_reload_is_denied_in_one_tab_and_the_other_agrees(
    playground: Playground, open_page: OpenPage
) -> None:
    await playground.ask(REFUND)
    approval = card(playground, "Allow refund?")
    await expect(approval).to_contain_text("Order 42 is large.")
    await expect(playground.page.get_by_label("Waiting for you")).to_be_visible()
    await playground.page.reload()
    await expect(approval).to_be_visible()
    other = await open_page(f"/#/chat/{playground.session_id}")
    reason = other.page.get_by_label("Reason (optional)")
    written = asyncio.Event()

    async def resume_late(route: Route) -> None:
        await written.wait()
        await route.continue_()

    await other.page.route("**/stream", resume_late)
    await other.page.reload()
    await reason.fill("too much")
    async with other.page.expect_response("**/stream"):
        written.set()
    await playground.page.wait_for_timeout(200)
    await expect(reason).to_be_focused()  # the answer was shown again meanwhile
    await reason.press("Tab")
    await other.page.keyboard.press("Tab")
    await expect(other.button("Deny")).to_be_focused()
    await other.page.keyboard.press("Enter")
    for page in (other, playground):
        await expect(page.answer).to_contain_text("All done.")
        await expect(page.tools).to_contain_text("Denied")
        await expect(card(page, "Allow refund?")).to_have_count(0)
        await expect(page.page.get_by_label("Waiting for you")).to_have_count(0)
        await expect(page.tools).to_contain_text("too much")
    assert (await playground.stored())[-1]["metadata"]["status"] == "complete"


async def test_questions_have_choices_or_a_field_and_a_new_message_closes_one(playground: Playground) -> None:
    await playground.ask(WHICH)
    await card(playground, "Which colour?").get_by_role("button", name="blue").click()
    await expect(playground.answer).to_contain_text("All done.")
    await expect(playground.tools).to_contain_text("blue")
    await playground.ended()
    await playground.ask(WHY)
    await card(playground, "Why?").get_by_label("Your answer").fill("Because.")
    await playground.button("Answer").click()
    await expect(playground.answer).to_contain_text("All done.")
    await playground.ended()
    await playground.ask(WHY)
    await expect(card(playground, "Why?")).to_be_visible()
    await playground.ask("[echo:Something else.]")
    await expect(card(playground, "Why?")).to_have_count(0)
    await expect(playground.answers.nth(2)).to_contain_text("Not answered")


async def test_a_clients_tool_takes_json_says_what_does_not_fit_and_every_card_is_accessible(
    open_page: OpenPage, axe: str
) -> None:
    playground = await open_page(**PHONE, reduced_motion="reduce")
    page = playground.page
    await page.evaluate(axe)
    await playground.ask(f"[tool:locate {{}}] {REFUND.partition(' [then]')[0]} {WHY}")
    for name in ("locate runs in the client", "Allow refund?", "Why?"):
        await expect(card(playground, name)).to_be_visible()
    await audit_phone(page, "a turn that waits")
    output = page.get_by_label("Output (JSON or text), or why it failed")
    await output.fill("here")
    await playground.button("Return this output").click()
    await expect(card(playground, "locate runs in the client").get_by_role("alert")).to_contain_text("locate")
    await output.fill('{"latitude": 1.5, "longitude": 2}')
    await playground.button("Return this output").click()
    await expect(card(playground, "locate runs in the client")).to_have_count(0)
    await playground.button("Approve").click()
    await expect(card(playground, "Allow refund?")).to_have_count(0)
    await playground.button("Skip").click()
    await expect(playground.answer).to_contain_text("All done.")
    await playground.ended()
    states = [part["state"] for part in (await playground.stored())[-1]["parts"] if part["type"].startswith("tool-")]
    assert states == ["output-available", "output-available", "output-error"]
