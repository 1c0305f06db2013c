"""Clients that go on in the middle of a stream: WorkflowChatTransport by an index, EventSource by its last event."""

import asyncio

import httpx
import pytest

from omniagent.protocol import sse
from omniagent.session.ids import new_id
from tests.client.conftest import RESUME, THINK, Page, SdkClient, Server, send, slow_agent
from tests.fixtures.conversation import Conversation


@pytest.fixture
def page(sdk: SdkClient, server: Server) -> Page:
    return Page(sdk, server, 7)


async def test_workflow_transport_reads_an_unmodified_page(sdk: SdkClient, page: Page) -> None:
    """It names no chat, so that the session is a new one."""
    page.serve(session_id=None)
    hello, url = send("[echo:Hello.]"), page.server.url
    seen = await sdk.drive(url, new_id(), hello, version=7, workflow={"unmodified": True})
    assert (seen["status"], seen["error"]) == ("ready", None)
    assert seen["messages"][-1]["parts"][-1]["text"] == "Hello."


@pytest.mark.parametrize("event", ["text-delta", "tool-input-available", "finish-step"])
async def test_workflow_transport_doubles_nothing_after_a_cut(page: Page, event: str) -> None:
    helper, released = slow_agent()
    page.serve(agent=helper)
    driving = asyncio.create_task(page.drive(send(THINK, when=event, then="cut"), workflow={}))
    if event != "finish-step":
        await page.server.joined.acquire()
    released.set()
    seen = await driving
    assert (seen["status"], seen["error"], seen["messages"]) == ("ready", None, page.stored)
    [query] = page.server.resumes
    assert int(query.removeprefix("startIndex=")) > (1 if event != "finish-step" else -1)


async def test_a_page_is_sent_only_the_end_of_an_answer_that_it_asks_for(page: Page) -> None:
    [question, answer] = (await page.drive(send("[echo:one two three four]")))["messages"]
    tail = await page.drive(RESUME, messages=[question], workflow={"startIndex": -4})
    assert (page.server.resumes, tail["status"], tail["error"]) == (["startIndex=-4"], "ready", None)
    assert tail["messages"][-1]["metadata"] == answer["metadata"]


async def events_of(server: Server, session_id: str, last: str = "", limit: int = 10_000) -> tuple[list[str], str, int]:
    """Return the kinds of event, the last id and the status, as an EventSource that stops after `limit` events."""
    kinds: list[str] = []
    headers = {"accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
    async with (
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
        http.stream("GET", f"{server.url}/chat/{session_id}/stream", headers=headers) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                kinds += [event["type"] for event in sse.decode(line.encode())]
            last = line.removeprefix("id: ") if line.startswith("id: ") else last
            if len(kinds) >= limit and line.startswith("id: "):
                break
    return kinds, last, response.status_code


async def test_an_event_source_goes_on_after_its_last_event_and_ends(
    server: Server, conversation: Conversation
) -> None:
    helper, released = slow_agent()
    asked = server.conversation = conversation.but(agent=helper)
    stream = await asked.start(THINK)
    first, last, _ = await events_of(server, asked.session_id, limit=3)
    released.set()
    rest, end, _ = await events_of(server, asked.session_id, last)
    live = [event.type async for event in stream]
    assert [*first, *rest] == live
    assert await events_of(server, asked.session_id, end) == ([], end, 204)
    replayed, end, status = await events_of(server, asked.session_id)
    assert (replayed[-2:], status) == (["finish", "data-session"], 200)
    assert await events_of(server, asked.session_id, end) == ([], end, 204)


async def test_an_index_that_is_no_number_is_refused(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
        response = await http.get("/chat/s1/stream?startIndex=two")
    assert (response.status_code, response.json()["detail"]) == (422, "query.startIndex: must be a whole number.")
