"""Turns whose process died, and the run function that finds and finishes them."""

import json
from dataclasses import dataclass
from typing import Any

from omniagent import MongoSessionManager, SessionManager
from omniagent.lambda_runtime import event_loop
from omniagent.session.ids import new_id
from omniagent.session.live import LiveTurn
from tests.fixtures.jobs import CONTEXT, RecordedQueue, batch, failures
from tests.fixtures.live_turns import begin_turn, enqueue
from tests.fixtures.world import World

Json = dict[str, Any]


@dataclass(frozen=True)
class RunFunction:
    """The run function and its queue."""

    module: Any
    queue: RecordedQueue

    def invoke(self, event: Json, context: Any = CONTEXT) -> Json:
        result: Json = self.module.handler(event, context)
        return result

    def take(self, *jobs: Json | str, context: Any = CONTEXT, queue: str = "jobs") -> list[str]:
        """Deliver messages of a queue, and return the ids of those that failed: the first is `message-1`."""
        bodies = (job if isinstance(job, str) else json.dumps(job) for job in jobs)
        return failures(self.invoke(batch(*bodies, queue=queue), context))

    def sweep(self) -> Json:
        return self.invoke({"kind": "sweep"})

    def work(self) -> None:
        """Sweep, and do the jobs that it sends."""
        self.sweep()
        self.deliver()

    def deliver(self, kind: str = "run") -> None:
        """Do the jobs of this kind that are queued, one by one."""
        for job in self.queue.taken(kind):
            self.take(job)


def begin(world: World, text: str = "[echo:Finished after all.]", *, is_dead: bool = True) -> tuple[str, LiveTurn]:
    """Begin a turn that nobody runs. Returns the key of its session, and the turn."""

    async def begun() -> tuple[str, LiveTurn]:
        session = await world.application.session("user:ada", new_id())
        return session.key, await begin_turn(session, text, is_dead=is_dead)

    return event_loop.run(begun())


def queue_behind(world: World, key: str, text: str, message_id: str = "m2") -> None:
    """Put a message in line whose process is gone."""

    async def queued() -> None:
        await enqueue(await session_of(world, key), text, message_id)

    event_loop.run(queued())


async def session_of(world: World, key: str) -> SessionManager:
    return await MongoSessionManager.of_key(await world.application.store(), key, settings=world.application.settings)


def a_run(key: str, **more: Any) -> Json:
    return {"kind": "run", "session_id": key, **more}


def answer_of(world: World, key: str, number: int = 1) -> Json | None:
    return world.database.messages.find_one({"session_id": key, "role": "assistant", "turn_number": number})


def stored_answer(world: World, key: str, number: int = 1) -> Json:
    answer = answer_of(world, key, number)
    assert answer is not None
    return answer
