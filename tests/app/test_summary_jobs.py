"""The jobs of the summary function."""

from types import SimpleNamespace
from typing import Any

import pytest

from omniagent import Agent, Project
from omniagent.app.summary_jobs import SummaryJobs
from omniagent.errors import ModelUnavailable
from omniagent.settings import Settings


async def test_a_model_server_that_fails_is_logged_and_counts_nothing(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async def shutdown_date() -> None:
        raise ModelUnavailable("down")

    providers = SimpleNamespace(get=lambda _: SimpleNamespace(shutdown_date=shutdown_date))
    project = Project(agent=Agent("shop", ""))
    application: Any = SimpleNamespace(providers=providers, project=project, settings=Settings())
    assert (await SummaryJobs(application).invoke({"model_ends": True}, 0))["ending"] == []
    assert [record.message for record in caplog.records] == ["model ends not checked"]
    assert "ModelsEndingSoon" not in capsys.readouterr().out
