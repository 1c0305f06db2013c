"""On Lambda nothing leaves in the clear: not to MongoDB, not to a collector, not to a model."""

from collections.abc import AsyncIterator

import pytest

from local.template import ROOT
from omniagent import Agent, Project
from omniagent.app.application import Application
from omniagent.app.on_lambda import AwsPlatform, get_application
from omniagent.errors import ConfigurationError
from omniagent.settings import Settings
from omniagent.tls import check_url, is_laptop, needs_tls, require_mongodb_tls

PROJECT = Project(agent=Agent("helper", "Be helpful."))
PLAIN = [
    "mongodb://db.example.com:27017/app",
    "mongodb://ada:pass@db.example.com/?replicaSet=rs",
    "mongodb://127.0.0.1@db.example.com/",
    "mongodb://127.0.0.1,db.example.com/",
    "mongodb://127.0.0.1.example.com/",
    "mongodb://localhost.example.com/",
    "mongodb://db.example.com/?tls=false",
    "mongodb://db.example.com/?tls=true&tls=false",
    "mongodb://db.example.com/?tls=true&ssl=false",
    "mongodb://db.example.com/?tls=true&tls=",
    "mongodb://db.example.com/?tls=TRUE",
    "mongodb://db.example.com/?%74ls=true",
    "mongodb://db.example.com/?tls",
    "mongodb://[::1]db.example.com:27017/",
    "mongodb://db.example.com/?appName=tls=true",
    "mongodb+srv://cluster.example.net/?tls=false",
    "mongodb+srv://localhost/?ssl=false",
]
UNVERIFIED = [
    "mongodb+srv://cluster.example.net/?tlsInsecure=true",
    "mongodb://db.example.com/?tls=true&tlsAllowInvalidCertificates=true",
    "mongodb://db.example.com/?tls=true&tlsAllowInvalidHostnames=true",
]
GOOD = [
    "mongodb+srv://ada:p%40ss@cluster.example.net/?retryWrites=true",
    "mongodb+srv://cluster.example.net/?tls=true",
    "mongodb://one.example.com,two.example.com/app?replicaSet=rs&TLS=true",
    "mongodb://one.example.com/?ssl=true",
    "mongodb://one.example.com/?tls=%74rue;tlsInsecure=false",
    "mongodb://127.0.0.1:27017/?replicaSet=rs",
    "mongodb://ada:pass@localhost,[::1]:27018/app",
]


@pytest.fixture
def on_lambda(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "stack-chat")
    monkeypatch.setenv("LAMBDA_TASK_ROOT", "/var/task")
    monkeypatch.delenv("OMNIAGENT_LOCAL", raising=False)
    return monkeypatch


@pytest.fixture
async def application(on_lambda: pytest.MonkeyPatch) -> AsyncIterator[Application]:
    application = Application(PROJECT, AwsPlatform(Settings(mongodb_uri=PLAIN[0])))
    yield application
    await application.close()


@pytest.mark.parametrize("uri", PLAIN)
def test_mongodb_without_tls_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="TLS") as refused:
        require_mongodb_tls(uri)
    assert "pass" not in str(refused.value)


@pytest.mark.parametrize("uri", UNVERIFIED)
def test_mongodb_behind_a_certificate_that_nobody_verifies_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="verified"):
        require_mongodb_tls(uri)


@pytest.mark.parametrize("uri", GOOD)
def test_mongodb_with_tls_or_beside_the_function_is_taken(uri: str) -> None:
    require_mongodb_tls(uri)


async def test_no_connection_is_made_without_tls(application: Application) -> None:
    with pytest.raises(ConfigurationError, match="TLS"):
        await application.store()


@pytest.mark.usefixtures("on_lambda")
@pytest.mark.parametrize(
    "url",
    [
        "http://collector.example.com:4318",
        "http://127.0.0.1@collector.example.com",
        "http://127.0.0.1.example.com",
        "HTTP://collector.example.com",
        "ftp://localhost",
        "collector.example.com:4318",
        "http://[::1",
    ],
)
def test_a_plain_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="https"):
        check_url("OTEL_EXPORTER_OTLP_ENDPOINT", url)


@pytest.mark.usefixtures("on_lambda")
@pytest.mark.parametrize("url", ["", "https://collector.example.com", "http://localhost:4318", "http://[::1]:4318"])
def test_an_encrypted_address_and_one_beside_the_function_are_taken(url: str) -> None:
    check_url("OTEL_EXPORTER_OTLP_ENDPOINT", url)


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OPENAI_BASE_URL", "AWS_ENDPOINT_URL_DYNAMODB"])
def test_a_function_does_not_start_with_a_plain_address(on_lambda: pytest.MonkeyPatch, name: str) -> None:
    on_lambda.setenv(name, "http://elsewhere.example.com")
    with pytest.raises(ConfigurationError, match=name):
        get_application(Project(agent=PROJECT.agent))


def test_a_laptop_may_use_any_network_and_nothing_else_is_a_laptop(on_lambda: pytest.MonkeyPatch) -> None:
    assert needs_tls()
    on_lambda.setenv("OMNIAGENT_LOCAL", "1")
    assert (needs_tls(), is_laptop()) == (True, False), "on AWS the switch has no effect"
    on_lambda.setenv("LAMBDA_TASK_ROOT", str(ROOT / "functions"))
    assert (needs_tls(), is_laptop()) == (False, True)
    on_lambda.delenv("OMNIAGENT_LOCAL")
    assert needs_tls(), "the emulator without the switch is as strict as Lambda"
