"""Asking and being answered."""

import json
import re

from playwright.async_api import Page, expect

from tests.browser.playground import OpenPage, Playground, text_of

TOOLS = "What is 17.5% of 2,340 and what time is it in Tokyo?"


async def test_an_answer_is_shown_and_is_still_there_after_a_reload(playground: Playground) -> None:
    await playground.ask("[echo:Hello **there**]")
    await expect(playground.answer).to_contain_text("Hello there")
    await expect(playground.answer.locator("strong")).to_have_text("there")
    await playground.page.reload()
    await expect(playground.questions).to_have_text(["[echo:Hello **there**]"])
    await expect(playground.answer).to_contain_text("Hello there")


async def test_an_example_is_asked_with_one_click(playground: Playground) -> None:
    await playground.page.get_by_role("button", name=re.compile("Two tools at once")).click()
    await expect(playground.questions).to_have_text([TOOLS])
    await expect(playground.answer).to_contain_text("409.5")


async def test_a_turn_tells_what_it_took(playground: Playground) -> None:
    await playground.ask("Hello")
    await expect(playground.answer).to_contain_text(
        re.compile(r"First token \d+ ms\s*Total \d+.*\s*Tokens \d+ in, \d+ out")
    )


async def test_tool_calls_are_cards_with_input_output_and_duration(playground: Playground) -> None:
    await playground.ask(TOOLS)
    calculator, time = playground.tools.nth(0), playground.tools.nth(1)
    await expect(calculator).to_contain_text(re.compile(r"calculator.*17\.5 / 100 \* 2340.* ms"))
    await expect(time).to_contain_text("current_time")
    output = calculator.get_by_role("group", name="Output")
    await expect(output).to_be_hidden()
    await calculator.locator("summary").click()
    await expect(calculator.get_by_role("group", name="Input")).to_have_text(
        json.dumps({"expression": "17.5 / 100 * 2340"}, indent=2)
    )
    await expect(output).to_have_text("409.5")


async def test_a_stored_tool_call_has_the_duration_of_its_span(playground: Playground) -> None:
    await playground.ask("What is 6*7?")
    await playground.page.reload()
    await expect(playground.tools.first).to_contain_text(re.compile(r"calculator.*6\*7.* ms"))


async def test_a_tool_that_fails_says_so(playground: Playground) -> None:
    await playground.ask('[tool:calculator {"expression": "1/0"}]')
    await expect(playground.tools.first).to_contain_text("Tool, Failed")
    error = playground.tools.first.get_by_role("group", name="Error")
    await expect(error).to_have_text("The tool reported an error.")


async def test_reasoning_is_folded(playground: Playground) -> None:
    await playground.ask("[reason] Hello")
    reasoning = playground.answer.get_by_text("Reading the request")
    await expect(reasoning).to_be_hidden()
    await playground.answer.get_by_text("Reasoning", exact=True).click()
    await expect(reasoning).to_be_visible()


async def test_a_regenerated_answer_takes_the_place_of_the_old_one(playground: Playground) -> None:
    await playground.ask("Hello")
    [_, old] = await playground.stored()
    await playground.button("Regenerate").click()
    await expect(playground.answer).to_contain_text("Hello!")
    await playground.ended()
    await expect(playground.answers).to_have_count(1)
    [_, new] = await playground.stored()
    assert new["id"] != old["id"]
    assert text_of(new) == text_of(old)


async def test_only_the_last_answer_can_be_regenerated(playground: Playground) -> None:
    await playground.ask("Hello")
    await playground.ask("Hello again")
    await expect(playground.button("Regenerate")).to_have_count(1)
    await expect(playground.answer.get_by_role("button", name="Regenerate")).to_be_visible()


async def test_the_trace_shows_the_model_the_tools_and_the_database(playground: Playground) -> None:
    await playground.ask(TOOLS)
    await playground.button("Trace").click()
    trace = playground.page.get_by_role("region", name="Trace of this turn")
    for span in ("POST /chat", "turn", "begin_turn", "model", "calculator", "current_time", "finish_turn"):
        await expect(trace.get_by_role("listitem").filter(has_text=span).first).to_be_visible()
    await trace.locator("summary").filter(has_text="calculator").first.click()
    await expect(trace.get_by_role("group", name="Input").filter(visible=True)).to_contain_text("expression")
    await expect(trace.get_by_role("group", name="Output").filter(visible=True)).to_contain_text("409.5")
    await playground.button("Trace").click()
    await expect(trace).to_have_count(0)


async def test_the_events_can_be_read_as_they_came(playground: Playground) -> None:
    await playground.ask("Hello")
    await playground.button("Context and events").click()
    await playground.page.get_by_role("tab", name="Events").click()
    events = playground.page.get_by_role("list", name="Events").get_by_role("listitem")
    await expect(events.first).to_contain_text("start")
    await expect(events.last).to_contain_text("data-session")
    await expect(events.filter(has_text="text-delta").first).to_be_visible()
    await playground.page.get_by_label("Deltas").uncheck()
    await expect(events.filter(has_text="text-delta")).to_have_count(0)


async def test_the_gauge_shows_how_full_the_context_is_and_the_summary_what_is_left(playground: Playground) -> None:
    await playground.ask("My name is Ada and I live in Lisbon.")
    await playground.ask("Hello")  # the last turn may still be answered again: a summary ends before it
    gauge = playground.page.get_by_role("button", name=re.compile(r"Context window: about \d+ of 32,000 tokens"))
    await expect(gauge).to_have_accessible_name(re.compile(r"The next summary begins at 16,000"))
    await gauge.click()
    await expect(playground.page.get_by_text("There is none yet")).to_be_visible()
    await playground.button("Summarise now").click()
    await expect(playground.page.get_by_role("tabpanel")).to_contain_text("My name is Ada")
    await expect(playground.button("Summarised up to here")).to_be_visible()


async def test_code_is_copied_as_it_was_written(open_page: OpenPage) -> None:
    playground = await open_page(permissions=["clipboard-read", "clipboard-write"])
    code = "def twice(x):\n\treturn x * 2  # <b>"
    await playground.ask(f"[echo:```python\n{code}\n```]")
    await playground.button("Copy code").click()
    await expect(playground.button("Copied")).to_be_visible()
    assert await playground.page.evaluate("navigator.clipboard.readText()") == code


async def test_a_normal_day_leaves_the_console_empty(playground: Playground, page: Page) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    await playground.ask(TOOLS)
    await playground.button("Trace").click()
    await page.reload()
    await expect(playground.answer).to_contain_text("409.5")
    await playground.button("New chat").click()
    await playground.ask("Hello")
    assert said == []


async def test_a_thumb_and_a_comment_are_there_after_a_reload(playground: Playground) -> None:
    await playground.ask("Hello")
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
