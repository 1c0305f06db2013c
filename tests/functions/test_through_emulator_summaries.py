"""Summaries: beside a turn, and from the queue. What the function does with a message is in `test_summary`."""

from tests.fixtures.calls import Json, User, eventually
from tests.fixtures.product import Product


def summaries(product: Product, user: User) -> list[Json]:
    return list(product.database.summaries.find({"session_id": user.key}).sort("end_turn_number"))


async def say(user: User, *texts: str) -> list[Json]:
    """Say something, turn after turn, and one thing more, which may still be answered again and is not summarized.

    Returns the last turn's events.
    """
    for text in texts:
        await user.ask(text)
    return await user.ask("What do you know of me?")


async def test_a_summary_that_is_due_is_made_without_being_asked_for(product: Product, user: User) -> None:
    await say(user, "I travel to Lisbon", "I like trams", "I eat no fish")
    # Beside the turn, or by the queue when the answer was complete first.
    await eventually(lambda: summaries(product, user))
    summary = (await user.call("GET", "/sessions/{}/summary")).json()
    assert (summary["startTurnNumber"], summary["endTurnNumber"]) == (1, 3)
    assert summary["content"]


async def test_a_turn_whose_summary_failed_queues_one_that_is_made_later(product: Product, user: User) -> None:
    first = f"I travel to {user.session} [summary:fail-once:400]"  # another run's failure is not this one's
    events = await say(user, first, "I like trams", "I eat no fish")
    assert events[-1]["data"] | {"status": "complete", "summarizedTo": 0} == events[-1]["data"]
    made = await eventually(lambda: summaries(product, user))
    assert (made[0]["start_turn_number"], made[-1]["end_turn_number"]) == (1, 3)
