"""The model that a page chooses: for the functions, never on disk or in a description."""

import json

import pytest

from local.emulator.http import Exchange, Server
from local.model_choice import Choice, InvalidChoice, ModelChoice


async def test_ollama_is_found_on_this_machine_and_its_absence_is_no_error() -> None:
    async def tags(exchange: Exchange) -> None:
        await exchange.respond(200, body=json.dumps({"models": [{"name": "llama3.2:latest"}]}).encode())

    server = Server(tags)
    await server.start()
    address = f"http://{server.address}"
    choice = ModelChoice({}, {"openai": "offline"}, lambda: None, ollama=address)
    assert (await choice.tell())["ollama"] == {"url": f"{address}/v1", "models": ["llama3.2:latest"]}
    await server.close()
    assert (await choice.tell())["ollama"] is None


def test_a_choice_sets_what_the_functions_read_and_can_be_taken_back() -> None:
    environment, secrets = {"STAGE": "dev"}, {"openai": "offline"}
    restarts: list[str] = []
    choice = ModelChoice(environment, secrets, lambda: restarts.append("now"), offline_url="http://127.0.0.1:1/v1")
    choice.choose(Choice.read({"vendor": "anthropic", "model": "claude-sonnet-5-5", "key": "sk-ant"}))
    assert (choice.offline, environment["OMNIAGENT_MODEL"]) == (False, "anthropic/claude-sonnet-5-5")
    assert json.loads(secrets["openai"]) == {"ANTHROPIC_API_KEY": "sk-ant"}
    choice.choose(Choice.read({"vendor": "offline"}))
    assert (choice.offline, environment, secrets) == (True, {"STAGE": "dev"}, {"openai": "offline"})
    assert len(restarts) == 2


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"vendor": "acme"}, "Choose one of"),
        ({"vendor": "openai", "model": "gpt-6-luna"}, "Enter a key"),
        ({"vendor": "openai", "key": "sk-1"}, "Enter the name of a model"),
        ({"vendor": "compatible", "model": "m", "url": "ftp://x"}, "Enter the address"),
    ],
)
def test_a_choice_that_cannot_work_is_refused(document: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidChoice, match=text):
        Choice.read(document)
