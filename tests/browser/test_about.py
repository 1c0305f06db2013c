"""The page is about the agent that is being written, and about the model that answers."""

import re

import pytest
from playwright.async_api import Page, Route, expect

from local.background import BackgroundStack
from local.model import OfflineModel
from tests.browser.playground import Playground

TODO = {"title": "To-do list", "description": "Keeps your tasks.", "suggestions": ["Add a task", "What is due?"]}

COST = """async (usage) => {
    const { costOf } = await import("/prices.js");
    const { MODELS } = await import("/vendor/prices.js");
    return [costOf("openai-chat/gpt-6-luna", usage), costOf("mine/model", usage), MODELS["gpt-6-luna"]];
}"""


async def test_the_page_shows_the_agents_name_and_suggestions_also_after_a_change(
    playground: Playground, page: Page, stack: BackgroundStack
) -> None:
    await expect(page).to_have_title("Shop assistant")
    await expect(page.locator(".brand")).to_contain_text("Shop assistant")
    await expect(playground.message).to_have_attribute("placeholder", "Ask Shop assistant")
    await expect(page.get_by_role("heading", name="Shop assistant")).to_be_visible()

    async def tell(route: Route) -> None:
        info = await (await route.fetch()).json()
        await route.fulfill(json={**info, "agent": TODO})

    await page.route("**/local/info", tell)
    stack.loop.call_soon_threadsafe(stack.stack.changed)  # as after a file was saved
    await expect(page).to_have_title("To-do list")
    await expect(page.get_by_text("Keeps your tasks.")).to_be_visible()
    await expect(page.locator(".example")).to_have_text(TODO["suggestions"])
    await page.get_by_role("button", name="What is due?").click()
    await expect(playground.questions).to_have_text(["What is due?"])


async def test_another_model_answers_at_its_price_with_a_key_that_nothing_keeps(
    playground: Playground, page: Page, stack: BackgroundStack
) -> None:
    chip = page.get_by_role("button", name="Offline model · add a key")
    with OfflineModel() as other:
        await chip.click()
        dialog = page.get_by_role("dialog", name="Model")
        await dialog.get_by_role("radio", name="Another server").check()
        await dialog.get_by_label("Address").fill(other.base_url)
        await playground.button("Use this model").click()
        await expect(dialog.get_by_role("status")).to_have_text("Enter the name of a model.")
        await dialog.get_by_label("Model", exact=True).fill("gpt-6-luna")
        await dialog.get_by_label("Key", exact=True).fill("key-of-this-tab")
        await playground.button("Use this model").click()
        await expect(page.get_by_role("button", name="openai-chat/gpt-6-luna")).to_be_visible()
        await playground.ask("[echo:From the other one]")
        await expect(playground.answer).to_contain_text("From the other one")
        await expect(playground.answer).to_contain_text(re.compile(r"tokens.* · [\d.]+ ¢"))
        assert other.requests[0].body["model"] == "gpt-6-luna"
        kept = await page.evaluate("JSON.stringify([localStorage, sessionStorage])")
        assert "key-of-this-tab" not in kept
        async with playground.api() as api:
            assert "key-of-this-tab" not in (await api.get("/local/models")).text
        emulator = stack.stack.emulator
        assert not [
            line for name in ("chat", "sessions", "summary", "run") for line in emulator.logs(name) if "key-of" in line
        ]
        await page.get_by_role("button", name="openai-chat/gpt-6-luna").click()
        await dialog.get_by_role("radio", name="Offline model").check()
        await playground.button("Use this model").click()
    await expect(chip).to_be_visible()
    await playground.ask("Hello")
    await expect(playground.answer).to_contain_text("I am the offline model")


async def test_each_kind_of_token_has_its_price(playground: Playground, page: Page) -> None:
    usage = {"inputTokens": 1e6, "outputTokens": 1e6, "cachedInputTokens": 4e5, "cacheWriteTokens": 1e5}
    cents, unknown, prices = await page.evaluate(COST, usage)
    in_dollars = dict(zip(("input", "output", "read", "written"), prices, strict=True))
    assert cents == pytest.approx(
        50 * in_dollars["input"] + 100 * in_dollars["output"] + 40 * in_dollars["read"] + 10 * in_dollars["written"]
    )
    assert unknown is None
