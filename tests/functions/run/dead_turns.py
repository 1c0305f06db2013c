"""Turns whose process died, and the functions that find and finish them."""

import json
from dataclasses import dataclass
from typing import Any

from omniagent.lambda_runtime import event_loop
from omniagent.messages import TextPart
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.session.manager import TurnStart, new_id
from omniagent.turns.lease import Claim
from tests.fixtures.jobs import CONTEXT, RecordedRuns, RecordedWatches, batch
from tests.fixtures.world import World

Json = dict[str, Any]
LEASE_SECONDS = 30.0


@dataclass(frozen=True)
class Functions:
    """The watch and the run function, and what is sent to them."""

    watch: Any
    run: Any
    watches: RecordedWatches
    runs: RecordedRuns

    def check(self, key: str, turn_id: str, **more: Any) -> None:
        """Deliver a watch, and to the run function what it leads to."""
        self.watch.handler(batch(a_watch(key, turn_id, **more)), CONTEXT)
        for message in self.runs.taken():
            self.run.handler(batch(json.dumps(message)), CONTEXT)


def begin(world: World, text: str = "[echo:Finished after all.]") -> tuple[str, str]:
    """Begin a turn that nobody runs. Returns the key of its session, and its id."""

    async def begun() -> tuple[str, str]:
        session = await world.application.session("user:ada", new_id())
        turn_id = new_id()
        await session.admit(5, turn_id)
        await world.application.registry.claim(Claim(session.key, turn_id, "m1"))
        await session.begin_turn(TurnStart(turn_id, 1, "m1", [TextPart(text=text)]))
        return session.key, turn_id

    return event_loop.run(begun())


def begin_again(world: World, key: str, turn_id: str, attempt: int) -> None:
    """Begin to continue a turn."""

    async def begun() -> None:
        session = await MongoSessionManager.of_key(
            await world.application.store(), key, settings=world.application.settings
        )
        await session.begin_turn(TurnStart(turn_id, 1, "m1", [TextPart(text="")], attempt=attempt))

    event_loop.run(begun())


def a_watch(key: str, turn_id: str, **more: Any) -> str:
    return json.dumps({"session_id": key, "turn_id": turn_id, **more})


def a_takeover(key: str, turn_id: str, **more: Any) -> str:
    return json.dumps({"kind": "takeover", "session_id": key, "turn_id": turn_id, "watched": True, **more})


def answer_of(world: World, key: str, number: int = 1) -> Json | None:
    return world.database.messages.find_one({"session_id": key, "role": "assistant", "turn_number": number})


def stored_answer(world: World, key: str, number: int = 1) -> Json:
    answer = answer_of(world, key, number)
    assert answer is not None
    return answer
