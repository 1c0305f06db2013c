"""An unmodified assistant-ui page: its runtime reads our stream and our stored messages as its own kind."""

import uuid
from pathlib import Path

from playwright.async_api import Browser, expect

from local.background import BackgroundStack
from tests.browser.conftest import PATIENCE_MS
from tests.browser.hook_page import serve_script
from tests.browser.npm_packages import FOLDER, REACT, bundle
from tests.browser.witness import Witness


async def test_assistant_ui_shows_an_answer_live_and_after_a_reload(
    browser: Browser, stack: BackgroundStack, witness: Witness, tmp_path: Path
) -> None:
    script = tmp_path / "hook.js"
    bundle(FOLDER / "assistant_ui.jsx", script, *REACT)
    context = await browser.new_context(extra_http_headers={"x-user-id": f"assistant-ui-{uuid.uuid4().hex}"})
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    witness.watch(page)
    await serve_script(page, script)
    await page.goto(f"{stack.url}/hook")
    message, send = page.get_by_role("textbox", name="Message"), page.get_by_role("button", name="Send")
    answers = page.get_by_role("article", name="assistant")
    await message.fill("[tool:current_time {}] [then] [echo:One two.]")
    await send.click()
    await expect(answers).to_have_text(["One two."])
    await message.fill("Thanks.")
    await expect(send).to_be_enabled()  # the answer has ended
    await page.reload()
    await expect(answers).to_have_text(["One two."])
    await context.close()
