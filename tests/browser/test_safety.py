"""Text stays text, wherever it comes from."""

import json
import re
from typing import Any

from playwright.async_api import Page, Route, expect

from tests.browser.playground import Playground
from tests.browser.witness import Witness

# Each would set `pwned`, or leave the page, if any part of it were taken for more than text.
PAYLOADS = (
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload='window.pwned = 1'></svg>",
    "<iframe srcdoc='<script>parent.pwned = 1</script>'></iframe>",
    "<a href='javascript:window.pwned = 1'>click</a>",
    "<style>body { display: none }</style>",
    "<form action='https://evil.example'><button>Send</button></form>",
    "</p></div></article><h1>Escaped</h1>",
    "`<b onmouseover='window.pwned = 1'>`",
)
FORBIDDEN = "script, iframe, object, embed, style, link, form, base, meta, img, svg:not(.icon), [onerror], [onload]"

HANDLERS = """[...document.querySelectorAll("*")].flatMap((element) =>
    element.getAttributeNames().filter((name) => name.startsWith("on")))"""


async def test_markup_links_and_pictures_of_the_user_and_the_model_are_harmless(playground: Playground) -> None:
    text = "\n\n".join(PAYLOADS)
    await playground.ask(text)
    await playground.ask(f"[echo:{text}]")
    for shown in (playground.questions.first, playground.answer):
        for payload in PAYLOADS:
            await expect(shown).to_contain_text(payload.strip("`"))
    good = (
        "[site](https://good.example/a?b=c&d) <https://good.example/auto> [mail](mailto:ada@good.example) "
        "http://bare.example/x. ![a chart](https://evil.example/pixel.png?secret=1)"
    )
    quoted = '[click](https://good.example/" onmouseover="window.pwned=1)'
    await playground.ask(f"[echo:{good}\n\n{quoted}]")
    links = playground.answer.get_by_role("link")
    await expect(links).to_have_count(6)
    assert await links.evaluate_all("links => links.map(link => link.getAttribute('href'))") == [
        "https://good.example/a?b=c&d",
        "https://good.example/auto",
        "mailto:ada@good.example",
        "http://bare.example/x",
        "https://evil.example/pixel.png?secret=1",  # a link, which loads nothing
        "https://good.example/",  # the rest of it is text
    ]
    for rel in await links.evaluate_all("links => links.map(link => link.rel)"):
        assert "noopener" in rel
    await _is_harmless(playground.page)


async def test_everything_that_is_stored_is_harmless_and_no_string_is_parsed_as_markup(
    playground: Playground, page: Page, witness: Witness
) -> None:
    """Tool names, inputs, outputs, errors, reasoning and the name of the chat, all of them hostile."""
    evil = "".join(PAYLOADS)
    call = {"toolCallId": "1", "input": {evil: evil}}
    parts = [
        {"type": "reasoning", "text": evil, "state": "done"},
        {"type": f"tool-{evil}", **call, "state": "output-available", "output": evil},
        {"type": "tool-x", **call, "toolCallId": "2", "state": "output-available", "output": {evil: [evil]}},
        {"type": "tool-y", **call, "toolCallId": "3", "state": "output-error", "errorText": evil},
        {"type": "source-url", "sourceId": "1", "url": evil, "title": evil},
        {"type": "source-document", "sourceId": "2", "mediaType": evil, "title": evil},
        {"type": "text", "text": evil, "state": "done"},
    ]
    metadata = {"status": "complete", "turnNumber": 1, "model": evil, "durationMs": 1, "finishReason": evil}
    answer = {"id": evil, "role": "assistant", "parts": parts, "metadata": metadata}
    question = {"id": "q", "role": "user", "parts": [{"type": "text", "text": evil}]}
    await playground.ask("Hello")
    await _answer_with(
        page, f"**/sessions/{playground.session_id}/messages*", {"messages": [question, answer], "before": None}
    )
    session = {"id": playground.session_id, "name": evil, "answering": False, "updatedAt": "2026-01-01T00:00:00Z"}
    await _answer_with(page, "**/sessions?*", {"sessions": [session], "before": None})
    await _answer_with(page, f"**/sessions/{playground.session_id}", session)
    # The true answer ended a moment ago and would be streamed again.
    await page.route(re.compile(r"/stream$"), lambda route: route.fulfill(status=204))
    await page.reload()
    await expect(playground.tools).to_have_count(3)
    await expect(playground.chats).to_have_text([evil])
    await page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    await page.get_by_role("button", name="Rename this chat").click()
    await expect(page.get_by_role("textbox", name="Name")).to_have_value(evil)
    await _is_harmless(page)
    await _refuses_to_parse_strings_as_markup(page, witness)


async def _refuses_to_parse_strings_as_markup(page: Page, witness: Witness) -> None:
    refused = await page.evaluate(
        "(() => { try { document.body.innerHTML = '<b>x</b>'; return false } catch { return true } })()"
    )
    assert refused
    assert any("TrustedHTML" in error for error in witness.errors)
    witness.errors.clear()


async def _is_harmless(page: Page) -> None:
    for region in ("[role=log]", "nav", "header", "dialog[open] form"):
        assert await page.locator(region).locator(FORBIDDEN).count() == 0, region
    assert await page.evaluate(HANDLERS) == []
    assert await page.evaluate("window.pwned") is None


async def _answer_with(page: Page, url: str, document: dict[str, Any]) -> None:
    async def fulfil(route: Route) -> None:
        await route.fulfill(content_type="application/json", body=json.dumps(document))

    await page.route(url, fulfil)
