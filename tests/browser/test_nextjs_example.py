"""The page of examples/nextjs without Next.js around it: its chat, bundled, on the origin of the stack."""

import uuid
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from local.background import BackgroundStack
from tests.browser.conftest import NewPage
from tests.browser.hook_page import serve_script
from tests.browser.npm_packages import REACT, bundle, installed
from tests.fixtures.nextjs_example import EXAMPLE, install_packages

MOUNT = """
import { createRoot } from "react-dom/client";
import { ChatLoader } from "EXAMPLE/components/ChatLoader";

const id = new URLSearchParams(location.search).get("id") ?? "";
createRoot(document.getElementById("root")!).render(<ChatLoader id={id} />);
"""
SAME_ORIGIN = [f'--define:process.env.NEXT_PUBLIC_{name}_URL=""' for name in ("CHAT", "SESSIONS")]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    installed("esbuild")
    folder = tmp_path_factory.mktemp("nextjs")
    (folder / "mount.tsx").write_text(MOUNT.replace("EXAMPLE", str(EXAMPLE)))
    bundle(folder / "mount.tsx", folder / "hook.js", *REACT, *SAME_ORIGIN, packages=install_packages())
    return folder / "hook.js"


@pytest.fixture
async def page(new_page: NewPage, stack: BackgroundStack, script: Path) -> Page:
    """The page of a chat that nobody has written in."""
    page = await new_page()
    await serve_script(page, script)
    async with page.expect_response("**/stream"):
        await page.goto(f"{stack.url}/hook?id={uuid.uuid4().hex}")
    return page


def button(place: Page | Locator, name: str) -> Locator:
    return place.get_by_role("button", name=name, exact=True)


async def ask(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message", exact=True).fill(text)
    await button(page, "Send").click()
    await expect(button(page, "Stop")).to_have_count(0)


async def test_a_denied_call_shows_its_reason_also_after_a_reload(page: Page) -> None:
    await ask(page, "Please refund order 1001, 80 euros")
    card = page.get_by_role("region", name="Allow refund?")
    await expect(card).to_contain_text("Refunds of more than 50 euros need approval.")
    await button(card, "Deny …").click()
    await card.get_by_role("textbox", name="Reason").fill("Too much.")
    await button(card, "Deny").click()
    await expect(page.get_by_role("article").last).to_contain_text("I have not paid")
    await page.reload()
    await page.get_by_role("button", name="Denied").click()
    await expect(page.get_by_text("Reason: Too much.")).to_be_visible()


async def test_an_edited_message_and_its_first_version_both_stay(page: Page) -> None:
    await ask(page, "[echo:One <img src=https://example.com/a.png>]")
    await button(page, "Edit").click()
    await page.get_by_role("textbox", name="Edit message").fill("[echo:```js\nconst two = 2;\n```]")
    await button(page, "Send").first.click()
    await expect(page.get_by_role("article").last.locator("code")).to_have_text("const two = 2;")
    await button(page, "Previous version").click()
    await expect(page.get_by_role("article").last).to_contain_text("One <img src=")
    await expect(page.get_by_text("1 / 2")).to_be_visible()
