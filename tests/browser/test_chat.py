"""Asking and being answered."""

import json
import re

from playwright.async_api import Page, Route, expect

from tests.browser.playground import OpenPage, Playground

# Notes the text of the last answer after each change on the page, and whether its footer is there.
OBSERVE = """() => {
    window.observed = [];
    new MutationObserver(() => {
        const answer = [...document.querySelectorAll("article.answer")].at(-1);
        const text = answer?.querySelector(".markdown")?.textContent ?? "";
        window.observed.push([text, Boolean(answer?.querySelector("footer"))]);
    }).observe(document.getElementById("messages"), { childList: true, subtree: true, characterData: true });
}"""
SLOW_CPU = 10
TOOLS = "What is 17.5% of 2,340 and what time is it in Tokyo?"


async def test_an_answer_is_shown_with_what_it_took_and_is_still_there_after_a_reload(
    playground: Playground, page: Page
) -> None:
    await playground.ask("Explain the difference between a fjord and a firth")
    for _ in ("live", "reloaded"):
        await expect(playground.answer.locator(".markdown p").first).to_be_visible()
        await expect(playground.answer).to_contain_text(re.compile(r"\d+ (ms|s) · \d+ tokens"))
        await expect(playground.chats).to_have_text([re.compile("fjord")])
        await expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("fjord"))
        await expect(page).to_have_title(re.compile("fjord.*Shop assistant"))
        await page.reload()
    await expect(playground.questions).to_have_count(1)

    held: list[Route] = []

    async def hold(route: Route) -> None:
        held.append(route)

    await page.route("**/local/info", hold)
    await page.route("**/stream", lambda route: route.fulfill(status=204))  # it would be streamed again
    await page.reload()
    await expect(playground.answer).to_contain_text("tokens")
    for route in held:
        await route.continue_()
    await expect(playground.trace).to_be_visible()
    await expect(playground.answer).not_to_contain_text("¢")  # the offline model answered, which is known only now


async def test_an_answer_shows_the_share_of_its_prompt_that_was_cached(playground: Playground) -> None:
    await playground.ask(f"[echo:Noted.] {' '.join(f'word{number}' for number in range(2_000))}")
    await expect(playground.answer).to_contain_text(re.compile(r"[\d,]+ tokens"))
    await playground.ask("[echo:Still noted.] And now?")
    await expect(playground.answer).to_contain_text(re.compile(r"[\d,]+ tokens \(\d\d% cached\)"))


async def test_the_text_of_a_streamed_answer_never_shrinks_also_on_a_slow_machine(
    playground: Playground, page: Page
) -> None:
    text = "\n\n".join(" ".join(f"word{number}" for number in range(start, start + 20)) for start in range(0, 400, 20))
    await page.evaluate(OBSERVE)
    browser = await page.context.new_cdp_session(page)
    await browser.send("Emulation.setCPUThrottlingRate", {"rate": SLOW_CPU})
    await playground.ask(f"[slow:2] [echo:{text}]")
    await browser.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    observed: list[tuple[str, bool]] = await page.evaluate("window.observed")
    lengths = [len(shown) for shown, _ in observed]
    assert lengths == sorted(lengths)
    assert {shown for shown, has_ended in observed if has_ended} == {text.replace("\n\n", "")}


async def test_tool_calls_are_cards_and_the_trace_has_every_call_with_input_and_output(
    playground: Playground, page: Page
) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    await page.get_by_role("button", name=re.compile("What is 17.5%")).click()
    await expect(playground.questions).to_have_text([TOOLS])
    await playground.ended()
    await expect(playground.answer).to_contain_text("409.5")
    calculator, time = playground.tools.nth(0), playground.tools.nth(1)
    await expect(calculator).to_contain_text(re.compile(r"calculator.*17\.5 / 100 \* 2340.* ms"))
    summary = await calculator.locator("summary").inner_text()
    await expect(time).to_contain_text("current_time")
    output = calculator.get_by_role("group", name="Output")
    await expect(output).to_be_hidden()
    await calculator.locator("summary").click()
    await expect(calculator.get_by_role("group", name="Input")).to_have_text(
        json.dumps({"expression": "17.5 / 100 * 2340"}, indent=2)
    )
    await expect(output).to_have_text("409.5")

    await playground.traced(1)
    await playground.trace.click()
    trace = page.get_by_role("region", name="Trace of this turn")
    for span in ("POST /chat", "turn", "model", "calculator", "current_time"):
        await expect(trace.get_by_role("listitem").filter(has_text=span).first).to_be_visible()
    stored, database = trace.get_by_text("write", exact=True).first, trace.get_by_role("button", name="database calls")
    await expect(stored).to_be_hidden()
    for unfolded in (True, False):
        await database.click()
        await expect(stored).to_be_visible(visible=unfolded)
    for call, given, returned in (("calculator", "expression", "409.5"), ("model", "You are a helpful", "calculator")):
        line = trace.locator("summary").filter(has_text=re.compile(f"^{call}")).first
        await line.click()
        await expect(trace.get_by_role("group", name="Input").filter(visible=True)).to_contain_text(given)
        await expect(trace.get_by_role("group", name="Output").filter(visible=True)).to_contain_text(returned)
        await line.click()
    # What comes after the answer does not squeeze it.
    named = trace.get_by_role("listitem").filter(has_text="model: name").locator(".bar")
    assert await named.evaluate("bar => bar.style.marginInlineStart") == "99%"
    await playground.trace.click()
    await expect(trace).to_have_count(0)

    await page.reload()
    await expect(playground.tools.first.locator("summary")).to_have_text(summary, use_inner_text=True)
    assert said == []


async def test_a_failed_tool_tells_its_error_and_a_cut_answer_that_it_is_cut(
    playground: Playground, page: Page
) -> None:
    await playground.ask('[tool:calculator {"expression": "1/0"}] [then] [length] [echo:one two three four]')
    for _ in ("live", "reloaded"):
        await expect(playground.tools.first).to_contain_text("Tool, Failed")
        error = playground.tools.first.get_by_role("group", name="Error")
        await expect(error).to_have_text("The expression has no finite value: float division by zero.")
        await expect(playground.answer.get_by_text("Cut off at the length limit")).to_be_visible()
        await page.reload()


async def test_a_source_is_a_link_live_and_after_a_reload(playground: Playground, page: Page) -> None:
    await playground.ask("[echo:As they say.] [cite:https://a.example/1 The page]")
    for _ in ("live", "reloaded"):
        link = playground.answer.get_by_role("link", name="The page")
        await expect(link).to_have_attribute("href", "https://a.example/1")
        await page.reload()


async def test_the_panel_has_the_events_as_they_came_and_the_agent(playground: Playground, page: Page) -> None:
    await playground.ask("Hello")
    await playground.button("Details").click()
    await page.get_by_role("tab", name="Events").click()
    events = page.get_by_role("list", name="Events").get_by_role("listitem")
    await expect(events.first).to_contain_text("start")
    await expect(events.last).to_contain_text("data-session")
    await expect(events.filter(has_text="text-delta").first).to_be_visible()
    await page.get_by_label("Deltas").uncheck()
    await expect(events.filter(has_text="text-delta")).to_have_count(0)
    await page.get_by_role("tab", name="Agent").click()
    panel = page.get_by_role("tabpanel", name="Agent")
    await expect(panel).to_contain_text("You are a helpful assistant. Answer in the user's language")
    await expect(panel).to_contain_text("Generated for each turn, at least in part, by today")
    await expect(panel).to_contain_text("Model: gpt-6-luna. Without its key, the offline model answers.")
    await expect(panel).to_contain_text("4 tools")
    await panel.locator("summary").filter(has_text="calculator").click()
    await expect(panel).to_contain_text("Calculate an arithmetic expression exactly")
    await expect(panel.get_by_role("group", name="Parameters").filter(visible=True)).to_contain_text('"expression"')


async def test_the_panel_shows_a_summary_requested_in_another_browser(open_page: OpenPage) -> None:
    playground = await open_page()
    await playground.ask("My name is Ada and I live in Lisbon.")
    await playground.ask("Hello")  # the last turn may still be answered again: a summary ends before it
    # The name, which comes after the answer, moves the button.
    await expect(playground.page.get_by_role("heading", level=1)).to_have_text("My name is Ada and I")
    gauge = re.compile(r"Context window: \d+ . 32k tokens.*It is full at 28,000")
    button = playground.page.get_by_role("button", name=gauge)
    await button.hover()
    await playground.page.mouse.down()
    # The figures are written anew whenever they change: the press counts nevertheless.
    await button.evaluate("button => button.replaceChildren(...[...button.childNodes].map(one => one.cloneNode(true)))")
    await playground.page.mouse.up()
    await expect(playground.page.get_by_text("There is no summary yet")).to_be_visible()
    await playground.button("Summarise now").click()
    other = await open_page(f"/#/chat/{playground.session_id}")
    for page in (playground.page, other.page):
        if page is other.page:
            await expect(other.answers).to_have_count(2)
            # As it is when the last answer is no longer streamed again.
            await page.route("**/chat/*/stream", lambda route: route.fulfill(status=204))
            await page.reload()  # the summary may have been written after the page was opened
            await other.button("Details").click()
        await expect(page.get_by_role("tabpanel")).to_contain_text("My name is Ada")
        await expect(page.get_by_role("button", name="Summarised up to here", exact=True)).to_be_visible()


async def test_code_is_copied_as_it_was_written_and_a_rating_is_there_after_a_reload(open_page: OpenPage) -> None:
    playground = await open_page(permissions=["clipboard-read", "clipboard-write"])
    code = "def twice(x):\n\treturn x * 2  # <b>"
    await playground.ask(f"[echo:```python\n{code}\n```]")
    await playground.button("Copy code").click()
    await expect(playground.button("Copied")).to_be_visible()
    assert await playground.page.evaluate("navigator.clipboard.readText()") == code

    await playground.button("Bad answer").click()
    await expect(playground.button("Bad answer")).to_have_attribute("aria-pressed", "true")
    await playground.button("Add a comment").click()
    await playground.page.get_by_role("textbox", name="What was good or bad about it?").fill("Too short.")
    await playground.button("Save").click()
    await expect(playground.button("Change the comment")).to_be_visible()
    await playground.page.reload()
    await expect(playground.button("Bad answer")).to_have_attribute("aria-pressed", "true")
    assert (await playground.stored())[-1]["metadata"]["feedback"] == {"rating": "down", "text": "Too short."}
    await playground.button("Bad answer").click()
    await expect(playground.button("Bad answer")).to_have_attribute("aria-pressed", "false")
    assert "feedback" not in (await playground.stored())[-1]["metadata"]
