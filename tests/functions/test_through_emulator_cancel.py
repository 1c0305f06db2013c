"""Stop: one process sets the flag, the process that streams ends its turn."""

from tests.fixtures.calls import User, kinds
from tests.fixtures.problems import check_problem
from tests.fixtures.product import Product
from tests.fixtures.stream import check_order

STOPPED = ["text-end", "finish-step", "abort", "finish", "data-session"]


async def test_a_stopped_turn_keeps_what_it_has_and_ends_in_order(product: Product, user: User) -> None:
    left = product.model.disconnects
    async with user.asking("[stall][echo:What was said before the silence is kept]") as answer:
        first = await answer.until("text-delta")
        stop = await user.cancel()
        rest = await answer.rest()
    assert (stop.status_code, stop.json()) == (202, {"sessionId": user.session, "accepted": "cancel"})
    assert kinds(rest)[-5:] == STOPPED
    abort, finish, data = rest[-3:]
    assert (abort["reason"], finish["finishReason"], data["data"]["status"]) == ("cancelled", "other", "cancelled")
    assert answer.done
    # The model call itself is closed: nobody pays for the rest.
    await product.model.until(lambda journal: journal.disconnects == left + 1)
    stored = product.stored(user)[-1]
    assert stored["status"] == "cancelled"
    assert "".join(part["text"] for part in stored["parts"] if part["type"] == "text") == answer.text
    assert answer.text.startswith(first["delta"])
    assert (await user.messages())[-1]["metadata"]["status"] == "cancelled"


async def test_the_stop_comes_from_another_process(product: Product, user: User) -> None:
    async with user.asking("[stall] Hello") as answer:
        await answer.until("text-delta")
        [streaming] = product.emulator.running("chat")
        await user.cancel()
        await answer.rest()
    assert streaming.pid not in {process.pid for process in product.emulator.processes("sessions")}


async def test_a_turn_is_stopped_before_the_model_has_said_anything(product: Product, user: User) -> None:
    async with user.asking("[stall:first] Hello") as answer:
        await answer.until("start")
        assert (await user.cancel()).status_code == 202
        events = await answer.rest()
    assert kinds(events)[-3:] == ["abort", "finish", "data-session"]
    assert product.stored(user)[-1]["status"] == "cancelled"


async def test_after_a_stop_the_session_answers_the_next_message(product: Product, user: User) -> None:
    async with user.asking("[stall] Hello") as answer:
        await answer.until("text-delta")
        await user.cancel()
        await answer.rest()
    events = await user.ask("And now?")
    check_order(events)
    assert events[-1]["data"]["status"] == "complete"
    assert [message["turn_number"] for message in product.stored(user)] == [1, 1, 2, 2]


async def test_a_session_that_answers_nothing_cannot_be_stopped(user: User) -> None:
    check_problem(await user.cancel(), 404, "not_found")
    await user.ask("Hello")
    check_problem(await user.cancel(), 409, "no_running_turn")


async def test_nobody_stops_another_users_turn(product: Product, user: User) -> None:
    stranger = User(product.emulator, product.http, session=user.session)
    with product.wire.held() as gate:
        async with user.asking("[echo:Still here]") as answer:
            check_problem(await stranger.cancel(), 404, "not_found")
            gate.open()
            events = await answer.rest()
    assert events[-1]["data"]["status"] == "complete"
    assert answer.text == "Still here"


async def test_a_reader_who_resumed_sees_the_stop_too(product: Product, user: User) -> None:
    async with user.asking("[stall][echo:One stop ends it for both of them]") as first:
        await first.until("text-delta")
        async with user.resuming() as second:
            await second.until("text-delta")
            await user.cancel()
            await first.rest()
            assert kinds(await second.rest())[-3:] == ["abort", "finish", "data-session"]
    assert second.text == first.text
