"""The chores of a deployment."""

from types import SimpleNamespace
from typing import Any

import pytest

from omniagent import Agent
from omniagent.app.housekeeping import Housekeeping
from omniagent.errors import ModelUnavailable, NotFound, StorageUnavailable
from omniagent.session.addresses import SessionAddress
from omniagent.session.manager import public_session_id
from omniagent.settings import Settings


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


async def test_a_model_server_that_fails_is_logged_and_counts_nothing(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async def shutdown_date() -> None:
        raise ModelUnavailable("down")

    providers = SimpleNamespace(get=lambda _: SimpleNamespace(shutdown_date=shutdown_date))
    project = SimpleNamespace(agent=Agent("shop", ""))
    application: Any = SimpleNamespace(providers=providers, project=project, settings=Settings())
    assert await Housekeeping(application).check_model_ends() == []
    assert [record.message for record in caplog.records] == ["model ends not checked"]
    assert "ModelsEndingSoon" not in capsys.readouterr().out
