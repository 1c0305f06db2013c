"""The environment as one object: every variable, every mistake."""

from dataclasses import fields, replace
from typing import Any

import pytest

from omniagent import Agent, InMemorySessionManager, Runner, Settings, tool
from omniagent.errors import ConfigurationError
from omniagent.settings import env_name
from omniagent.testing import InMemoryStore, ScriptedModel, ToolCall


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_env({}) == Settings()
    for nothing in ("", "  "):
        assert Settings.from_env({env_name(field): nothing for field in fields(Settings)}) == Settings()


async def test_a_session_without_settings_is_run_with_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "nothing"

    monkeypatch.setenv("MAX_STEPS", "2")
    model = ScriptedModel(default=ToolCall("look"))
    session = InMemorySessionManager("ada", store=InMemoryStore())
    await Runner(Agent("helper", "", [look]), session, provider=model).run("Look!")
    assert len(model.requests) == 2


def test_every_kind_of_value_is_read() -> None:
    settings = Settings.from_env(
        {
            "OMNIAGENT_MODEL": " gpt-6-sol ",
            "OPENAI_API": " chat",
            "MAX_STEPS": "5",
            "TICK_SECONDS": "0.25",
            "DOCS_ENABLED": "off",
            "TRACE_CONTENT": "TRUE",
            "SOMETHING_ELSE": "ignored",
        }
    )
    assert (settings.model, settings.openai_api, settings.max_steps) == ("gpt-6-sol", "chat", 5)
    assert (settings.tick_seconds, settings.docs_enabled, settings.trace_content) == (0.25, False, True)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OPENAI_API", "soap", "OPENAI_API must be one of responses, chat, not 'soap'"),
        ("AUTH_MODE", "maybe", "AUTH_MODE must be one of iam, jwt, none, not 'maybe'"),
        ("DOCS_ENABLED", "perhaps", "DOCS_ENABLED must be true or false, not 'perhaps'"),
        ("MAX_STEPS", "many", "MAX_STEPS must be a number, not 'many'"),
        ("MAX_STEPS", "1.5", "MAX_STEPS must be a number, not '1.5'"),
        ("MAX_STEPS", "0", "MAX_STEPS must be at least 1, not '0'"),
        ("TICK_SECONDS", "0", "TICK_SECONDS must be at least 0.001, not '0'"),
        ("TICK_SECONDS", "nan", "TICK_SECONDS must be a finite number, not 'nan'"),
        ("TICK_SECONDS", "inf", "TICK_SECONDS must be a finite number, not 'inf'"),
        ("LEASE_SECONDS", "-1", "LEASE_SECONDS must be at least 0.1, not '-1'"),
        ("LEASE_SECONDS", "0.9", "TICK_SECONDS (0.5) must be at most half of LEASE_SECONDS (0.9)"),
        ("REQUEST_EXPIRY_DAYS", "1e300", "REQUEST_EXPIRY_DAYS must be at most 36500, not '1e300'"),
        ("OMNIAGENT_MODEL", "gpt-6-sol,,", "OMNIAGENT_MODEL names an empty model: 'gpt-6-sol,,'"),
        ("MONGODB_DATABASE", "a b/c", "MONGODB_DATABASE is not a name MongoDB accepts: 'a b/c'"),
    ],
)
def test_a_value_that_cannot_be_read_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings.from_env({name: value})
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"max_steps": 0}, "max_steps must be at least 1, not '0'"),
        ({"max_steps": None}, "max_steps must be of type int, not None"),
        ({"max_steps": True}, "max_steps must be of type int, not True"),
        ({"docs_enabled": 1}, "docs_enabled must be of type bool, not 1"),
        ({"lease_seconds": 0.9}, "TICK_SECONDS (0.5) must be at most half of LEASE_SECONDS (0.9)"),
        ({"model": ["gpt-6-sol"]}, "model must be of type str, not ['gpt-6-sol']"),
        ({"mongodb_database": " "}, "MONGODB_DATABASE is not a name MongoDB accepts: ''"),
    ],
)
def test_a_value_given_in_code_is_checked_like_one_of_the_environment(value: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings(**value)
    assert str(refused.value) == said
    with pytest.raises(ConfigurationError):
        replace(Settings(), **value)


def test_a_value_given_in_code_is_converted_like_one_of_the_environment() -> None:
    settings = Settings(max_steps="5", lease_seconds=30, model=" gpt-6-sol ")  # type: ignore[arg-type]  # the point
    assert settings == Settings.from_env({"MAX_STEPS": "5", "LEASE_SECONDS": "30", "OMNIAGENT_MODEL": "gpt-6-sol"})
    assert isinstance(settings.lease_seconds, float)


def test_no_secret_is_shown() -> None:
    settings = Settings(
        openai_api_key="sk-secret",
        mongodb_uri="mongodb://ada:secret@db",
        otel_exporter_otlp_headers="api-key=sk-secret",
    )
    assert "secret@" not in repr(settings)
    assert "sk-secret" not in repr(settings)


def test_every_setting_has_a_variable_of_its_own_and_says_what_it_does() -> None:
    names = [env_name(field) for field in fields(Settings)]
    assert len(set(names)) == len(names)
    assert all(name == name.upper() for name in names)
    assert all(field.metadata["doc"].endswith(".") for field in fields(Settings))


def test_every_number_has_a_lower_limit() -> None:
    numbers = [field for field in fields(Settings) if field.type in (int, float)]
    assert numbers
    assert all(field.metadata["minimum"] is not None for field in numbers)
    assert all(field.default >= field.metadata["minimum"] for field in numbers)
