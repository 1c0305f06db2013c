"""Markdown as a tree of elements, and the bounds of its rendering."""

import json
from collections.abc import AsyncIterator
from html import escape
from typing import Any

import pytest

from local.markdown import Node, highlight, render
from local.renderer import MAX_CHARS, NotRendered, Renderer

HOSTILE = (
    *("[", "*a ", "a* ", "**", "`", "``a`", "> ", "- ", "[a](", "_a", "![", "~~", "|", "<", "(https://", "\\", "*["),
    *("1. ", "a|\n-|\n", "[a]: b\n", "https://x.example)", "&#", "\t- ", "```\n"),
)


def html(nodes: list[Node]) -> str:
    """The tree as a browser would write it, attributes in their order."""
    return "".join(escape(node, quote=False) if isinstance(node, str) else _element(*node) for node in nodes)


def _element(tag: str, attributes: dict[str, Any], *children: Node) -> str:
    written = "".join(f' {name}="{value}"' for name, value in attributes.items() if value != "")
    return f"<{tag}{written}>" + ("" if tag in {"br", "hr"} else html(list(children)) + f"</{tag}>")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("# One\n## Two", '<h2 level="1">One</h2><h3 level="2">Two</h3>'),
        ("### Three\n# One\n#### Four", '<h2 level="3">Three</h2><h2 level="1">One</h2><h3 level="4">Four</h3>'),
        ("#no heading", "<p>#no heading</p>"),
        ("a\nb\n\nc", "<p>a\nb</p><p>c</p>"),
        ("a  \nb", "<p>a<br>b</p>"),
        ("*a* **b** ***c***", "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em></p>"),
        ("snake_case_name 2*3*4 a ** b", "<p>snake_case_name 2<em>3</em>4 a ** b</p>"),
        ("\\*not\\* `a` ``b ` c`` `d", "<p>*not* <code>a</code> <code>b ` c</code> `d</p>"),
        ("~~a~~ ~b~", "<p><del>a</del> ~b~</p>"),
        ("- a\n- b", "<ul><li>a</li><li>b</li></ul>"),
        ("- a\n  - b\n    - c\n- d", "<ul><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ul>"),
        (
            "1. **A**\n\n   Text of A.\n\n2. **B**\n   - b\n\n10. C",
            (
                "<ol><li><p><strong>A</strong></p><p>Text of A.</p></li>"
                "<li><p><strong>B</strong></p><ul><li>b</li></ul></li><li><p>C</p></li></ol>"
            ),
        ),
        ("1. a\n\n```\nx\n```\n\n2. b", '<ol><li>a</li></ol><pre>x</pre><ol start="2"><li>b</li></ol>'),
        ("in\n1984. Then", "<p>in\n1984. Then</p>"),
        ("- [ ] a\n- [x] b\n- [y] c", '<ul><li task="open">a</li><li task="done">b</li><li>[y] c</li></ul>'),
        ("- [x] a\n\n  [ ] b", '<ul><li task="done"><p>a</p><p>[ ] b</p></li></ul>'),
        ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
        (
            "| a | b |\n|---|:-:|\n| 1 |",
            (
                '<table><thead><tr><th>a</th><th align="center">b</th></tr></thead>'
                '<tbody><tr><td>1</td><td align="center"></td></tr></tbody></table>'
            ),
        ),
        ("```\n<b>\n```", "<pre>&lt;b&gt;</pre>"),
        ("```nonesuch\nnever closed", '<pre language="nonesuch">never closed</pre>'),
        ("    a\n\n    b\n", "<pre>a\n\nb</pre>"),
        ("a[^1] &amp; &copy; <b>bold</b> <!-- x -->", "<p>a[^1] &amp; © &lt;b&gt;bold&lt;/b&gt; &lt;!-- x --&gt;</p>"),
        ("<div>\n<p>x</p>\n</div>", "<p>&lt;div&gt;\n&lt;p&gt;x&lt;/p&gt;\n&lt;/div&gt;</p>"),
        ("[a **b**][1]\n\n[1]: https://x.example", '<p><a href="https://x.example">a <strong>b</strong></a></p>'),
        ("[a](https://x.example/b_(c))", '<p><a href="https://x.example/b_(c)">a</a></p>'),
        (
            "(see https://x.example/a_(b), https://y.example.)",
            (
                '<p>(see <a href="https://x.example/a_(b)">https://x.example/a_(b)</a>, '
                '<a href="https://y.example">https://y.example</a>.)</p>'
            ),
        ),
        (
            "[*https://a.example*](https://b.example)",
            '<p><a href="https://b.example"><em>https://a.example</em></a></p>',
        ),
        ("![a chart](https://x.example/p.png)", '<p><a href="https://x.example/p.png">a chart</a></p>'),
        ("[not a link] [a](relative)", "<p>[not a link] [a](relative)</p>"),
    ],
)
def test_markdown_becomes(source: str, expected: str) -> None:
    assert html(render(source)) == expected


@pytest.mark.parametrize(
    "address",
    [
        *("javascript:alert(1)", "JaVaScRiPt:x", "  javascript:x", "<javascript:x>", "vbscript:x", "//evil.example"),
        *("data:text/html,x", "data:image/png;base64,x", "file:///etc/passwd", "/sessions", "#top"),
    ],
)
def test_no_link_leads_to(address: str) -> None:
    assert '"a"' not in json.dumps(render(f"[x]({address}) ![x]({address})"))


def test_code_has_the_kinds_of_its_tokens() -> None:
    assert html(list(highlight('def f():\n    return "x"  # no', "python"))) == (
        '<span kind="keyword">def</span> <span kind="call">f</span>():\n'
        '    <span kind="keyword">return</span> <span kind="string">"x"</span>  <span kind="comment"># no</span>'
    )
    assert (
        html(list(highlight("+a\n-b\n", "diff"))) == '<span kind="inserted">+a</span>\n<span kind="deleted">-b</span>\n'
    )


@pytest.mark.parametrize("language", ["python", "json", "nonesuch", ""])
def test_highlighting_loses_no_character(language: str) -> None:
    code = "\n\n  def x():\n\t'open \0 \N{PILE OF POO}\n\n"
    pieces = highlight(code, language)
    assert "".join(piece if isinstance(piece, str) else piece[2] for piece in pieces) == code


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_text_made_to_break_the_renderer_is_rendered(piece: str) -> None:
    assert json.loads(json.dumps(render(piece * (4_000 // len(piece)))))


@pytest.fixture
async def renderer() -> AsyncIterator[Renderer]:
    renderer = Renderer()
    yield renderer
    await renderer.close()


async def test_a_text_is_rendered_within_a_size_and_a_time(renderer: Renderer) -> None:
    assert json.loads(await renderer.render("*a*\u2028\ud800")) == [["p", {}, ["em", {}, "a"], "\u2028\ud800"]]
    with pytest.raises(NotRendered, match="more than 200000 characters"):
        await renderer.render("x" * (MAX_CHARS + 1))
    renderer.seconds = 0
    with pytest.raises(NotRendered, match="more than 0 seconds"):
        await renderer.render("![" * 50_000)
    renderer.seconds = 60
    assert json.loads(await renderer.render("next")) == [["p", {}, "next"]]
