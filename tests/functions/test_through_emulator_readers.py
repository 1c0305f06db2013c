"""Readers: many at once, slow ones, and those that leave."""

from tests.fixtures.calls import User, eventually, kinds
from tests.fixtures.product import Product


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
