"""Readers: many at once, slow ones, and those that leave."""

import asyncio
from collections.abc import Callable, Mapping

from local.aws import Aws
from local.emulator.environment import State
from local.emulator.launch import Launched, Launcher
from local.emulator.sandbox import Sandbox
from local.model import OfflineModel
from local.run import WARM_UP
from tests.fixtures.calls import User, eventually, kinds
from tests.fixtures.product import Product, running_product
from tests.fixtures.zygote import forks


class FirstTwo:
    """Starts two processes of a function. Every further one is starting for ever."""

    def __init__(self, sandbox: Sandbox, variables: Mapping[str, str], on_line: Callable[[str], None]) -> None:
        self._launcher: Launcher = forks()(sandbox, variables, on_line)
        self._left = 2

    async def launch(self, runtime_api: str) -> Launched:
        self._left -= 1
        if self._left < 0:
            await asyncio.Event().wait()
        return await self._launcher.launch(runtime_api)

    async def close(self) -> None:
        await self._launcher.close()


async def test_a_page_that_is_reloaded_again_and_again_is_served_by_warm_processes(
    mongod: str, cloud: Aws, model: OfflineModel
) -> None:
    emulator = {"spare": {"chat": WARM_UP}, "launcher": FirstTwo}
    async with running_product(mongod, cloud, model, functions=("chat", "sessions"), emulator=emulator) as product:
        user = product.user()
        async with user.asking("[slow:100][long:10000]") as answer:
            await answer.until("text-delta")
            served = await eventually(lambda: _served(product)[1:])
            assert len(served) == 1, "the spare process has had its first request before the page's"
            spare = await eventually(
                lambda: [each for each in product.emulator.processes("chat") if each.state is State.IDLE]
            )
        for _ in range(3):
            async with user.resuming() as reader:
                await reader.until("text-delta")
                running = {process.pid for process in product.emulator.running("chat")}
                assert spare[0].pid in running, "the last reader left, and freed it"
                assert len(running) == 2
        assert product.is_answering(user), "a turn goes on without its reader"
        await user.cancel()
        await product.emulator.settled()
        assert product.stored(user)[-1]["status"] == "cancelled"
        assert not [line for line in product.emulator.logs("chat") if '"ERROR"' in line]


def _served(product: Product) -> list[str]:
    return [line for line in product.emulator.logs("chat") if line.startswith("START ")]


async def test_a_slow_reader_neither_holds_the_turn_nor_loses_a_word(product: Product, user: User) -> None:
    async with user.asking("[burst:20000]") as answer:
        await answer.until("text-delta")
        # The turn ends and the session takes the next message, though most of the answer is not read yet.
        await eventually(lambda: not product.is_answering(user))
        stored = product.stored(user)[-1]
        await user.ask("Hello")
        events = await answer.rest()
    assert kinds(events)[-2:] == ["finish", "data-session"]
    assert answer.text == stored["parts"][-1]["text"]
