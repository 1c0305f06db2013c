"""Summaries from the queue. What the function does with a message is in `test_summary`."""

from tests.fixtures.calls import Json, User, eventually
from tests.fixtures.product import Product


def summaries(product: Product, user: User) -> list[Json]:
    return list(product.database.summaries.find({"session_id": user.key}).sort("end_turn_number"))


async def test_a_turn_whose_summary_failed_queues_one_that_is_made_later(product: Product, user: User) -> None:
    # Another run's failure is not this one's. The last message may be answered again, and is not summarized.
    first = f"I travel to {user.session} [summary:fail-once:400]"
    for text in (first, "I like trams", "I eat no fish"):
        await user.ask(text)
    events = await user.ask("What do you know of me?")
    assert events[-1]["data"] | {"status": "complete", "summarizedTo": 0} == events[-1]["data"]
    made = await eventually(lambda: summaries(product, user))
    assert (made[0]["start_turn_number"], made[-1]["end_turn_number"]) == (1, 3)
