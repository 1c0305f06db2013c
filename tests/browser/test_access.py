"""For every hand, eye and screen."""

import re

import pytest
from playwright.async_api import Page, expect

from tests.browser.playground import PHONE, OpenPage, Playground

# Texts with less contrast to what is behind them than WCAG's AA asks for: 4.5 to 1.
FAINT = """() => {
    const channels = (color) => color.match(/[\\d.]+/g).map(Number);
    const luminance = (color) => {
        const [r, g, b] = channels(color).slice(0, 3).map((value) => {
            const share = value / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = getComputedStyle(at).backgroundColor;
            if (channels(color)[3] !== 0) return color;
        }
        return "rgb(255, 255, 255)";
    };
    const texts = [...document.querySelectorAll("body *")].filter(
        (element) => element.checkVisibility({ opacityProperty: true }) && !element.closest("[aria-hidden], :disabled")
            && [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()),
    );
    return texts.filter((element) => {
        const pair = [luminance(getComputedStyle(element).color), luminance(behind(element))].sort((a, b) => b - a);
        return (pair[0] + 0.05) / (pair[1] + 0.05) < 4.5;
    }).map((element) => `${element.className}: ${element.textContent}`);
}"""
NAMELESS = """() => [...document.querySelectorAll("button, a, input, textarea, summary, [role], [tabindex='0']")]
    .filter((element) => element.checkVisibility() && !element.matches("[role=status], [role=alert], [role=log] *"))
    .filter((element) => !(element.getAttribute("aria-label") || element.labels?.length || element.textContent.trim()
        || element.getAttribute("aria-labelledby")))
    .map((element) => element.outerHTML)"""
OVERFLOWING = "document.scrollingElement.scrollWidth > innerWidth"


async def test_a_chat_needs_no_mouse(playground: Playground, page: Page) -> None:
    """Ask, stop, ask again, start another chat, come back, rename: by the keyboard alone."""
    press = page.keyboard.press
    await expect(playground.message).to_be_focused()
    await page.keyboard.type("First line")
    await press("Shift+Enter")
    await page.keyboard.type("[slow:80] [long:100]")
    await press("Enter")
    await expect(playground.questions).to_have_text(["First line\n[slow:80] [long:100]"])
    await playground.has_begun_to_answer()
    await press("Escape")
    await expect(playground.answer.get_by_text("Stopped")).to_be_visible()
    await page.keyboard.type("Hello")
    await press("Enter")
    await expect(playground.answer).to_contain_text("Hello!")
    await playground.ended()
    await expect(playground.chats).to_have_text(["Chat About First Line"])
    await press("Control+k")
    await expect(playground.answers).to_have_count(0)
    await expect(playground.message).to_be_focused()
    await _tab_to(page, "^Chat About First", "Shift+Tab")
    await press("Enter")
    await expect(playground.answers).to_have_count(2)
    await _tab_to(page, "^Rename", "Shift+Tab")
    await press("Enter")
    await page.keyboard.type("Chosen")
    await press("Enter")
    await expect(playground.chats).to_have_text(["Chosen"])


async def test_the_first_control_of_the_page_leads_to_the_message_field(playground: Playground, page: Page) -> None:
    skip = page.get_by_role("link", name="Skip to the message field")
    await expect(skip).not_to_be_in_viewport()
    await page.locator("a, button").first.focus()
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await expect(playground.message).to_be_focused()


async def test_the_tabs_of_the_panel_follow_the_arrow_keys(playground: Playground, page: Page) -> None:
    await playground.button("Context and events").click()
    context, events = page.get_by_role("tab", name="Context"), page.get_by_role("tab", name="Events")
    await context.focus()
    await page.keyboard.press("ArrowRight")
    await expect(events).to_be_focused()
    await expect(events).to_have_attribute("aria-selected", "true")
    await expect(page.get_by_role("list", name="Events")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_control_has_a_name_and_every_text_contrast(open_page: OpenPage, scheme: str) -> None:
    playground = await open_page(color_scheme=scheme, reduced_motion="reduce")
    page = playground.page
    assert (await page.evaluate(NAMELESS), await page.evaluate(FAINT)) == ([], [])
    await playground.ask("[reason] What is 6*7?")
    await playground.ask(
        '[tool:calculator {"expression": "x"}] [then] [echo:`code` and [link](https://a.example)\n\n> quote]'
    )
    await playground.begin("[fail:400]")
    await expect(playground.alert).to_be_visible()
    await playground.button("Trace").last.click()
    await expect(page.get_by_role("region", name="Trace of this turn")).to_contain_text("model")
    await playground.button("Context and events").click()
    await page.locator("details").evaluate_all("all => all.forEach(details => details.open = true)")
    assert (await page.evaluate(NAMELESS), await page.evaluate(FAINT)) == ([], [])
    await page.get_by_role("tab", name="Events").click()
    await playground.button("Connection settings").click()
    assert (await page.evaluate(NAMELESS), await page.evaluate(FAINT)) == ([], [])


async def test_dark_follows_the_system_until_somebody_chooses(open_page: OpenPage) -> None:
    playground = await open_page(color_scheme="dark")
    root = playground.page.locator("html")
    await expect(root).to_have_attribute("data-theme", "dark")
    await playground.page.emulate_media(color_scheme="light")
    await expect(root).to_have_attribute("data-theme", "light")
    await playground.button("Switch between light and dark").click()
    await expect(root).to_have_attribute("data-theme", "dark")
    await playground.page.reload()
    await expect(root).to_have_attribute("data-theme", "dark")


async def test_on_a_phone_everything_fits_and_the_chats_are_a_drawer(open_page: OpenPage) -> None:
    playground = await open_page(**PHONE)
    page = playground.page
    assert not await page.evaluate(OVERFLOWING)
    await playground.ask(f"[echo:{'wide ' * 30}\n\n```\n{'code' * 60}\n```\n\n|{'column|' * 12}\n|{'---|' * 12}]")
    assert not await page.evaluate(OVERFLOWING)
    await expect(playground.chats).not_to_be_in_viewport()
    await playground.button("Open the list of chats").click()
    await expect(playground.chats).to_be_in_viewport()
    await page.keyboard.press("Escape")
    await expect(playground.chats).not_to_be_in_viewport()
    await playground.button("Open the list of chats").click()
    await playground.button("New chat").click()
    await expect(playground.answers).to_have_count(0)
    await expect(playground.chats).not_to_be_in_viewport()


async def test_the_end_stays_in_sight_unless_the_reader_scrolls_away(playground: Playground, page: Page) -> None:
    await playground.ask("[long:600]")
    await playground.begin("[slow:40] [long:80]")
    await expect(playground.answer).to_be_in_viewport()
    await page.get_by_role("log").hover()
    await page.mouse.wheel(0, -5000)
    down = playground.button("Go to the latest message")
    await expect(down).to_be_visible()
    await playground.ended()
    await expect(playground.answer.get_by_role("button", name="Regenerate")).not_to_be_in_viewport()
    await down.click()
    await expect(playground.answer.get_by_role("button", name="Regenerate")).to_be_in_viewport()


async def _tab_to(page: Page, name: str, key: str) -> None:
    """Press a key until the focus is on a control with this name."""
    label = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    for _ in range(40):
        await page.keyboard.press(key)
        if re.search(name, await page.evaluate(label)):
            return
    raise AssertionError(f"no tab stop is called {name}")
