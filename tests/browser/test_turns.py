"""Turns that do not run straight through: stopped, resumed, failed, refused."""

import re

from playwright.async_api import Page, Route, expect

from tests.browser.playground import OpenPage, Playground, text_of
from tests.fixtures.proxy import Proxy

SLOW = "[slow:80] [long:500]"
# Goes silent in the middle, until it is stopped.
STALLED = "[stall] [echo:one two three four]"


async def test_stop_ends_the_turn_keeps_its_text_and_allows_a_regeneration(
    playground: Playground,
) -> None:
    await playground.begin(STALLED)
    await playground.has_begun_to_answer()
    await playground.stop.click()
    await expect(playground.answer.get_by_text("Stopped")).to_have_class("badge calm")
    await playground.ended()
    [_, stopped] = await playground.stored()
    assert stopped["metadata"]["status"] == "cancelled"
    await _shows_exactly_what_is_stored(playground)
    async with playground.api() as api:
        refused = await api.post(f"/sessions/{playground.session_id}/cancel")
    assert refused.json()["code"] == "no_running_turn"

    await playground.button("Regenerate").click()
    await expect(playground.answer.get_by_text("Stopped")).to_have_count(0)
    await playground.has_begun_to_answer()
    await playground.message.press("Escape")
    await playground.ended()
    [_, again] = await playground.stored()
    assert again["id"] != stopped["id"]
    await _shows_exactly_what_is_stored(playground)


async def test_a_stop_before_the_first_event_waits_for_the_turn(playground: Playground) -> None:
    await playground.message.fill("[stall:first] Hello")
    await playground.message.press("Enter")
    await playground.stop.click()
    await expect(playground.answer.get_by_text("Stopped")).to_be_visible()


async def test_a_reload_in_the_middle_of_an_answer_resumes_it(playground: Playground) -> None:
    await playground.begin(SLOW)
    await playground.has_begun_to_answer()
    await playground.page.reload()
    await playground.has_begun_to_answer()
    await _goes_on(playground)
    await playground.stop.click()
    await playground.ended()
    await _shows_exactly_what_is_stored(playground)


async def test_a_lost_connection_is_resumed_during_an_answer_and_after_it(open_page: OpenPage, wire: Proxy) -> None:
    playground = await open_page(url=wire.url)
    await playground.begin(SLOW)
    await playground.has_begun_to_answer()
    await _lose_connection(playground, wire)
    wire.broken = False
    await expect(playground.page.get_by_text("Reconnecting")).to_be_hidden()
    await expect(playground.page.get_by_text("Local stack")).to_be_visible()
    await _goes_on(playground)
    await _lose_connection(playground, wire)
    async with playground.api() as api:
        await api.post(f"/sessions/{playground.session_id}/cancel")
        await api.get(f"/chat/{playground.session_id}/stream")  # follows the turn to its end
    wire.broken = False
    await playground.ended()
    await _shows_exactly_what_is_stored(playground)
    assert len(await playground.stored()) == 2


async def _lose_connection(playground: Playground, wire: Proxy) -> None:
    wire.broken = True
    wire.cut()
    await expect(playground.page.get_by_text("Reconnecting")).to_be_visible()
    await expect(playground.page.get_by_text("No connection")).to_be_visible()


async def test_a_question_of_unknown_fate_is_answered_once_an_unsent_one_editable(
    open_page: OpenPage, wire: Proxy
) -> None:
    playground = await open_page(url=wire.url)
    wire.deaf = True
    await playground.message.fill("Hello")
    await playground.message.press("Enter")
    await expect(playground.page.get_by_text("Reconnecting")).to_be_visible()
    wire.deaf = False
    await expect(playground.answer).to_contain_text("Hello!")
    await playground.ended()
    assert [message["role"] for message in await playground.stored()] == ["user", "assistant"]

    wire.broken = True
    wire.cut()
    await playground.message.fill("Are you there?")
    await playground.message.press("Enter")
    await expect(playground.alert).to_contain_text("The server cannot be reached")
    wire.broken = False
    await playground.button("Edit").click()
    await expect(playground.message).to_have_value("Are you there?")
    await expect(playground.questions).to_have_count(1)
    await playground.ask("Hello again")
    await expect(playground.answers).to_have_count(2)


async def test_a_failed_answer_is_said_can_be_retried_and_does_not_replace_a_good_one(playground: Playground) -> None:
    await playground.begin("[fail-once:400] Hello")  # every other attempt fails
    await expect(playground.alert).to_contain_text("The answer failed")
    [question, failed] = await playground.stored()
    assert failed["metadata"]["status"] == "failed"
    await playground.button("Retry").click()
    await expect(playground.answer).to_contain_text("Hello!")
    await expect(playground.alert).to_have_count(0)
    await expect(playground.questions).to_have_count(1)
    await playground.ended()
    [same, answer] = await playground.stored()
    assert (same["id"], answer["metadata"]["status"]) == (question["id"], "complete")

    await playground.button("Regenerate").click()
    await expect(playground.alert).to_contain_text("the previous one was kept")
    for state in ("live", "reloaded"):
        if state == "reloaded":
            await playground.page.reload()
        await expect(playground.answer).to_contain_text("Hello!")
        await expect(playground.answers).to_have_count(1)

    await playground.begin("[fail-once:400] [echo:After a reload]")
    await expect(playground.alert).to_contain_text("The answer failed")
    await playground.page.reload()
    await expect(playground.alert).to_contain_text("The answer failed")
    await playground.button("Retry").click()
    await expect(playground.alert).to_have_count(0)
    await playground.ended()
    await expect(playground.answers).to_have_count(2)
    await expect(playground.answer).to_contain_text("After a reload")


async def test_a_failed_answer_tells_what_the_log_knows(playground: Playground, page: Page) -> None:
    await playground.begin("[fail:401] Hello")
    await expect(playground.alert.locator("strong")).to_contain_text("The model's API rejected the key.")
    await expect(playground.alert).to_contain_text("check OPENAI_API_KEY")
    # One card says it, and nothing is offered for an answer that is none.
    await expect(playground.answer).to_have_text("")

    # What a function that cannot start leaves in the log, as text and never as markup.
    cause = {"function": "chat", "message": "", "cause": "<b>no module", "advice": "", "traceback": "File <i>agent.py"}

    async def tell(route: Route) -> None:
        await route.fulfill(json={"causes": [cause]})

    await page.route("**/local/causes*", tell)
    await playground.button("Retry").click()
    await expect(playground.alert.get_by_text("<b>no module")).to_be_visible()
    await playground.alert.get_by_text("Traceback").click()
    await expect(playground.alert.locator("pre")).to_have_text("File <i>agent.py")
    await playground.ask("Hello")
    await expect(playground.answers.first).to_contain_text("Failed")  # its words are no answer


async def test_what_another_tab_asks_shows_by_itself(open_page: OpenPage) -> None:
    first = await open_page()
    await first.ask("[echo:One]")
    second = await open_page(f"/#/chat/{first.session_id}")
    await expect(second.answers).to_have_count(1)
    await first.begin("[slow:40] [long:25]")
    await expect(second.questions).to_have_count(2)
    await expect(second.answers).to_have_count(2)
    await first.ended()
    await _shows_exactly_what_is_stored(second)
    await second.ended()
    async with second.page.expect_response(re.compile(r"/chat$")):
        await second.answer.get_by_role("button", name="Regenerate").click()
    await second.ended()
    await _shows_exactly_what_is_stored(first)
    await expect(first.answers).to_have_count(2)


async def test_a_question_that_is_refused_can_stop_the_other_answer_and_be_sent(open_page: OpenPage) -> None:
    first = await open_page()
    await first.ask("Hello")
    second = await open_page()
    await second.page.route("**/local/activity*", lambda route: route.abort())  # it does not learn of the other's turn
    await second.page.goto(f"{second.url}/#/chat/{first.session_id}")
    async with second.page.expect_response(re.compile(r"/stream$")):
        await second.page.reload()
    await expect(second.answers).to_have_count(1)
    await first.begin(STALLED)
    await second.message.fill("[echo:Me too]")
    await second.message.press("Enter")
    await expect(second.alert).to_contain_text("This session is still answering another message")
    await expect(second.alert).to_contain_text(re.compile(r"Try again in \d+ s|You can try again now"))
    await second.button("Stop that answer and send").click()
    await expect(second.alert).to_have_count(0)
    for tab in (second, first):
        await expect(tab.answers).to_have_count(3)
        await expect(tab.answers.nth(1).get_by_text("Stopped")).to_be_visible()
        await expect(tab.answer).to_contain_text("Me too")
        await tab.ended()


async def test_messages_written_during_an_answer_are_sent_after_it_or_taken_back(playground: Playground) -> None:
    waiting = playground.page.get_by_role("list", name="Queued messages").get_by_role("listitem")
    await playground.begin(STALLED)
    for text in ("[echo:Second]", "[echo:Third]", "Not this one"):
        await playground.message.fill(text)
        await playground.message.press("Enter")
        await expect(playground.message).to_have_value("")
    await expect(waiting).to_have_count(3)
    await expect(waiting.first).to_contain_text("Queued: sent after this answer")
    await waiting.nth(2).get_by_role("button", name="Remove this message").click()
    await expect(playground.message).to_have_value("Not this one")
    await playground.stop.click()
    # Whoever stops an answer decides what comes next.
    await expect(waiting.first).to_contain_text("Not sent")
    await waiting.first.get_by_role("button", name="Send now").click()
    await expect(playground.answers).to_have_count(3)
    await expect(playground.answer).to_contain_text("Third")
    await playground.ended()
    await expect(waiting).to_have_count(0)
    assert [text_of(message) for message in await playground.stored()][2::2] == ["[echo:Second]", "[echo:Third]"]


async def _goes_on(playground: Playground) -> None:
    """More of the answer arrives than is there now."""
    text = playground.answer.locator(".markdown")
    before = await text.inner_text()
    await expect(text).to_have_text(re.compile(f"{re.escape(before.strip())}.+"))


async def _shows_exactly_what_is_stored(playground: Playground) -> None:
    answer = (await playground.stored())[-1]
    await expect(playground.answer.locator(".markdown")).to_have_text(text_of(answer).strip())
