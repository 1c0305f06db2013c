"""Readers: many at once, slow ones, and those that leave."""

import asyncio

from local.aws import Aws
from local.model import OfflineModel
from tests.fixtures.calls import User, eventually, kinds
from tests.fixtures.product import Product, running_product


async def test_a_reader_that_leaves_changes_nothing(product: Product, user: User) -> None:
    with product.wire.held():
        async with user.asking("[slow:1][echo:Nobody listens, and it is said all the same]") as answer:
            await answer.until("start")
    await product.emulator.settled()
    stored = product.stored(user)[-1]
    assert stored["status"] == "complete"
    assert stored["parts"][-1]["text"] == "Nobody listens, and it is said all the same"


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


async def test_streams_run_at_once_each_in_a_process_of_its_own(product: Product) -> None:
    users = [product.user(), product.user()]
    with product.wire.held() as gate:
        turns = [
            asyncio.create_task(user.ask(f"[echo:The answer of number {number}]"))
            for number, user in enumerate(users, 1)
        ]
        await gate.until_waiting(len(users))
        await eventually(lambda: len(product.emulator.running("chat")) == len(users))
        gate.open()
        answers = await asyncio.gather(*turns)
    for number, events in enumerate(answers, 1):
        assert kinds(events)[-2:] == ["finish", "data-session"]
        text = "".join(event["delta"] for event in events if event["type"] == "text-delta")
        assert text == f"The answer of number {number}"


async def test_a_queued_message_waits_in_a_process_of_its_own_and_is_answered_next(
    product: Product, user: User
) -> None:
    with product.wire.held() as gate:
        async with user.asking("[echo:The first answer]") as first:
            await gate.until_waiting(1)
            async with user.asking("[echo:The second answer]", busy="queue") as second:
                assert product.stored(user) == [], "its response has begun, and the first answer is not written"
                gate.open()
                assert kinds(await first.rest())[-2:] == ["finish", "data-session"]
                assert kinds(await second.rest())[-2:] == ["finish", "data-session"]
    assert (first.text, second.text) == ("The first answer", "The second answer")
    stored = [(message["turn_number"], message["role"], message["status"]) for message in product.stored(user)]
    assert stored == [(n, role, "complete") for n in (1, 2) for role in ("user", "assistant")]
