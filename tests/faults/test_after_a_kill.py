"""Who comes after a kill: the same message again, somebody who repairs, a reader after an hour."""

import uuid

from tests.faults.house import House

SHORT = "[slow:20][long:60]"


async def test_same_message_again_finishes_the_same_turn(house: House) -> None:
    client = house.client()
    message_id = uuid.uuid4().hex
    exchange = client.ask(SHORT, message_id)
    await exchange.seen("text-delta", 20)
    house.kill(client)
    dead = await exchange.end()
    again = await client.say(SHORT, message_id)

    assert (again.finished_as, again.turn_number, again.answer_id) == ("complete", dead.turn_number, dead.answer_id)
    assert again.text.startswith(dead.text)
    assert len(house.check(client).questions) == 1
