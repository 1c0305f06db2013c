"""For every hand, eye and screen."""

import re
from typing import Literal

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import PATIENCE_MS
from tests.browser.npm_packages import installed
from tests.browser.playground import PHONE, OpenPage, Playground

SCHEMES: dict[Literal["light", "dark"], list[str] | None] = {"dark": ["color-contrast"], "light": None}
# What a narrow screen can break. The other rules do not look at the layout.
LAYOUT = ["color-contrast", "scrollable-region-focusable", "meta-viewport"]
PANEL, LAST = "#panel", "article:last-of-type"
# A page that changed during its audit is audited again, also when it looks as before: what axe says, or throws, about
# elements that were replaced is of no page. Only violations are described: the rest is most of axe's work.
AUDIT = """async ([part, rules, patience]) => {
    let changes = 0;
    const observer = new MutationObserver((records) => (changes += records.length));
    observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    const drawn = () => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
    const still = async () => {
        const finite = document.getAnimations().filter(({ effect }) => effect.getComputedTiming().endTime !== Infinity);
        await Promise.allSettled([drawn(), ...finite.map(({ finished }) => finished)]);
    };
    const options = { resultTypes: ["violations"], selectors: false, ...(rules && { runOnly: rules }) };
    const begin = performance.now();
    while (performance.now() - begin < patience) {
        changes = 0;
        await still();
        if (changes) continue;
        const { violations, error } = await axe.run(part, options).catch((error) => ({ error }));
        await drawn();
        if (changes) continue;
        observer.disconnect();
        if (error) throw error;
        return violations.map(({ id, nodes }) => [id, ...nodes.map((node) => node.html)]);
    }
    throw new Error("the page does not stop changing");
}"""
# Changes the colours and counts the transitions that this starts: during one, colours are of no theme.
TRANSITIONS = """() => {
    const { dataset } = document.documentElement;
    const theme = dataset.theme;
    dataset.theme = theme === "dark" ? "light" : "dark";
    const count = document.getAnimations().filter((animation) => animation instanceof CSSTransition).length;
    dataset.theme = theme;
    return count;
}"""
OVERFLOWING = """document.scrollingElement.scrollWidth > innerWidth
    || [...document.querySelectorAll(".header > button")].some((one) => one.scrollWidth > one.clientWidth)"""
# What is above the messages grows again in the frame that reports the first scrolling.
SHRINKING = """new Promise((grown) => requestAnimationFrame(() => {
    const above = document.getElementById("strip");
    above.hidden = false;
    above.style.height = "20px";
    setTimeout(() => grown((above.style.height = "160px")));
}))"""
# Controls that a finger would miss. A link inside a text is as small as the text.
SMALL = """() => [...document.querySelectorAll("button, a, input, textarea, summary")]
    .filter((element) => element.checkVisibility() && !element.closest(".markdown, .skip-link, [inert]"))
    .map((element) => [element.type === "checkbox" ? element.labels[0] : element, element.outerHTML])
    .map(([target, html]) => [target.getBoundingClientRect(), html])
    .filter(([{ width, height }]) => Math.min(width, height) < 43.9)
    .map(([{ width, height }, html]) => `${width} x ${height}: ${html}`)"""
EVERY_PART = """[tool:calculator {"expression": "x"}] [then] [reason] [echo:`code` and [link](https://a.example)

> quote

```python
print("x")  # y
```

| a | b |
|---|---|
| 1 | 2 |

- [x] done]"""


@pytest.fixture(scope="session")
def axe() -> str:
    return (installed("axe-core") / "axe.min.js").read_text()


async def _audit(page: Page, view: str, part: str = "html") -> None:
    """Hold a view, or the part of it that is new, against axe's rules in light; in dark against those of colours."""
    for scheme, rules in SCHEMES.items():
        await page.emulate_media(color_scheme=scheme)
        await expect(page.locator("html")).to_have_attribute("data-theme", scheme)
        assert await page.evaluate(AUDIT, [part, rules, PATIENCE_MS]) == [], (view, scheme)


async def audit_phone(page: Page, view: str, rules: list[str] | None = None, part: str = "html") -> None:
    assert await page.evaluate(AUDIT, [part, rules, PATIENCE_MS]) == [], view
    assert await page.evaluate(SMALL) == [], view


async def test_axe_finds_nothing_in_any_view(open_page: OpenPage, axe: str) -> None:
    playground = await open_page(reduced_motion="reduce")
    page = playground.page
    await page.evaluate(axe)
    assert await page.evaluate(TRANSITIONS) == 0, "a page that is to move little changes its colours at once"
    await _audit(page, "empty")
    await playground.ask("[length] My name is Ada. [echo:one two three four]")
    await playground.ask(EVERY_PART)
    await playground.traced(2)
    await playground.trace.click()
    await (
        page.get_by_role("region", name="Trace of this turn").locator("summary").filter(has_text="model").first.click()
    )
    await playground.button("Details").click()
    await playground.button("Summarise now").click()
    await expect(page.get_by_role("tabpanel")).to_contain_text("Ada")
    await page.locator("details.tool").evaluate_all("all => all.forEach(details => details.open = true)")
    await _audit(page, "a chat, its trace and its context")
    await playground.trace.click()
    await page.get_by_role("tab", name="Agent").click()
    await expect(page.get_by_role("tabpanel")).to_contain_text("4 tools")
    await page.locator("details").evaluate_all("all => all.forEach(details => details.open = true)")
    await _audit(page, "the agent", PANEL)
    await page.get_by_role("tab", name="Waiting").click()
    await expect(page.get_by_role("tabpanel")).to_contain_text("Nothing waits for you.")
    await _audit(page, "the inbox", PANEL)
    await page.get_by_role("tab", name="Events").click()
    await _audit(page, "the events", PANEL)
    await playground.button("Break it").click()
    await _audit(page, "the menu", "#break-menu")
    await playground.button("Show the processes").click()
    await expect(page.locator("#strip")).to_contain_text("answer complete")
    await _audit(page, "the processes", "#strip")
    await playground.button("Hide the processes").click()
    await page.get_by_role("button", name="Offline model").click()
    await page.get_by_role("dialog").get_by_role("radio", name="Another server").check()
    await _audit(page, "the models", "dialog[open]")
    await playground.button("Cancel").click()
    await playground.answer.get_by_role("button", name="Save as test").click()
    await _audit(page, "a turn as a test", "dialog[open]")
    await playground.button("Done").click()
    await page.get_by_role("tab", name="Context").click()
    await playground.begin("[stall] [echo:one two three four]")  # nothing moves during the audit
    await expect(playground.answer).to_contain_text("three")
    await playground.message.fill("Later")
    await playground.message.press("Enter")
    await expect(page.get_by_role("list", name="Queued messages")).to_be_visible()
    await _audit(page, "an answer, and a message that waits", f"{LAST}, .composer-area")
    await playground.stop.click()
    await playground.ended()
    await playground.button("Remove this message").click()
    await playground.message.fill("[fail:400]")
    await playground.message.press("Enter")
    await expect(playground.alert).to_be_visible()
    await playground.ended()
    await _audit(page, "a failed answer", f"{LAST}, [role=log] [role=alert]")
    await playground.button("Connection settings").click()
    await _audit(page, "the settings", "dialog[open]")
    await playground.button("Cancel").click()
    await playground.button("Rename this chat").click()
    await _audit(page, "a question", "dialog[open]")


async def test_on_a_phone_everything_fits_and_can_be_hit_and_the_chats_are_a_drawer(
    open_page: OpenPage, axe: str
) -> None:
    playground = await open_page(**PHONE, reduced_motion="reduce")
    page = playground.page
    await page.evaluate(axe)
    assert not await page.evaluate(OVERFLOWING)
    await audit_phone(page, "empty", LAYOUT)
    await playground.ask(f"[echo:{'wide ' * 30}\n\n```\n{'code' * 60}\n```\n\n|{'column|' * 12}\n|{'---|' * 12}]")
    await playground.ask('[tool:calculator {"expression": "x"}] [then] [reason] [echo:done]')
    assert not await page.evaluate(OVERFLOWING)
    await playground.traced(2)
    await playground.trace.click()
    await expect(page.get_by_role("region", name="Trace of this turn")).to_contain_text("model")
    await audit_phone(page, "a chat", LAYOUT)
    await expect(playground.chats).not_to_be_in_viewport()
    await playground.button("Open the list of chats").click()
    await expect(playground.chats).to_be_in_viewport()
    await audit_phone(page, "the drawer", LAYOUT)
    await page.keyboard.press("Escape")
    await expect(playground.chats).not_to_be_in_viewport()
    await playground.button("Details").click()
    for tab in ("Agent", "Events", "Context"):
        await page.get_by_role("tab", name=tab).click()
        await audit_phone(page, tab, LAYOUT, PANEL)
    await playground.button("Close the details").click()
    await playground.button("Rename this chat").click()
    await audit_phone(page, "a question", LAYOUT, "dialog[open]")
    await playground.button("Cancel").click()
    await playground.button("Open the list of chats").click()
    await playground.button("New chat").click()
    await expect(playground.answers).to_have_count(0)
    await expect(playground.chats).not_to_be_in_viewport()


async def test_a_chat_needs_no_mouse(playground: Playground, page: Page) -> None:
    """Ask, stop, ask again, start another chat, come back, rename: by the keyboard alone."""
    press = page.keyboard.press
    await expect(playground.message).to_be_focused()
    await page.keyboard.type("First line")
    await press("Shift+Enter")
    await page.keyboard.type("[stall]")
    await press("Enter")
    await expect(playground.questions).to_have_text(["First line\n[stall]"])
    await playground.has_begun_to_answer()
    await press("Escape")
    await expect(playground.answer.get_by_text("Stopped")).to_be_visible()
    # The server names no chat whose answer was stopped.
    await expect(playground.chats).to_have_text(["First line [stall]"])
    await page.keyboard.type("Hello")
    await press("Enter")
    await expect(playground.answer).to_contain_text("Hello!")
    await playground.ended()
    await press("Control+Shift+O")
    await expect(playground.answers).to_have_count(0)
    await expect(playground.message).to_be_focused()
    await press("Control+k")
    await expect(page.get_by_role("searchbox", name="Search chats")).to_be_focused()
    await playground.message.focus()
    await _tab_to(page, "^First line", "Shift+Tab")
    await press("Enter")
    await expect(playground.answers).to_have_count(2)
    await _tab_to(page, "^Rename", "Shift+Tab")
    await press("Enter")
    await page.keyboard.type("Chosen")
    await press("Enter")
    await expect(playground.chats).to_have_text(["Chosen"])
    skip = page.get_by_role("link", name="Skip to the message field")
    await expect(skip).not_to_be_in_viewport()
    await _tab_to(page, "^Skip", "Shift+Tab")
    await expect(skip).to_be_in_viewport()
    await press("Enter")
    await expect(playground.message).to_be_focused()
    await playground.button("Details").focus()
    await press("Enter")
    await page.get_by_role("tab", name="Context").focus()
    for tab in ("Agent", "Waiting", "Events", "Context", "Agent"):
        await press("ArrowRight")
        await expect(page.get_by_role("tab", name=tab)).to_be_focused()
        await expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
        await expect(page.get_by_role("tabpanel", name=tab)).to_be_visible()


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
    await page.evaluate(SHRINKING)
    await page.wait_for_function("document.getElementById('strip').offsetHeight === 160")
    await expect(playground.answer.get_by_role("button", name="Regenerate")).to_be_in_viewport()
    await expect(down).to_be_hidden()


async def _tab_to(page: Page, name: str, key: str) -> None:
    """Press a key until the focus is on a control with this name."""
    label = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    for _ in range(40):
        await page.keyboard.press(key)
        if re.search(name, await page.evaluate(label)):
            return
    raise AssertionError(f"no tab stop is called {name}")
