"""The component of docs/frontend.md in a browser: a new chat, an answer, a reload, and errors that a user can read."""

import json
import re
import uuid
from pathlib import Path

import pytest
from playwright.async_api import Page, Route, expect

from local.background import BackgroundStack
from local.template import ROOT
from tests.browser.conftest import NewPage
from tests.browser.hook_page import serve_script
from tests.browser.npm_packages import REACT, bundle
from tests.docs.blocks import read_blocks

MOUNT = """
import { createRoot } from "react-dom/client";
import { Conversation } from "./conversation";

const id = new URLSearchParams(location.search).get("id") ?? "";
const root = document.getElementById("root");
if (root) createRoot(root).render(<Conversation id={id} chatUrl="" sessionsUrl="" token={() => "token"} />);
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snippet as a page's script."""
    folder = tmp_path_factory.mktemp("readme")
    snippet = next(block.text for block in read_blocks(ROOT / "docs/frontend.md") if block.language == "tsx")
    (folder / "conversation.tsx").write_text(snippet)
    (folder / "mount.tsx").write_text(MOUNT)
    bundle(folder / "mount.tsx", folder / "hook.js", *REACT)
    return folder / "hook.js"


@pytest.fixture
async def page(new_page: NewPage, stack: BackgroundStack, script: Path) -> Page:
    """The page of a chat that nobody has written in."""
    page = await new_page()
    await serve_script(page, script)
    async with page.expect_response("**/stream"):  # what is stored has been loaded then
        await page.goto(f"{stack.url}/hook?id={uuid.uuid4().hex}")
    return page


async def refuse(route: Route) -> None:
    problem = {"title": "Busy", "status": 503, "detail": "Try again in a moment.", "code": "storage_unavailable"}
    await route.fulfill(status=503, body=json.dumps(problem), content_type="application/problem+json")


async def test_the_snippet_answers_survives_a_reload_and_shows_refusals(
    page: Page,
) -> None:
    await expect(page.get_by_role("button", name="Say hello")).to_be_visible()
    await expect(page.get_by_role("alert")).to_have_count(0)  # the 404 of a new chat is no error
    await page.get_by_role("button", name="Say hello").click()
    await expect(page.locator("p")).to_have_count(2)
    await expect(page.get_by_role("button", name="Say hello")).to_be_visible()
    shown = await page.locator("p").all_inner_texts()
    assert shown[0] == "Hello"
    assert shown[1]
    await page.reload()
    await expect(page.locator("p")).to_have_text(shown)
    await expect(page.get_by_role("alert")).to_have_count(0)

    # With nothing to resume: a resumed answer that begins after the refusal would clear it.
    await page.route("**/stream", lambda route: route.fulfill(status=204))
    await page.reload()
    await expect(page.locator("p")).to_have_text(shown)
    await page.route("**/chat", refuse)
    await page.get_by_role("button", name="Say hello").click()
    await expect(page.get_by_role("alert")).to_have_text("Try again in a moment.")
    await page.unroute("**/chat")
    await page.route("**/messages", refuse)
    await page.reload()
    await expect(page.get_by_role("alert")).to_have_text("Try again in a moment.")


async def cut_off(route: Route) -> None:
    """Answer with a stream that ends in the middle, as when its turn goes on in another process."""
    response = await route.fetch()
    beginning, delta, _ = (await response.text()).partition('data: {"type":"text-delta"')
    assert delta
    await route.fulfill(response=response, body=beginning)


async def test_the_snippet_resumes_a_stream_that_ends_without_finish(page: Page) -> None:
    await page.route("**/chat", cut_off)
    await page.get_by_role("button", name="Say hello").click()
    await expect(page.locator("p").nth(1)).to_have_text(re.compile(r"\w"))
    shown = await page.locator("p").all_inner_texts()
    await page.reload()
    await expect(page.locator("p")).to_have_text(shown)
