"""Stop: one process sets the flag, the process that streams ends its turn. Every other stop is in `tests/runner`."""

from tests.fixtures.calls import User, kinds
from tests.fixtures.product import Product
from tests.fixtures.stream import check_order

STOPPED = ["text-end", "finish-step", "abort", "finish", "data-session"]


async def test_a_turn_stopped_by_another_process_keeps_what_it_has_and_ends_in_order(
    product: Product, user: User
) -> None:
    left = product.model.disconnects
    async with user.asking("[stall][echo:What was said before the silence is kept]") as answer:
        first = await answer.until("text-delta")
        [streaming] = product.emulator.running("chat")
        stop = await user.cancel()
        rest = await answer.rest()
    assert streaming.pid not in {process.pid for process in product.emulator.processes("sessions")}
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
    # The session answers the next message.
    events = await user.ask("And now?")
    check_order(events)
    assert events[-1]["data"]["status"] == "complete"
    assert [message["turn_number"] for message in product.stored(user)] == [1, 1, 2, 2]
