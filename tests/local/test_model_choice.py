"""The model that a tab chooses: for the processes of its own turns, never on disk or in a description."""

import json
from collections.abc import AsyncIterator, Mapping
from urllib.parse import quote

import httpx
import pytest

from local.emulator.http import Exchange, Server
from local.model_choice import KEPT, Choice, InvalidChoice, TabModels
from local.secrets_api import ENDPOINT, SecretsApi

CLAUDE = {"vendor": "anthropic", "model": "claude-sonnet-5-5", "key": "sk-ant"}


class Tabs(TabModels):
    """Remembers which variables it has ended the processes of."""

    def __init__(self, secrets: SecretsApi, ollama: str = "http://127.0.0.1:9") -> None:
        self.retired: list[Mapping[str, str]] = []
        super().__init__(secrets, {"mongodb": "uri"}, self.retired.append, offline_url="http://m", ollama=ollama)


@pytest.fixture
async def secrets() -> AsyncIterator[SecretsApi]:
    secrets = SecretsApi()
    await secrets.start()
    yield secrets
    await secrets.close()


async def test_ollama_is_found_on_this_machine_and_its_absence_is_no_error(secrets: SecretsApi) -> None:
    async def tags(exchange: Exchange) -> None:
        await exchange.respond(200, body=json.dumps({"models": [{"name": "llama3.2:latest"}]}).encode())

    server = Server(tags)
    await server.start()
    address = f"http://{server.address}"
    models = Tabs(secrets, ollama=address)
    assert (await models.tell(None))["ollama"] == {"url": f"{address}/v1", "models": ["llama3.2:latest"]}
    await server.close()
    assert (await models.tell(None))["ollama"] is None


async def test_only_events_for_a_tabs_turns_reach_the_processes_with_its_key(secrets: SecretsApi) -> None:
    models = Tabs(secrets)
    choice = Choice.from_header(quote(json.dumps(CLAUDE)))
    assert choice is not None
    assert "sk-ant" not in repr(choice)
    [(header, token)] = models.headers(choice)
    models.claim("user:talk", choice)
    variables = models.variables_of("chat", json.dumps({"headers": {header: token}}).encode())
    assert variables["OMNIAGENT_MODEL"] == "anthropic/claude-sonnet-5-5"
    assert "sk-ant" not in repr(variables)
    target = {"x-amz-target": "secretsmanager.GetSecretValue"}
    async with httpx.AsyncClient(trust_env=False, headers=target) as http:
        secret = (await http.post(variables[ENDPOINT], json={"SecretId": "openai"})).json()
    assert json.loads(secret["SecretString"]) == {"ANTHROPIC_API_KEY": "sk-ant"}
    job = json.dumps({"Records": [{"body": json.dumps({"kind": "run", "session_id": "user:talk"})}]}).encode()
    assert models.variables_of("run", job) == models.variables_of("summary", job) == variables
    assert models.variables_of("sessions", job) == models.variables_of("chat", b"{}") == {}
    assert models.owner("user:talk") == choice
    models.claim("user:talk", None)
    assert models.variables_of("run", job) == {}, "the last message there was of a tab without a key"


def test_a_choice_that_is_given_up_or_old_is_forgotten_with_its_processes(secrets: SecretsApi) -> None:
    models = Tabs(secrets)
    choices = [Choice("openai", "gpt-6-luna", f"sk-{number}") for number in range(KEPT + 2)]
    first, second, *_ = used = [models.use(choice) for choice in choices[:-1]]
    assert models.retired == [first]
    assert len({variables[ENDPOINT] for variables in used}) == KEPT + 1, "each key has an address of its own"
    models.use(choices[1])
    models.use(choices[-1])
    assert second not in models.retired, "the one that was used last stays"
    models.forget(choices[1])
    assert models.retired[-1] == second


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"vendor": "offline"}, "Choose one of"),
        ({"vendor": "openai", "model": "gpt-6-luna"}, "Enter a key"),
        ({"vendor": "openai", "key": "sk-1"}, "Enter the name of a model"),
        ({"vendor": "compatible", "model": "m", "url": "ftp://x"}, "Enter the address"),
    ],
)
def test_a_choice_that_cannot_work_is_refused(document: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidChoice, match=text):
        Choice.read(document)
