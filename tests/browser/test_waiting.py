"""The cards of a turn that waits: an approval, a question, a tool that only the client can run."""

import asyncio
import re

import pytest
from playwright.async_api import Locator, Route, expect

from local.background import BackgroundStack
from tests.browser.playground import PHONE, OpenPage, Playground
from tests.browser.test_access import OVERFLOWING, audit_phone, axe

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
    reason = other.page.get_by_label("Why not?")
    written = asyncio.Event()

    async def resume_late(route: Route) -> None:
        await written.wait()
        await route.continue_()

    await other.page.route("**/stream", resume_late)
    await other.page.reload()
    await other.button("Deny").click()
    await reason.fill("too much")
    async with other.page.expect_response("**/stream"):
        written.set()
    await playground.page.wait_for_timeout(200)
    await expect(reason).to_be_focused()  # the answer was shown again meanwhile
    await reason.press("Escape")  # thinks better of it, and again
    await expect(card(other, "Allow refund?")).to_have_attribute("aria-keyshortcuts", "A D")
    await other.page.keyboard.press("d")
    await expect(reason).to_be_focused()
    await expect(reason).to_have_value("too much")
    await other.page.keyboard.press("Enter")
    for page in (other, playground):
        await expect(page.answer).to_contain_text("All done.")
        await expect(page.tools).to_contain_text("Denied")
        await expect(card(page, "Allow refund?")).to_have_count(0)
        await expect(page.page.get_by_label("Waiting for you")).to_have_count(0)
        await expect(page.tools).to_contain_text("too much")
        await expect(page.tools).to_have_class("tool denied")  # somebody's wish, no error
        await expect(page.tools.locator(".tool-time")).to_be_empty()  # it did not run
    assert (await playground.stored())[-1]["metadata"]["status"] == "complete"


async def test_an_approval_is_given_by_a_key_and_the_chat_says_who_decided(playground: Playground) -> None:
    page = playground.page
    await playground.ask(REFUND)
    approval = card(playground, "Allow refund?")
    await expect(approval).to_be_focused()
    await expect(approval.get_by_role("term")).to_have_text(["Order"])
    await expect(approval.get_by_role("definition")).to_have_text(["42"])
    await expect(approval).to_have_attribute("aria-keyshortcuts", "A D")
    await page.keyboard.press("a")
    await expect(playground.answer).to_contain_text("All done.")
    await expect(playground.message).to_be_focused()
    for _ in ("live", "reloaded"):
        await expect(playground.tools).to_contain_text(re.compile(r"Approved by you, \d\d:\d\d"))
        await page.reload()


async def test_who_approved_can_write_while_the_turn_goes_on(playground: Playground) -> None:
    await playground.ask('[tool:refund {"order": "42"}] [then] [stall] [echo:one two three four]')
    await card(playground, "Allow refund?").get_by_role("button", name="Approve").press("Enter")
    await expect(playground.stop).to_be_visible()
    await expect(playground.message).to_be_focused()
    await playground.stop.click()
    await playground.ended()


async def test_another_user_finds_in_the_inbox_what_they_may_decide(
    playground: Playground, open_page: OpenPage
) -> None:
    await playground.ask(REFUND)
    waiting = playground.button("1 waits for you")
    await expect(waiting).to_be_visible()
    bob = await open_page(extra_http_headers={})
    await bob.button("User: you").click()
    await bob.page.get_by_role("textbox", name="Name").fill(f"bob of {playground.user}")
    await bob.button("Go on as this user").click()
    await expect(bob.button(f"User: bob of {playground.user}")).to_be_visible()
    await bob.page.get_by_role("button", name=re.compile("waits? for you")).click()
    request = bob.page.get_by_role("article", name=f"refund of local:{playground.user}")
    await expect(request).to_contain_text("Order 42 is large.")
    await request.get_by_role("button", name="Approve").click()
    await expect(request).to_have_count(0)
    await expect(playground.answer).to_contain_text("All done.")
    await expect(waiting).to_be_hidden()
    await playground.page.reload()
    await expect(playground.tools).to_contain_text("Approved by somebody else")


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
    await expect(page.get_by_role("button", name=re.compile("for you$"))).to_be_visible()
    assert not await page.evaluate(OVERFLOWING)
    output = page.get_by_label("Output (JSON or text), or why it failed")
    await output.fill("here")
    await playground.button("Return this output").click()
    await expect(card(playground, "locate runs in the client").get_by_role("alert")).to_contain_text("locate")
    await output.fill('{"latitude": 1.5, "longitude": 2}')
    await playground.button("Return this output").click()
    await expect(card(playground, "locate runs in the client")).to_have_count(0)
    await card(playground, "Allow refund?").get_by_role("button", name="Approve").click()
    await expect(card(playground, "Allow refund?")).to_have_count(0)
    await playground.button("Skip").click()
    await expect(playground.answer).to_contain_text("All done.")
    await playground.ended()
    states = [part["state"] for part in (await playground.stored())[-1]["parts"] if part["type"].startswith("tool-")]
    assert states == ["output-available", "output-available", "output-error"]


async def test_a_tool_that_crashes_says_what_it_raised_and_in_which_line(playground: Playground) -> None:
    await playground.ask('[tool:stock {"item": "hats"}] [then] [echo:I cannot say.]')
    for _ in ("live", "reloaded"):
        error = playground.tools.get_by_role("group", name="Error")
        await expect(error).to_contain_text(
            re.compile(r"ConnectionError: no answer about hats \(project\.py, line \d+\)")
        )
        await expect(error).to_contain_text("The model reads: stock failed.")
        await playground.page.reload()


async def test_a_new_chat_chooses_one_of_several_agents_and_shows_it_from_then_on(playground: Playground) -> None:
    page = playground.page
    picker = page.get_by_role("combobox", name="Agent")
    await expect(picker.locator("option")).to_have_text(["Shop", "Sales desk"])
    await expect(page.get_by_role("heading", name="Shop")).to_be_visible()
    await picker.select_option("Sales desk")
    await expect(playground.message).to_have_attribute("placeholder", "Ask Sales desk")
    await page.get_by_role("button", name="What do you need?").click()
    await playground.ended()
    for _ in ("live", "reloaded"):
        await expect(page.locator("#agent-name")).to_have_text("Sales desk")
        await expect(picker).to_be_hidden()
        await page.reload()
    async with playground.api() as api:
        assert (await api.get(f"/sessions/{playground.session_id}")).json()["agent"] == "sales"
    await playground.button("Details").click()
    await page.get_by_role("tab", name="Agent").click()
    await expect(page.get_by_role("tabpanel")).to_contain_text("Sell.")
    await playground.button("New chat").click()
    await expect(picker).to_have_value("shop")
    await playground.ask("[echo:Hello]")
    await expect(page.locator("#agent-name")).to_have_text("Shop")
    await expect(page.get_by_role("tabpanel")).to_contain_text("Help.")
    await page.set_viewport_size(PHONE["viewport"])
    assert not await page.evaluate(OVERFLOWING)
