"""The page is about the agent that is being written, and about the model that answers."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect
from pymongo import MongoClient

from local.background import BackgroundStack
from local.model import OfflineModel
from local.stack import Stack
from tests.browser.playground import OpenPage, Playground

OFFLINE = "Offline model · add a key"

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

    await playground.button("Details").click()
    await page.get_by_role("tab", name="Agent").click()
    await expect(page.get_by_role("tabpanel")).to_contain_text("4 tools")

    async def tell(route: Route) -> None:
        info = await (await route.fetch()).json()
        await route.fulfill(json={**info, "agents": [TODO]})

    await page.route("**/local/info", tell)
    await page.route("**/local/agent?*", lambda route: route.fulfill(json={"error": "No module named 'todo'"}))
    stack.loop.call_soon_threadsafe(stack.stack.changed)  # as after a file was saved
    await expect(page).to_have_title("To-do list")
    await expect(page.get_by_role("tabpanel")).to_contain_text("No module named 'todo'")
    await expect(page.get_by_text("Keeps your tasks.")).to_be_visible()
    await expect(page.locator(".example")).to_have_text(TODO["suggestions"])
    await page.get_by_role("button", name="What is due?").click()
    await expect(playground.questions).to_have_text(["What is due?"])


async def test_a_key_serves_the_chats_of_its_tab_alone_and_is_kept_nowhere_else(
    playground: Playground, page: Page, open_page: OpenPage, stack: BackgroundStack
) -> None:
    chip, chosen = (page.get_by_role("button", name=name) for name in (OFFLINE, "openai-chat/gpt-6-luna"))
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
        await expect(chosen).to_be_visible()
        await playground.ask("[echo:From the other one]")
        await expect(playground.answer).to_contain_text("From the other one")
        await expect(playground.answer).to_contain_text(re.compile(r"tokens.* · [\d.]+ ¢"))
        assert other.requests[0].body["model"] == "gpt-6-luna"

        await playground.button("Details").click()
        await page.get_by_role("tab", name="Agent").click()
        await expect(page.get_by_role("tabpanel")).to_contain_text("Model: openai-chat/gpt-6-luna")
        asked = len(other.requests)
        tab = await open_page(f"/#/chat/{playground.session_id}")
        await expect(tab.page.get_by_role("button", name=OFFLINE)).to_be_visible()
        await tab.ask("[echo:From the stack's own]")
        assert len(other.requests) == asked, "another tab of the same user, in the same chat, has no key"
        assert "key-of" not in await tab.page.evaluate("JSON.stringify([localStorage, sessionStorage])")

        await page.reload()
        await expect(chosen).to_be_visible()
        await expect(playground.answers).to_have_count(2)
        await playground.ask("[echo:With the key again]")
        assert len(other.requests) > asked
        assert "key-of" not in await page.evaluate("JSON.stringify(localStorage)")
        assert "key-of" not in repr([*all_documents(stack.stack)])
        logs = [stack.stack.emulator.logs(name) for name in ("chat", "sessions", "summary", "run")]
        assert "key-of" not in repr(logs)

        await chosen.click()
        await dialog.get_by_role("radio", name="Offline model").check()
        await playground.button("Use this model").click()
        await expect(chip).to_be_visible()
        assert "key-of" not in await page.evaluate("JSON.stringify([localStorage, sessionStorage])")
        asked = len(other.requests)
        await playground.ask("Hello")
        await expect(playground.answer).to_contain_text("I am the offline model")
        assert len(other.requests) == asked


async def test_an_ollama_on_this_machine_is_offered_without_a_key(playground: Playground, page: Page) -> None:
    async with playground.api() as api:
        info = (await api.get("/local/info")).json()
    ollama = {"url": "http://127.0.0.1:11434/v1", "models": ["llama3.2"]}
    chosen: list[Any] = []

    async def tell(route: Route) -> None:
        if route.request.method == "POST":
            chosen.append(route.request.post_data_json)
            await route.fulfill(json={**info, "offline": False, "model": "openai-chat/llama3.2"})
        else:
            options = {"vendor": "stack", "has_offline": True, "agent_model": None, "ollama": ollama}
            await route.fulfill(json=options)

    await page.route("**/local/models", tell)
    await page.get_by_role("button", name=OFFLINE).click()
    await page.get_by_role("radio", name="Ollama: llama3.2").check()
    await expect(page.get_by_label("Key", exact=True)).to_have_count(0)
    await playground.button("Use this model").click()
    await expect(page.get_by_role("button", name="openai-chat/llama3.2")).to_be_visible()
    assert chosen == [{"vendor": "compatible", "model": "llama3.2", "url": ollama["url"]}]


def all_documents(stack: Stack) -> Iterator[object]:
    """Everything that the stack stores."""
    with MongoClient[dict[str, Any]](stack.mongodb_uri) as client:
        for name in client.list_database_names():
            for collection in client[name].list_collection_names():
                yield from client[name][collection].find()
    dynamodb = stack.aws.dynamodb
    for table in dynamodb.list_tables()["TableNames"]:
        yield from dynamodb.scan(TableName=table)["Items"]


async def test_each_kind_of_token_has_its_price(playground: Playground, page: Page) -> None:
    usage = {"inputTokens": 1e6, "outputTokens": 1e6, "cachedInputTokens": 4e5, "cacheWriteTokens": 1e5}
    cents, unknown, prices = await page.evaluate(COST, usage)
    in_dollars = dict(zip(("input", "output", "read", "written"), prices, strict=True))
    assert cents == pytest.approx(
        50 * in_dollars["input"] + 100 * in_dollars["output"] + 40 * in_dollars["read"] + 10 * in_dollars["written"]
    )
    assert unknown is None
