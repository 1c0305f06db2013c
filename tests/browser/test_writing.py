"""What is written and not sent, what was asked before, and what is refused because the agent does not load."""

import re

from playwright.async_api import Page, Route, expect

from local.background import BackgroundStack
from tests.browser.playground import Playground

NOT_LOADED = {
    "title": "agent.py does not load, line 62",
    "status": 502,
    "detail": "SyntaxError: invalid syntax\ndef broken(:",
    "code": "not_loaded",
    "request_id": "start-chat",
}


async def test_a_draft_stays_with_its_chat_and_the_arrow_recalls_what_was_asked(
    playground: Playground, page: Page
) -> None:
    await playground.ask("[echo:One]")
    await playground.ask("[echo:Two]")
    await playground.message.fill("Not sent yet")
    await page.keyboard.press("Control+Shift+O")
    await expect(playground.message).to_have_value("")
    await page.go_back()
    await expect(playground.message).to_have_value("Not sent yet")
    await page.go_forward()
    await expect(playground.message).to_have_value("")
    await page.go_back()
    await page.reload()
    await expect(playground.message).to_have_value("Not sent yet")
    await expect(playground.answers).to_have_count(2)
    await playground.message.press("ArrowUp")
    await expect(playground.message).to_have_value("Not sent yet")
    await playground.message.fill("")
    for key, text in (
        ("ArrowUp", "[echo:Two]"),
        ("ArrowUp", "[echo:One]"),
        ("ArrowUp", "[echo:One]"),
        ("ArrowDown", "[echo:Two]"),
    ):
        await playground.message.press(key)
        await expect(playground.message).to_have_value(text)


async def test_a_question_that_found_no_agent_is_answered_once_the_file_is_saved(
    playground: Playground, page: Page, stack: BackgroundStack
) -> None:
    async def refuse(route: Route) -> None:
        await route.fulfill(status=502, json=NOT_LOADED)

    async def tell(route: Route) -> None:
        info = await (await route.fetch()).json()
        await route.fulfill(json={**info, "agents": [{"problem": NOT_LOADED}]})

    await page.route("**/chat", refuse)
    await page.route("**/local/info", tell)
    stack.loop.call_soon_threadsafe(stack.stack.changed)
    await expect(page.get_by_text("Does not load", exact=True)).to_be_visible()
    await expect(playground.alert).to_contain_text("agent.py does not load, line 62")  # before anything is asked
    await expect(playground.alert.get_by_role("code")).to_have_text("def broken(:")
    await expect(page.locator(".brand")).to_contain_text("Shop assistant")
    await playground.message.fill("[echo:Now it works]")
    await playground.message.press("Enter")
    await expect(playground.alert.locator("strong")).to_have_text("agent.py does not load, line 62")
    await expect(playground.alert).to_contain_text("def broken(:")
    await page.unroute_all()
    stack.loop.call_soon_threadsafe(stack.stack.changed)
    await expect(playground.answer).to_contain_text("Now it works")
    await expect(playground.alert).to_have_count(0)
    await expect(page.get_by_text("Local stack")).to_be_visible()


async def test_reasoning_streams_and_is_folded_with_its_time(playground: Playground) -> None:
    await playground.begin("[slow:40] [reason] [echo:Done]")
    reasoning = playground.answer.locator("details.reasoning")
    await expect(reasoning).to_contain_text("Thinking")
    await expect(reasoning.get_by_text("Reading the request")).to_be_visible()
    await playground.ended()
    await expect(reasoning.locator("summary")).to_have_text(re.compile(r"Thought for [\d.]+ m?s"))
    await expect(reasoning.get_by_text("Reading the request")).to_be_hidden()
    await reasoning.locator("summary").click()
    await expect(reasoning.get_by_text("Reading the request")).to_be_visible()


async def test_the_trace_of_an_approved_turn_has_both_of_its_halves(playground: Playground, page: Page) -> None:
    await playground.ask("Please refund order 1001, 80 euros")
    await page.get_by_role("form", name="Allow refund?").get_by_role("button", name="Approve").click()
    await expect(playground.answer).to_contain_text("are on their way")
    await playground.ended()
    await playground.traced(1)
    await playground.trace.click()
    trace = page.get_by_role("region", name="Trace of this turn")
    await expect(trace.get_by_role("heading")).to_have_text(["Until it waited", "After the answer to it"])
    await expect(trace.locator("ol").first).to_contain_text("model")
    await expect(trace.locator("ol").last).to_contain_text("refund")
    assert await trace.locator(".track").evaluate_all(
        "tracks => tracks.every(one => one.scrollWidth <= one.clientWidth)"
    )
    took = (
        await trace.locator("ol").last.locator("summary").filter(has_text="refund").locator(".span-time").inner_text()
    )
    for _ in ("live", "reloaded"):
        await expect(playground.tools.locator(".tool-time")).to_have_text(took)
        await page.reload()
