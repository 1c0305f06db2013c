"""The AI SDK's own client against everything that `make run` starts: real functions, real processes, one origin."""

import asyncio
import uuid
from typing import Any

import httpx

from local.background import BackgroundStack
from local.emulator import Emulator
from tests.client.conftest import SdkClient, without_places

Json = dict[str, Any]


async def stored(stack: BackgroundStack, session_id: str) -> list[Json]:
    """The conversation as a page would load it."""
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=60) as http:
        response = await http.get(f"/sessions/{session_id}/messages")
    messages: list[Json] = response.raise_for_status().json()["messages"]
    return without_places(messages)


async def redeploy(emulator: Emulator) -> None:
    """End every process: the next requests start new ones."""
    ended = {process.pid for process in emulator.processes()}
    for pid in ended:
        emulator.kill(pid)
    while ended & {process.pid for process in emulator.processes()}:  # noqa: ASYNC110 - the emulator announces no end
        await asyncio.sleep(0.02)


async def test_an_approval_is_answered_by_another_client_after_a_redeploy(
    sdk: SdkClient, waiting_stack: BackgroundStack
) -> None:
    stack, session_id = waiting_stack, uuid.uuid4().hex
    text = '[tool:refund {"order": "42"}] [then] [echo:Done.]'
    await sdk.drive(stack.url, session_id, {"do": "send", "text": text}, answers=True)
    emulator = stack.stack.emulator
    stack.wait_for(emulator.settled())
    before = {process.pid for process in emulator.processes()}
    stack.wait_for(redeploy(emulator))
    waiting = await stored(stack, session_id)
    [request] = [part["approval"]["id"] for part in waiting[-1]["parts"] if "approval" in part]
    approve = {"do": "decide", "response": {"id": request, "approved": True}, "sends": True}
    seen = await sdk.drive(stack.url, session_id, approve, messages=waiting, version=7, answers=True)
    assert (seen["status"], seen["error"]) == ("ready", None)
    assert not before & {process.pid for process in emulator.processes()}
    assert seen["messages"] == await stored(stack, session_id)
    assert seen["messages"][-1]["metadata"]["status"] == "complete"
