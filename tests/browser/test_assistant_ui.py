"""An unmodified assistant-ui page: its runtime reads our stream and our stored messages as its own kind."""

from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from local.background import BackgroundStack
from local.model import OfflineModel
from tests.browser.conftest import NewPage
from tests.browser.hook_page import prompt, serve_script
from tests.browser.npm_packages import FOLDER, REACT, bundle


@pytest.fixture(scope="session")
def thread_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("assistant-ui") / "hook.js"
    bundle(FOLDER / "assistant_ui.jsx", script, *REACT)
    return script


@pytest.fixture
async def page(new_page: NewPage, prompted_stack: BackgroundStack, thread_script: Path) -> Page:
    """The page of a user who has no chat yet."""
    page = await new_page()
    await serve_script(page, thread_script)
    await page.goto(f"{prompted_stack.url}/hook")
    return page


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name)


async def answered(page: Page, button: Locator) -> None:
    """Press a button that asks for an answer, and wait for its end."""
    async with page.expect_response("**/chat"):
        await button.click()
    await expect(page.get_by_role("status")).to_have_count(0)


async def ask(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message", exact=True).fill(text)
    await answered(page, button(page, "Send"))


async def test_assistant_ui_shows_an_answer_live_and_after_a_reload(page: Page) -> None:
    await ask(page, "[tool:current_time {}] [then] [echo:One two.]")
    answers = page.get_by_role("article", name="assistant")
    await expect(answers).to_have_text(["One two."])
    await page.reload()
    await expect(answers).to_have_text(["One two."])


async def test_assistant_ui_edits_and_reloads_reach_the_model_as_shown(page: Page, model: OfflineModel) -> None:
    async def agree(*texts: str) -> None:
        await expect(page.get_by_role("article")).to_have_text(texts)
        assert prompt(model) == list(texts[:-1])

    for text in ("[echo:One.]", "[echo:Two.]", "[echo:Three.]"):
        await ask(page, text)
    await button(page, "Edit").nth(1).click()
    await page.get_by_role("textbox", name="Edited message").fill("[echo:Other.]")
    await answered(page, button(page, "Update"))
    await agree("[echo:One.]", "One.", "[echo:Other.]", "Other.")
    await answered(page, button(page, "Reload").last)
    await agree("[echo:One.]", "One.", "[echo:Other.]", "Other.")
    await answered(page, button(page, "Reload").first)
    await agree("[echo:One.]", "One.")
    await ask(page, "[echo:Four.]")
    await page.reload()
    await agree("[echo:One.]", "One.", "[echo:Four.]", "Four.")
    await button(page, "Edit").first.click()
    await page.get_by_role("textbox", name="Edited message").fill("[echo:First.]")
    await answered(page, button(page, "Update"))
    await page.reload()
    await agree("[echo:First.]", "First.")
