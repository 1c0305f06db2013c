"""`Project`: mistakes are raised when they are made, and the environment wins over its settings."""

from typing import Any

import pytest

from omniagent import Agent, DocumentModels, Project
from omniagent.ai.providers.llm_provider import LLMProvider
from omniagent.errors import ConfigurationError

AGENT = Agent("helper", "Be helpful.")


async def forget_session(session_id: str) -> None: ...


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"agent": "helper"}, "agent must be an instance of Agent, not 'helper'"),
        ({"agent": Agent}, "agent must be an instance of Agent, not <class"),
        ({"agent": None}, r"Project needs one of the two: agent=Agent\(…\), or agents="),
        ({"agents": {"a": AGENT}}, r"Project needs one of the two: agent=Agent\(…\), or agents="),
        ({"agent": None, "agents": {"my agent": AGENT}}, "agents: the name 'my agent' may hold only letters"),
        ({"choose_agent": "a"}, r"choose_agent must be a function of \(user, category, name\), not 'a'"),
        ({"documents": DocumentModels}, r"documents must be DocumentModels\(…\), not <class"),
        ({"providers": [LLMProvider]}, "providers must be a valid dictionary"),
        ({"providers": {"acme": "acme"}}, "'acme' must be an LLMProvider, or a function"),
        ({"providers": {"acme": Agent}}, "not the class Agent"),
        ({"providers": {"acme": lambda: None}}, "'acme' is called with the model's name, and does not take it"),
        ({"on_erase": print}, "on_erase must be an async function"),
        ({"on_erase": forget_session}, r"on_erase must take \(user, session_id\)"),
        ({"approvers": True}, r"approvers must be a function of \(approver, request\), not True"),
        ({"settings": {"max_stepps": 3}}, "unknown setting 'max_stepps'; known settings: model, "),
        ({"settings": {"max_steps": "three"}}, "max_steps must be a number, not 'three'"),
    ],
)
def test_a_mistake_is_named_when_the_project_is_made(mistake: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Project(**{"agent": AGENT, **mistake})


def test_providers_may_be_classes_functions_and_instances() -> None:
    class Acme(LLMProvider):
        stream = generate = None  # type: ignore[assignment]  # never called

    Project(agent=AGENT, providers={"a": Acme, "b": lambda model, **_: Acme(model), "c": Acme("one")})


def test_the_environment_wins_over_the_projects_settings() -> None:
    project = Project(agent=AGENT, settings={"max_steps": 3, "tick_seconds": 2, "docs_enabled": False})
    settings = project.read_settings({"MAX_STEPS": "5", "TICK_SECONDS": ""})
    assert (settings.max_steps, settings.tick_seconds, settings.docs_enabled) == (5, 2.0, False)
