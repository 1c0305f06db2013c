"""Breaking something on purpose from the page, and a turn of the page as a test."""

import asyncio
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

from playwright.async_api import Page, Route, expect

from local.template import ROOT
from tests.browser.playground import Playground


async def test_an_answer_goes_on_after_its_process_was_killed_from_the_page(playground: Playground, page: Page) -> None:
    await _choose(page, "Kill this Lambda")
    await expect(page.get_by_text("Nothing is being answered now")).to_be_visible()
    await _choose(page, "Show the processes")
    strip = page.get_by_role("region", name="Processes of this stack")
    await playground.begin("[slow:100] [long:150]")
    await playground.has_begun_to_answer()
    await expect(strip).to_contain_text(re.compile(r"Journal: \d+ records? · heartbeat"))
    before = await playground.answer.locator(".markdown").inner_text()
    await _choose(page, "Kill this Lambda")
    await expect(strip).to_contain_text("Killed with kill -9")
    await expect(strip.get_by_role("listitem").filter(has_text="serves this chat")).to_have_count(1)
    await expect(strip.get_by_role("listitem").filter(has_text="killed")).to_have_count(1)
    # What was shown stays until the other process has come as far.
    await expect(page.get_by_text("Another one goes on")).to_be_visible()
    await expect(playground.answer.locator(".markdown")).to_contain_text(before)
    await playground.ended()
    await expect(strip).to_contain_text(re.compile(r"Journal: \d+ records · taken over once · answer complete"))
    assert [message.get("metadata", {}).get("status") for message in await playground.stored()] == [None, "complete"]


async def test_a_process_frozen_from_the_page_loses_its_turn_to_another(playground: Playground, page: Page) -> None:
    await _choose(page, "Show the processes")
    strip = page.get_by_role("region", name="Processes of this stack")
    await playground.begin("[slow:100] [long:60]")
    await expect(strip).to_contain_text(re.compile(r"Journal: \d+ records? · heartbeat"))
    await _choose(page, "Freeze it for 60 s")
    await expect(strip).to_contain_text("Frozen for 60 s.")
    await expect(strip.get_by_role("listitem").filter(has_text="frozen")).to_have_count(1)
    await expect(strip.get_by_role("listitem").filter(has_text="serves this chat")).to_have_count(1)
    await playground.ended()
    await expect(strip).to_contain_text("taken over once · answer complete")
    assert [message.get("metadata", {}).get("status") for message in await playground.stored()] == [None, "complete"]


async def test_services_that_run_elsewhere_are_not_cut_off(playground: Playground, page: Page) -> None:
    await _choose(page, "Cut MongoDB off for 6 s")
    await expect(page.get_by_text("MongoDB runs outside this stack.")).to_be_visible()
    await _choose(page, "Cut the model off for 6 s")
    strip = page.get_by_role("region", name="Processes of this stack")
    await expect(strip).to_contain_text("The model does not answer for 6 s.")
    await playground.ask("[echo:After a while]")
    await expect(playground.answer).to_contain_text("After a while")
    await expect(strip).not_to_contain_text("does not answer")
    await expect(strip).to_contain_text("answer complete")

    release = asyncio.Event()

    async def hold(route: Route) -> None:
        await release.wait()
        await route.continue_()

    await page.route("**/chat", hold)
    await playground.message.fill("[echo:Again]")
    await playground.message.press("Enter")
    await expect(strip).to_contain_text("not in the journal yet")  # the earlier one's is no sign of life
    release.set()
    await playground.ended()
    await page.get_by_role("button", name="Hide the processes").click()
    await expect(strip).to_be_hidden()


async def test_a_turn_with_tools_and_an_approval_is_saved_as_a_test_that_passes(
    playground: Playground, page: Page, tmp_path: Path
) -> None:
    await playground.ask("Please refund order 1001, 80 euros")
    await page.get_by_role("form", name="Allow refund?").get_by_role("button", name="Approve").click()
    await expect(playground.answer).to_contain_text("are on their way")
    await playground.ended()
    await playground.button("Save as test").click()
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Download test_please_refund_order_1001_80_euros.py").click()
    file = tmp_path / (await download.value).suggested_filename
    await (await download.value).save_as(file)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "functions"), str(ROOT / "layers/core")])}
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # others take seconds to load
    options = ["-q", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    run = partial(subprocess.run, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    played = await asyncio.to_thread(run, command)
    assert played.returncode == 0, played.stdout


async def _choose(page: Page, name: str) -> None:
    await page.get_by_role("button", name="Break it").click()
    await page.get_by_role("button", name=re.compile(f"^{name}")).click()
