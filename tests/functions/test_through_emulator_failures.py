"""Agents that block or take too long: what callers see, and that the next request works."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from local.aws import Aws
from local.model import OfflineModel
from local.template import Function
from tests.fixtures.calls import eventually
from tests.fixtures.functions import functions_with
from tests.fixtures.product import Product, running_product

AGENTS = Path(__file__).parent / "agents"

RunAgent = Callable[..., AbstractAsyncContextManager[Product]]


@pytest.fixture
def run_agent(mongod: str, cloud: Aws, model: OfflineModel, tmp_path: Path) -> RunAgent:
    """Runs the chat function with another agent: `run_agent("patient", timeout=4)`."""

    @asynccontextmanager
    async def run(agent: str, environment: dict[str, str] | None = None, **changes: Any) -> AsyncIterator[Product]:
        code = functions_with(tmp_path, agent=AGENTS / f"{agent}.py")

        def change(function: Function) -> Function:
            return function.having(code=code, **changes) if function.short_name == "chat" else function

        async with running_product(
            mongod, cloud, model, functions=("chat", "sessions"), change=change, environment=environment or {}
        ) as product:
            yield product

    return run


async def test_a_turn_out_of_time_ends_in_order_and_code_that_blocks_is_killed(run_agent: RunAgent) -> None:
    # The lease outlives a pause of a busy machine, and has run out when the process that blocks is killed.
    environment = {"LEASE_SECONDS": "5"}
    async with run_agent("patient", environment, timeout=10) as product:
        slow, blocked = product.user(), product.user()
        body = {"session_id": blocked.session, "query": "Hang"}
        events, cut = await asyncio.gather(
            slow.ask("[stall][echo:There is no time for the rest of this]"),
            blocked.call("POST", "/chat", json=body),
            return_exceptions=True,
        )
        assert isinstance(events, list)
        assert isinstance(cut, httpx.RemoteProtocolError | httpx.Response)
        abort, finish, data = events[-3:]
        assert (abort["type"], abort["reason"], finish["finishReason"]) == ("abort", "deadline", "other")
        assert data["data"]["status"] == product.stored(slow)[-1]["status"] == "cancelled"
        assert isinstance(cut, httpx.RemoteProtocolError) or cut.status_code == 502
        assert any("Task timed out after 10.00 seconds" in line for line in product.emulator.logs("chat"))
        assert (await blocked.cancel()).status_code == 202  # otherwise the next message would finish the turn first
        await eventually(lambda: not product.is_answering(blocked))
        again = await blocked.ask("Hello")
        assert again[-1]["data"]["status"] == "complete"
