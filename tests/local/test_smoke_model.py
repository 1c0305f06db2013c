"""`make smoke MODEL=…`, against the offline model: what it does passes, and what it does not is named."""

import subprocess
from collections.abc import AsyncGenerator

import pytest

from local.model import OfflineModel
from local.template import ROOT
from omniagent.messages import Usage
from omniagent.providers import LLMProvider, ModelEvent, ModelFinish, ModelRequest, ModelText
from scripts.smoke_model import run, smoke

MODELS = ["openai/gpt-6-luna", "openai-chat/gpt-6-luna", "anthropic/claude-sonnet-5-5"]


@pytest.mark.parametrize("model", MODELS)
async def test_every_api_does_what_the_rules_claim(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with OfflineModel() as offline:
        for vendor in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{vendor}_BASE_URL", offline.base_url)
        assert await smoke(model) == 0
    told = capsys.readouterr().out
    assert (told.count("  ok "), told.count("DIFFERS")) == (5, 0)


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


def test_a_missing_key_is_named_by_the_command() -> None:
    command = ["make", "smoke", "MODEL=anthropic/claude-sonnet-5-5", "ANTHROPIC_API_KEY="]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "set ANTHROPIC_API_KEY" in done.stderr
