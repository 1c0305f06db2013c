"""The real `useChat` hook in a page, which shows live what a reload shows and what is stored.

What its client makes of each end and each resumed stream is in `tests/client`.
"""

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import expect

from local.background import BackgroundStack
from local.model import OfflineModel
from tests.browser.conftest import NewPage
from tests.browser.hook_page import HookPage, Json, prompt, texts
from tests.browser.npm_packages import FOLDER, REACT, bundle, sdk_aliases

HALF = "[stall] [echo:one two three four]"
OpenHook = Callable[[], Awaitable[HookPage]]


@pytest.fixture(scope="session")
def hook_script(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with AI SDK 6. `@each_sdk` runs a test with every version."""
    script = tmp_path_factory.mktemp("hook") / "hook.js"
    bundle(FOLDER / "page.jsx", script, *REACT, *sdk_aliases(getattr(request, "param", 6)))
    return script


each_sdk = pytest.mark.parametrize("hook_script", [5, 6, 7], indirect=True)


@pytest.fixture
def open_hook(new_page: NewPage, prompted_stack: BackgroundStack, hook_script: Path) -> OpenHook:
    """Open pages on one chat of one user, each with a profile of its own."""
    session_id = uuid.uuid4().hex

    async def open_hook() -> HookPage:
        page = HookPage(await new_page(), prompted_stack.url, session_id, hook_script)
        await page.open()
        return page

    return open_hook


async def check(hook: HookPage) -> list[Json]:
    """Hold the live page against what is stored, and against itself after a reload. Returns the messages."""
    shown = await hook.shown()
    assert shown == await hook.stored()
    await hook.reload(until_quiet=True)
    assert await hook.shown() == shown
    return shown


async def test_regenerate_after_a_send_that_never_arrived_answers_the_new_question(open_hook: OpenHook) -> None:
    hook = await open_hook()
    await hook.send("[echo:One.]")
    await expect(hook.answers).to_have_text(["One."])
    await hook.page.route("**/chat", lambda route: route.abort(), times=1)
    await hook.shown()
    await hook.send("[echo:Two.]")
    await expect(hook.alert).to_be_visible()
    await hook.regenerate()
    await expect(hook.answers).to_have_text(["One.", "Two."])
    assert texts(await check(hook)) == ["[echo:One.]", "One.", "[echo:Two.]", "Two."]


async def test_a_reload_in_the_middle_of_a_regeneration_shows_one_answer(open_hook: OpenHook) -> None:
    hook = await open_hook()
    await hook.send(HALF)
    await expect(hook.answers).to_have_text(["one two three"])
    await hook.stop()
    [_, old] = await hook.shown()
    await hook.regenerate()
    await expect(hook.page.get_by_role("main")).to_have_attribute("data-status", "streaming")
    await expect(hook.answers).to_have_text(["one two three"])
    await hook.reload()
    await expect(hook.page.get_by_role("main")).to_have_attribute("data-status", "streaming")
    await expect(hook.answers).to_have_text(["one two three"])
    await hook.stop()
    [_, new] = await check(hook)
    assert new["id"] != old["id"]


async def agree(hook: HookPage, model: OfflineModel) -> list[str]:
    """Check that the page, a reload and the model's last prompt have the same texts. Returns them."""
    *before, answer = texts(await check(hook))
    assert before == prompt(model)
    return [*before, answer]


@each_sdk
async def test_edits_regenerations_and_switches_reach_the_model_as_shown(
    open_hook: OpenHook, model: OfflineModel
) -> None:
    hook = await open_hook()
    for text in ("[echo:One.]", "[echo:Two.]", "[echo:Three.]"):
        await hook.ask(text)
    shown = await hook.shown()
    await hook.ask("[echo:Other.]", edited=shown[2]["id"])
    assert await agree(hook, model) == ["[echo:One.]", "One.", "[echo:Other.]", "Other."]

    await hook.ask_again(shown[1]["id"])  # an older one
    assert await agree(hook, model) == ["[echo:One.]", "One."]
    await hook.ask("[echo:Four.]")
    [*_, four] = await hook.shown()
    await hook.ask_again()
    assert await agree(hook, model) == ["[echo:One.]", "One.", "[echo:Four.]", "Four."]
    assert (await hook.shown())[-1]["id"] != four["id"]

    # Back to the first answer, whose newest branch is the edited question, and then to the question before the edit.
    await hook.switch((await hook.places())[1]["siblings"]["previous"])
    assert texts(await check(hook)) == ["[echo:One.]", "One.", "[echo:Other.]", "Other."]
    await hook.switch((await hook.places())[2]["siblings"]["previous"])
    assert await check(hook) == shown
    await hook.ask("[echo:Five.]")
    assert await agree(hook, model) == [*texts(shown), "[echo:Five.]", "Five."]


@each_sdk
async def test_two_tabs_continue_two_branches(open_hook: OpenHook, model: OfflineModel) -> None:
    one = await open_hook()
    await one.ask("[echo:One.]")
    await one.ask("[echo:Two.]")
    shown = await one.shown()
    other = await open_hook()
    await other.ask("[echo:Other.]", edited=shown[2]["id"])
    await one.ask("[echo:Three.]")
    assert texts(await one.shown()) == [*texts(shown), "[echo:Three.]", "Three."]
    assert prompt(model) == texts(await one.shown())[:-1]
    [*_, three] = await one.places()
    await other.ask("[echo:Four.]")
    assert await agree(other, model) == ["[echo:One.]", "One.", "[echo:Other.]", "Other.", "[echo:Four.]", "Four."]
    await one.switch(three["nodeId"])
    assert texts(await check(one)) == [*texts(shown), "[echo:Three.]", "Three."]
