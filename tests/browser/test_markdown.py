"""Markdown on the page. What a text becomes is proved in tests/local/test_markdown.py."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page

from local.background import BackgroundStack

SHOW = """async ([start, source]) => {
    const { MarkdownView } = await import("/markdown/view.js");
    const rendered = (view) => new Promise((resolve) => {
        const look = () => view.element.classList.contains("plain") ? requestAnimationFrame(look) : resolve();
        look();
    });
    const view = new MarkdownView();
    view.update(start);
    await rendered(view);
    const nodes = [...view.element.childNodes];
    view.update(source);
    const whole = new MarkdownView();
    whole.update(source);
    await rendered(whole);
    while (view.element.innerHTML !== whole.element.innerHTML) await new Promise(requestAnimationFrame);
    return [whole.element.innerHTML, nodes.filter((node) => node.parentNode === view.element).length];
}"""
PLAIN = """async (texts) => {
    const { MarkdownView } = await import("/markdown/view.js");
    const view = new MarkdownView();
    for (const text of texts) view.update(text);
    while (view.element.textContent !== texts.at(-1)) await new Promise(requestAnimationFrame);
    return view.element.outerHTML;
}"""
BUILD = """async (tree) => {
    const { buildElement } = await import("/markdown/elements.js");
    const frame = document.createElement("div");
    frame.append(buildElement(tree));
    return frame.innerHTML;
}"""
SOURCE = """# Title

1. [x] *done*

| a | b |
|---|--:|
| 1 | [x](https://a.example) |

```python
return "<b>"
```
"""


@pytest.fixture(scope="module")
async def page(browser: Browser, stack: BackgroundStack) -> AsyncIterator[Page]:
    """One page for all: nothing here changes it."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(stack.url)
    yield page
    await context.close()


async def test_a_text_that_grows_ends_like_the_whole_and_keeps_the_blocks_that_did_not_change(page: Page) -> None:
    shown, kept = await page.evaluate(SHOW, [SOURCE[: SOURCE.index("| 1")], SOURCE])
    assert kept == 2
    for part in (
        '<h2 data-level="1">Title</h2>',
        '<li data-task="done"><input type="checkbox" disabled="" aria-label="Done"><em>done</em></li>',
        '<div class="table-frame" tabindex="0" role="group" aria-label="Table"><table>',
        '<td data-align="right"><a href="https://a.example/" target="_blank" rel="noopener noreferrer nofollow">x</a>',
        '<div class="code-bar"><span>python</span><button',
        'aria-label="python code"><code><span class="code-keyword">return</span> <span class="code-string">',
    ):
        assert part in shown


async def test_a_text_that_cannot_be_rendered_is_shown_as_it_is(page: Page) -> None:
    await page.route("**/local/markdown", lambda route: route.abort())
    assert await page.evaluate(PLAIN, ["*a*", "*a* <b>"]) == '<div class="markdown plain">*a* &lt;b&gt;</div>'
    await page.unroute("**/local/markdown")


@pytest.mark.parametrize(
    ("tree", "html"),
    [
        (["script", {}, "alert(1)"], "alert(1)"),
        (["img", {"src": "x", "onerror": "alert(1)"}], ""),
        (["a", {"href": "javascript:alert(1)"}, "x"], "x"),
        (["p", {"onclick": "alert(1)", "style": "x", "id": "main"}, ["iframe", {}]], "<p></p>"),
        (["code", {}, "<b>"], "<code>&lt;b&gt;</code>"),
    ],
)
async def test_only_harmless_elements_are_built(page: Page, tree: object, html: str) -> None:
    assert await page.evaluate(BUILD, tree) == html
