"""The whole product as one object."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from local.aws import Aws
from local.background import background_stack
from local.processes import ServiceError
from local.stack import Stack, StackOptions, local_stack


def test_the_callers_settings_reach_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_STEPS", "3")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("AUTH_MODE", "jwt")
    options = StackOptions.from_environment(environment={"TICK_SECONDS": "0.2", "MAX_STEPS": "4"})
    assert (options.openai_api_key, options.offline) == ("sk-1", False)
    assert (options.environment["MAX_STEPS"], options.environment["TICK_SECONDS"]) == ("3", "0.2")
    assert "sk-1" not in options.environment.values()
    assert "AUTH_MODE" not in options.environment


async def _check_until_it_raises(running: Stack) -> None:
    while True:
        running.check()
        await asyncio.sleep(0)


async def test_a_service_that_ends_by_itself_is_said_in_one_sentence(mongod: str, aws: Aws) -> None:
    async with local_stack(StackOptions(mongodb_uri=mongod, aws=aws, auth="none")) as running:
        running.check()
        assert running.model is not None
        os.kill(running.model.pid, signal.SIGKILL)
        said = "^The offline model ended unexpectedly with signal SIGKILL; its log is .+$"
        with pytest.raises(ServiceError, match=said):
            await _check_until_it_raises(running)


def test_a_stack_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path, aws: Aws) -> None:
    (tmp_path / "mongod").write_text("no folder")
    options = StackOptions(folder=tmp_path, aws=aws)
    with (
        pytest.raises(ServiceError, match=r"^The data folder .+ cannot be made: File exists\.$"),
        background_stack(options),
    ):
        pass
