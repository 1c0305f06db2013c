"""Markdown as it is rendered, at once and word by word."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page

from local.background import BackgroundStack

RENDER = """async (source) => {
    const { MarkdownView } = await import("/markdown/render.js");
    const view = new MarkdownView();
    view.update(source);
    for (const bar of view.element.querySelectorAll(".code-bar")) bar.remove();
    for (const element of view.element.querySelectorAll("*")) {
        for (const name of ["tabindex", "role", "aria-label", "class", "data-level", "target", "rel"]) {
            element.removeAttribute(name);
        }
    }
    return view.element.innerHTML;
}"""
# The final page, whatever the pieces were: for every way to cut a text in two, and for a text that comes by the letter.
GROW = """async (source) => {
    const { MarkdownView } = await import("/markdown/render.js");
    const render = (...texts) => {
        const view = new MarkdownView();
        texts.forEach((text) => view.update(text));
        return view.element.innerHTML;
    };
    const whole = render(source);
    const letters = [...source.keys?.() ?? Array(source.length).keys()].map((end) => source.slice(0, end + 1));
    const wrong = letters.filter((start) => render(start, source) !== whole);
    return { wrong, byLetter: render(...letters) === whole };
}"""
REUSE = """async ([source, more]) => {
    const { MarkdownView } = await import("/markdown/render.js");
    const view = new MarkdownView();
    view.update(source);
    const before = [...view.element.children];
    view.update(source + more);
    return before.filter((node) => node.parentNode === view.element).length;
}"""

BLOCKS = """async (source) => {
    const { MarkdownView } = await import("/markdown/render.js");
    const view = new MarkdownView();
    view.update(source);
    return view.element.childNodes.length;
}"""
HOSTILE = ("[", "*a ", "a* ", "**", "`", "``a`", "> ", "- ", "[a](", "_a", "![", "~~", "|", "<", "(https://", "\\")

EVERYTHING = """# Title

A *para* with **bold**, ***both***, `code`, ~~gone~~ and [a link](https://example.com).
Second line\\
after a hard break

- one
- two
  - nested

    with a paragraph
  1. ordered
- [x] done

3. three
4. four

> quoted
> - list
lazy

| a | b |
|:--|--:|
| 1 | `x|y` |

```python
def f():
    return "<b>"
```

---

    indented
Setext
======
tail
"""


@pytest.fixture(scope="module")
async def page(browser: Browser, stack: BackgroundStack) -> AsyncIterator[Page]:
    """One page for all: nothing here changes it."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(stack.url)
    yield page
    await context.close()


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("# One\n## Two", "<h3>One</h3><h4>Two</h4>"),
        ("#no heading", "<p>#no heading</p>"),
        ("a\nb\n\nc", "<p>a\nb</p><p>c</p>"),
        ("a  \nb", "<p>a<br>b</p>"),
        (
            "*a* **b** ***c*** _d_ __e__",
            "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <em>d</em> <strong>e</strong></p>",
        ),
        ("snake_case_name 2*3*4 a ** b", "<p>snake_case_name 2<em>3</em>4 a ** b</p>"),
        ("**bold *and italic***", "<p><strong>bold <em>and italic</em></strong></p>"),
        ("\\*not\\* \\`code\\`", "<p>*not* `code`</p>"),
        ("`a` ``b ` c`` `d", "<p><code>a</code> <code>b ` c</code> `d</p>"),
        ("~~a~~ ~b~", "<p><del>a</del> ~b~</p>"),
        ("- a\n- b", "<ul><li>a</li><li>b</li></ul>"),
        ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
        ("- a\n  - b\n    - c\n- d", "<ul><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ul>"),
        ("1. a\n   - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("text\n- a", "<p>text</p><ul><li>a</li></ul>"),
        ("in\n1984. Then", "<p>in\n1984. Then</p>"),
        (
            "- [ ] a\n- [x] b",
            (
                '<ul><li data-task=""><input type="checkbox" disabled="">a</li>'
                '<li data-task=""><input type="checkbox" disabled="">b</li></ul>'
            ),
        ),
        ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
        ("---", "<hr>"),
        (
            "| a | b |\n|---|:-:|\n| 1 |",
            (
                '<div><table><thead><tr><th>a</th><th data-align="center">b</th></tr></thead>'
                '<tbody><tr><td>1</td><td data-align="center"></td></tr></tbody></table></div>'
            ),
        ),
        ("a | b", "<p>a | b</p>"),
        ("```\n<b>\n```", "<div><pre><code>&lt;b&gt;</code></pre></div>"),
        ("```js\nnever closed", "<div><pre><code>never closed</code></pre></div>"),
        ("[a **b**](https://x.example)", '<p><a href="https://x.example/">a <strong>b</strong></a></p>'),
        ("[a](https://x.example/b_(c))", '<p><a href="https://x.example/b_(c)">a</a></p>'),
        ("see https://x.example/a, then", '<p>see <a href="https://x.example/a">https://x.example/a</a>, then</p>'),
        ("<b>bold</b> &amp;", "<p>&lt;b&gt;bold&lt;/b&gt; &amp;amp;</p>"),
        ("[not a link] [a](relative)", "<p>[not a link] [a](relative)</p>"),
    ],
)
async def test_markdown_becomes(page: Page, source: str, html: str) -> None:
    assert await page.evaluate(RENDER, source) == html


async def test_a_text_looks_the_same_however_it_was_cut_on_its_way(page: Page) -> None:
    grown = await page.evaluate(GROW, EVERYTHING)
    assert grown == {"wrong": [], "byLetter": True}


async def test_only_the_last_blocks_are_rendered_again(page: Page) -> None:
    paragraphs = "\n\n".join(f"Paragraph {number}" for number in range(20))
    assert await page.evaluate(REUSE, [paragraphs, " and more"]) == 19


async def test_a_text_made_to_be_slow_is_not(page: Page) -> None:
    """Work that grew with the square of the length would keep the page busy for minutes."""
    for piece in HOSTILE:
        source = piece * (100_000 // len(piece))
        assert await page.evaluate(BLOCKS, source) > 0, piece
