"""Markdown on the page."""

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page

from local.background import BackgroundStack

SHOW = """async (text) => {
    const { MarkdownView } = await import("/markdown/view.js");
    const view = new MarkdownView();
    view.update(text);
    return view.element.innerHTML;
}"""
# Each beginning of the text, once on the way to the whole and once alone.
GROW = """async (text) => {
    const { MarkdownView } = await import("/markdown/view.js");
    const view = new MarkdownView();
    for (let end = 1; end <= text.length; end++) {
        const alone = new MarkdownView();
        for (const each of [view, alone]) each.update(text.slice(0, end));
        if (view.element.innerHTML !== alone.element.innerHTML) return text.slice(0, end);
    }
}"""
KEPT = """async ([start, text]) => {
    const { MarkdownView } = await import("/markdown/view.js");
    const view = new MarkdownView();
    view.update(start);
    const nodes = [...view.element.childNodes];
    view.update(text);
    return nodes.filter((node) => node.parentNode === view.element).length;
}"""
# What every link, table and code block has.
FURNITURE = re.compile(
    r' target="_blank" rel="noopener noreferrer nofollow"|</?div.*?>|<span>\w+</span>|<button.*?</button>'
    r'|(?<=<pre) tabindex="0" role="group"'
)
CASES = [
    ("# One\n## Two", '<h2 data-level="1">One</h2><h3 data-level="2">Two</h3>'),
    (
        "### Three\n# One\n#### Four",
        '<h2 data-level="3">Three</h2><h2 data-level="1">One</h2><h3 data-level="4">Four</h3>',
    ),
    ("a  \nb", "<p>a<br>b</p>"),
    ("- a\n- b", "<ul><li>a</li><li>b</li></ul>"),
    (
        "1. a\n\n```\nx\n```\n\n2. b",
        '<ol><li>a</li></ol><pre aria-label="Code"><code>x</code></pre><ol start="2"><li>b</li></ol>',
    ),
    (
        "- [ ] a\n- [x] b\n- [y] c",
        (
            '<ul><li data-task="open"><input type="checkbox" disabled="" aria-label="To do">a</li>'
            '<li data-task="done"><input type="checkbox" checked="" disabled="" aria-label="Done">b</li>'
            "<li>[y] c</li></ul>"
        ),
    ),
    (
        "- [x] a\n\n  [ ] b",
        (
            '<ul><li data-task="done"><input type="checkbox" checked="" disabled="" aria-label="Done">'
            "<p>a</p><p>[ ] b</p></li></ul>"
        ),
    ),
    (
        "| a | b |\n|---|:-:|\n| 1 |",
        (
            '<table><thead><tr><th>a</th><th data-align="center">b</th></tr></thead>'
            '<tbody><tr><td>1</td><td data-align="center"></td></tr></tbody></table>'
        ),
    ),
    ("```\n<b>\n```", '<pre aria-label="Code"><code>&lt;b&gt;</code></pre>'),
    ("```nonesuch\nnever closed", '<pre aria-label="nonesuch code"><code>never closed</code></pre>'),
    ("    a\n\n    b\n", '<pre aria-label="Code"><code>a\n\nb</code></pre>'),
    ("a[^1] &amp; &copy; <b>bold</b> <!-- x -->", "<p>a[^1] &amp; © &lt;b&gt;bold&lt;/b&gt; &lt;!-- x --&gt;</p>"),
    ("<div>\n<p>x</p>\n</div>", "<p>&lt;div&gt;\n&lt;p&gt;x&lt;/p&gt;\n&lt;/div&gt;</p>"),
    ("[a](https://x.example/b_(c))", '<p><a href="https://x.example/b_(c)">a</a></p>'),
    (
        "(see https://x.example/a_(b), https://y.example.)",
        (
            '<p>(see <a href="https://x.example/a_(b)">https://x.example/a_(b)</a>, '
            '<a href="https://y.example/">https://y.example</a>.)</p>'
        ),
    ),
    ("![a chart](https://x.example/p.png)", '<p><a href="https://x.example/p.png">a chart</a></p>'),
    (
        '```python\ndef f():\n    return "x"  # no\n```',
        (
            '<pre aria-label="python code"><code><span class="hljs-keyword">def</span> '
            '<span class="hljs-title function_">f</span>():\n    <span class="hljs-keyword">return</span> '
            '<span class="hljs-string">"x"</span>  <span class="hljs-comment"># no</span></code></pre>'
        ),
    ),
]
DEFINITION = ("[a **b**][1]\n\n[1]: https://x.example", '<p><a href="https://x.example/">a <strong>b</strong></a></p>')
HOSTILE = (
    *("[", "*a ", "a* ", "**", "`", "``a`", "> ", "- ", "[a](", "_a", "![", "~~", "|", "<", "(https://", "\\", "*["),
    *("1. ", "a|\n-|\n", "[a]: b\n", "https://x.example)", "&#", "\t- ", "```\n", "# a\n"),
)
HARMFUL = (
    *("javascript:alert(1)", "JaVaScRiPt:x", "java\u0000script:x", "  javascript:x", "\\javascript:x", "vbscript:x"),
    *("<javascript:x>", "//evil.example", "data:text/html,x", "data:image/png;base64,x", "file:///etc/passwd"),
    *("/sessions", "#top", "ftp://x.example"),
)


@pytest.fixture(scope="module")
async def page(browser: Browser, stack: BackgroundStack) -> AsyncIterator[Page]:
    """One page for all: nothing here changes it."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(stack.url)
    yield page
    await context.close()


@pytest.mark.parametrize(("source", "expected"), [*CASES, DEFINITION])
async def test_markdown_becomes(page: Page, source: str, expected: str) -> None:
    assert FURNITURE.sub("", await page.evaluate(SHOW, source)) == expected


async def test_tables_code_and_links_can_be_used_by_keyboard_and_lead_out_safely(page: Page) -> None:
    shown = await page.evaluate(SHOW, "| [x](https://a.example) |\n|---|\n\n```python\npass\n```")
    for part in (
        '<div class="table-frame" tabindex="0" role="group" aria-label="Table"><table>',
        '<th><a href="https://a.example/" target="_blank" rel="noopener noreferrer nofollow">x</a>',
        '<div class="code-bar"><span>python</span><button',
        '<pre tabindex="0" role="group" aria-label="python code">',
    ):
        assert part in shown


@pytest.mark.parametrize("with_definition", [False, True])
async def test_a_text_that_grows_is_shown_like_the_same_text_at_once(page: Page, with_definition: bool) -> None:
    sources = [source for source, _ in CASES] + [DEFINITION[0]] * with_definition
    assert await page.evaluate(GROW, "\n\n".join(sources)) is None


async def test_blocks_above_the_one_that_grows_stay_as_they_are(page: Page) -> None:
    start = "# Title\n\nText\n\n| a |\n|---|\n"
    assert await page.evaluate(KEPT, [start, f"{start}| 1 |"]) == 2


@pytest.mark.parametrize("address", HARMFUL)
async def test_no_link_leads_to(page: Page, address: str) -> None:
    assert "<a" not in await page.evaluate(SHOW, f"[x]({address}) ![x]({address}) {address}")


@pytest.mark.parametrize("piece", HOSTILE)
async def test_a_text_made_to_break_the_renderer_is_rendered(page: Page, piece: str) -> None:
    assert await page.evaluate(SHOW, piece * (4_000 // len(piece)) + "\n\nend")
