"""The chores of a deployment."""

from types import SimpleNamespace
from typing import Any

from omniagent.aws.housekeeping import Housekeeping
from omniagent.errors import NotFound, StorageUnavailable


async def test_a_session_that_cannot_be_closed_does_not_keep_expired_turns_of_others_open() -> None:
    outcomes: dict[str, Exception | None] = {"broken": StorageUnavailable(), "deleted": NotFound(), "expired": None}
    settled: list[str] = []

    async def expired_sessions(limit: int) -> list[str]:
        return list(outcomes)

    async def runner_of_key(key: str) -> Any:
        async def settle() -> None:
            settled.append(key)
            if (error := outcomes[key]) is not None:
                raise error

        return SimpleNamespace(settle=settle)

    async def catalog() -> Any:
        return SimpleNamespace(expired_sessions=expired_sessions)

    services: Any = SimpleNamespace(catalog=catalog, runner_of_key=runner_of_key)
    assert await Housekeeping(services).close_expired(time_left=lambda: 60.0) == 1
    assert settled == ["broken", "deleted", "expired"]
