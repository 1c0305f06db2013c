"""Readers: many at once, slow ones, and those that leave."""

from local.aws import Aws
from local.model import OfflineModel
from tests.fixtures.calls import User, eventually, kinds
from tests.fixtures.product import Product, running_product


async def test_a_reader_that_left_frees_its_process_where_one_is_spare(
    mongod: str, cloud: Aws, model: OfflineModel
) -> None:
    options = {"functions": ("chat", "sessions"), "emulator": {"spare": ["chat"]}}
    async with running_product(mongod, cloud, model, **options) as product:
        user = product.user()
        async with user.asking("[slow:100][long:10000]") as answer:
            await answer.until("text-delta")
            async with user.resuming() as reader:
                await reader.until("text-delta")
                assert len(product.emulator.running("chat")) == 2
            await eventually(lambda: len(product.emulator.running("chat")) == 1)
            await answer.until("text-delta")
        assert product.is_answering(user), "a turn goes on without its reader"
        await user.cancel()
        await product.emulator.settled()
        assert product.stored(user)[-1]["status"] == "cancelled"
        assert not [line for line in product.emulator.logs("chat") if '"ERROR"' in line]


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
