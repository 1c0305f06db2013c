"""The chores of a deployment."""

from types import SimpleNamespace
from typing import Any

from omniagent.app.housekeeping import Housekeeping
from omniagent.errors import NotFound, StorageUnavailable
from omniagent.session.addresses import SessionAddress
from omniagent.session.manager import public_session_id


async def test_a_session_that_cannot_be_closed_does_not_keep_expired_turns_of_others_open() -> None:
    outcomes: dict[str, Exception | None] = {"broken": StorageUnavailable(), "deleted": NotFound(), "expired": None}
    settled: list[str] = []

    async def expired(limit: int) -> list[SessionAddress]:
        return [SessionAddress("ada", session_id) for session_id in outcomes]

    async def runner_of_key(key: str) -> Any:
        async def settle() -> None:
            settled.append(public_session_id(key))
            if (error := outcomes[settled[-1]]) is not None:
                raise error

        return SimpleNamespace(settle=settle)

    async def store() -> Any:
        return SimpleNamespace(expired=expired)

    services: Any = SimpleNamespace(store=store, runner_of_key=runner_of_key)
    assert await Housekeeping(services).close_expired(time_left=lambda: 60.0) == 1
    assert settled == ["broken", "deleted", "expired"]
