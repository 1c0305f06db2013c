"""`make smoke MODEL=…`, against the offline model: what it does passes, and what it does not is named."""

import subprocess
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from local.model import OfflineModel
from local.template import ROOT
from omniagent.ai.providers.model_rules import rules_of
from omniagent.errors import ModelError, ModelRejected, ModelUnavailable
from omniagent.messages import Usage
from omniagent.providers import LLMProvider, ModelEvent, ModelFinish, ModelRequest, ModelText
from omniagent.testing import ScriptedModel
from scripts.smoke_model import run, smoke

FILES = {
    "openai/gpt-6-luna": "image taken, pdf taken, text taken, audio refused",
    "openai-chat/gpt-6-luna": "image taken, pdf taken, audio refused",
    "openai-chat/llama3": "the rules name none for this model",
    "anthropic/claude-sonnet-5-5": "image taken, pdf taken, text taken",
}


@pytest.mark.parametrize(("model", "files"), FILES.items())
async def test_every_api_does_what_the_rules_claim(
    model: str, files: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with OfflineModel() as offline:
        for vendor in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{vendor}_BASE_URL", offline.base_url)
        assert await smoke(model) == 0
    told = capsys.readouterr().out
    assert (told.count("  ok "), told.count("DIFFERS")) == (6, 0)
    assert f"ok      files          {files}\n" in told


async def test_each_model_of_a_chain_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with OfflineModel() as offline:
        for vendor in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{vendor}_BASE_URL", offline.base_url)
        assert await smoke("openai/gpt-6-luna, anthropic/claude-haiku-5-5") == 0
    verdicts = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert verdicts == [f"{model} does what the rules claim." for model in ("gpt-6-luna", "claude-haiku-5-5")]


async def test_files_that_the_account_takes_otherwise_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = replace(rules_of("gpt-6-luna"), files=frozenset({"audio"}))
    monkeypatch.setattr("scripts.smoke_model.rules_of", lambda _: rules)
    with OfflineModel() as offline:
        monkeypatch.setenv("OPENAI_BASE_URL", offline.base_url)
        assert await smoke("openai/gpt-6-luna") == 1
    told = next(line for line in capsys.readouterr().out.splitlines() if "DIFFERS files" in line)
    assert "audio is refused: the model's API refused the request" in told
    assert told.endswith("image is taken; pdf is taken; text is taken")


class Other(LLMProvider):
    """A model that ignores tools and schemas, and caches."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        yield ModelText("Hello.")
        yield ModelFinish("stop", Usage(6_000, 2, cached_input_tokens=5_000))


async def test_what_differs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert not await run(Other("other"), ["service_tier"])
    told = capsys.readouterr().out
    assert "DIFFERS tool           no tool was called: 'Hello.'" in told
    assert "DIFFERS typed output   the answer is not JSON: 'Hello.'" in told
    assert "ok      cache hit      5000 of 6000 tokens read from the cache" in told
    assert "DIFFERS fields         the API refuses service_tier" in told
    assert told.endswith("other differs from the rules: tool, typed output, fields.\n")


@pytest.mark.parametrize("failure", [ModelUnavailable("down"), ModelRejected("no such model")])
async def test_a_model_that_gives_no_answer_is_asked_once(
    failure: ModelError, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not await run(ScriptedModel(failure))
    assert capsys.readouterr().out == f"  FAILED  stream         {failure}\nscripted could not be asked: stream.\n"


async def test_a_failure_is_no_difference_from_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel("One.", ModelUnavailable("down"), ModelRejected("no schemas"), default="Hello.")
    assert not await run(model)
    told = capsys.readouterr().out
    assert "FAILED  tool           down" in told
    assert "DIFFERS typed output   no schemas" in told
    assert told.endswith("differs from the rules: typed output, cache hit.\nscripted could not be asked: tool.\n")


def test_a_missing_key_is_named_by_the_command() -> None:
    command = ["make", "smoke", "MODEL=anthropic/claude-sonnet-5-5", "ANTHROPIC_API_KEY="]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "set ANTHROPIC_API_KEY" in done.stderr
