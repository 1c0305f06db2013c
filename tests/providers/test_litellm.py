"""A real LiteLLM proxy between the providers and the offline model: every API gives what it gives without the proxy."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from local.model import OfflineModel
from local.ports import free_port
from local.processes import Service
from local.template import ROOT
from omniagent.ai.providers.llm_provider import ModelFinish
from omniagent.errors import ModelError
from tests.providers.conftest import CLAUDE, MakeProvider
from tests.providers.helpers import ALL_APIS, after_tools, ask, comparable, streamed, text_of
from tests.providers.test_events import ANSWERS, FAILURES

KEY = "sk-of-the-proxy-0123456789abcdef"
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Proxied:
    """The offline model, and the address of the proxy before it."""

    model: OfflineModel
    proxy_url: str


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    subprocess.run(["make", ".venv-litellm/.installed"], cwd=ROOT, check=True, timeout=600)
    folder = tmp_path_factory.mktemp("litellm")
    with OfflineModel() as model:
        url = f"http://127.0.0.1:{(port := free_port())}"
        proxy = _start(folder, model.base_url, port)
        try:
            proxy.wait_until(lambda: _is_ready(url), seconds=PATIENCE_SECONDS)
            yield Proxied(model, url)
        finally:
            proxy.stop()


def _start(folder: Path, model_url: str, port: int) -> Service:
    openai = {"model": "openai/gpt-6-luna", "api_base": model_url, "api_key": "unused"}
    claude = {"model": f"anthropic/{CLAUDE}", "api_base": model_url.removesuffix("/v1"), "api_key": "unused"}
    names = {"gpt-6-luna": openai, CLAUDE: claude}
    models = [{"model_name": name, "litellm_params": parameters} for name, parameters in names.items()]
    config = folder / "config.yaml"
    # A failure is passed on at once, and the next request is too.
    router = {"num_retries": 0, "disable_cooldowns": True}
    config.write_text(json.dumps({"model_list": models, "router_settings": router}))
    program = str(ROOT / ".venv-litellm" / "bin" / "litellm")
    command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    variables = {
        "HOME": str(folder),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it downloads one
        "LITELLM_MASTER_KEY": KEY,
        "LITELLM_TELEMETRY": "False",
    }
    return Service("LiteLLM", command, log=folder / "log", variables=variables)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/readiness", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


PROMPTS = ANSWERS.keys() - {"[empty]", "[bad-args:add]"}
LOST = {("chat", "[refuse]")}
"""The proxy drops the field `refusal` of Chat Completions: the answer is empty."""


@pytest.mark.parametrize("api", ALL_APIS)
async def test_an_answer_is_the_same_through_the_proxy(api: str, proxied: Proxied, provider_of: MakeProvider) -> None:
    direct = provider_of(api, proxied.model.base_url)
    through = provider_of(api, f"{proxied.proxy_url}/v1", api_key=KEY)
    for prompt in PROMPTS:
        events = comparable(await streamed(through, ask(prompt)))
        if (api, prompt) in LOST:
            assert [type(event) for event in events] == [ModelFinish]
        else:
            assert events == comparable(await streamed(direct, ask(prompt))), prompt


@pytest.mark.parametrize("api", ALL_APIS)
async def test_a_failure_keeps_its_class_through_the_proxy(
    api: str, proxied: Proxied, provider_of: MakeProvider
) -> None:
    provider = provider_of(api, f"{proxied.proxy_url}/v1", api_key=KEY, max_retries=0)
    for prompt, kind in FAILURES.items():
        with pytest.raises(ModelError) as raised:
            await streamed(provider, ask(prompt))
        assert type(raised.value) is kind, prompt


@pytest.mark.parametrize("api", ALL_APIS)
async def test_a_tool_turn_with_sealed_reasoning_goes_through_the_proxy(
    api: str, proxied: Proxied, provider_of: MakeProvider
) -> None:
    """The offline model refuses a signature that it has not made."""
    provider = provider_of(api, f"{proxied.proxy_url}/v1", api_key=KEY)
    assert text_of(await after_tools(provider, '[reason] [tool:add {"a": 1, "b": 2}] [then] [echo:Done.]')) == "Done."
