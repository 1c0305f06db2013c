"""The tests themselves: none can reach a real model."""

import asyncio
import socket

import pytest

from omniagent.ai.providers.llm_provider import ModelRequest
from omniagent.messages import ChatMessage
from omniagent.providers import get_llm_provider
from tests.fixtures.guard import LeftTheMachine

ELSEWHERE = ("192.0.2.1", 443)  # an address that is kept for documentation


async def test_no_connection_leaves_the_machine() -> None:
    with pytest.raises(LeftTheMachine), socket.socket() as sock:
        sock.connect(ELSEWHERE)
    with pytest.raises(LeftTheMachine):
        await asyncio.open_connection(*ELSEWHERE)


async def test_a_provider_that_would_leave_the_machine_is_stopped() -> None:
    provider = get_llm_provider("gpt-6-luna", api_key="unused", base_url="http://192.0.2.1/v1", max_retries=0)
    with pytest.raises(LeftTheMachine):
        await anext(provider.stream(ModelRequest("", [ChatMessage.user("Hello?")])))
    await provider.aclose()
