"""How the offline model fails, on request, as a real one would."""

from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from local.model import OfflineModel
from tests.local.model_client import APIS, Api, Asker, connect, function

TOOLS = [function("lookup", "Look something up.", key={"type": "string"})]


def without_retries(asker: Asker) -> Asker:
    return Asker(asker.client.with_options(max_retries=0), asker.api, stream=asker.stream)


async def open_stream(client: AsyncOpenAI, api: Api, prompt: str) -> Any:
    """A stream of which the first piece of text has been read."""
    if api == "responses":
        events: Any = await client.responses.create(model="offline", input=prompt, stream=True)
        async for event in events:
            if event.type == "response.output_text.delta":
                break
    else:
        said: Any = [{"role": "user", "content": prompt}]
        events = await client.chat.completions.create(model="offline", messages=said, stream=True)
        async for chunk in events:
            if chunk.choices[0].delta.content:
                break
    return events


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, openai.BadRequestError, "context_length_exceeded"),
        (401, openai.AuthenticationError, "invalid_api_key"),
        (429, openai.RateLimitError, "rate_limit_exceeded"),
        (500, openai.InternalServerError, None),
        (503, openai.InternalServerError, None),
    ],
)
async def test_it_fails_with_the_status_that_was_asked_for(
    asker: Asker, status: int, error: type[openai.APIStatusError], code: str | None
) -> None:
    with pytest.raises(error) as caught:
        await asker.ask(f"[fail:{status}]")
    assert caught.value.status_code == status
    assert caught.value.code == code
    assert caught.value.body.keys() == {"message", "type", "param", "code"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", [429, 500])
async def test_a_failure_that_happens_once_is_gone_at_the_retry(model: OfflineModel, asker: Asker, status: int) -> None:
    before = len(model.requests)
    assert (await asker.ask(f"[fail-once:{status}] [echo:here]")).text == "here"
    assert len(model.requests) - before == 2


async def test_a_failure_can_wait_for_the_second_step(asker: Asker) -> None:
    prompt = "[tool:lookup] [then] [fail:401]"
    assert len((await asker.ask(prompt, TOOLS)).calls) == 1
    with pytest.raises(openai.AuthenticationError):
        await asker.ask(prompt, TOOLS, steps=[("lookup", "{}", "found")])


@pytest.mark.parametrize("prompt", ["[break] Tell me about rivers.", '[break] [tool:lookup {"key": "a b c"}]'])
async def test_a_broken_answer_is_a_lost_connection(asker: Asker, prompt: str) -> None:
    with pytest.raises(openai.APIConnectionError):
        await without_retries(asker).ask(prompt, TOOLS)


async def test_a_reported_failure_keeps_what_was_said_before(client: AsyncOpenAI) -> None:
    answer = await Asker(client, "responses", stream=True).ask("[failed] Tell me about rivers.")
    assert answer.finish == "failed"
    assert answer.text.startswith("## Rivers")
    with pytest.raises(openai.APIError, match="had an error"):
        await Asker(client, "chat", stream=True).ask("[failed] Tell me about rivers.")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("prompt", ["[stall] Tell me about rivers.", "[slow] [long:100000]", "[burst:60000]"])
async def test_a_client_that_leaves_in_the_middle_is_noticed(
    model: OfflineModel, client: AsyncOpenAI, api: Api, prompt: str
) -> None:
    before = model.disconnects
    stream = await open_stream(client, api, prompt)
    assert model.active == 1
    await stream.close()
    await model.until(lambda journal: journal.disconnects == before + 1 and journal.active == 0)


@pytest.mark.parametrize("api", APIS)
async def test_a_paced_model_takes_its_time(api: Api) -> None:
    async with OfflineModel(tokens_per_second=50) as model, connect(model) as client:
        stream = await open_stream(client, api, "[long:100000]")
        await stream.close()
        await model.until(lambda journal: journal.disconnects == 1)


async def test_a_model_that_never_starts_runs_into_the_timeout(model: OfflineModel, asker: Asker) -> None:
    before = model.disconnects
    with pytest.raises(openai.APITimeoutError):
        await without_retries(asker).ask("[stall:first]", timeout=0.2)
    await model.until(lambda journal: journal.disconnects == before + 1)


async def test_a_whole_answer_that_was_read_to_the_end_is_no_disconnect(model: OfflineModel, asker: Asker) -> None:
    before = model.disconnects
    await asker.ask("[slow:1] [long:20]")
    await model.until(lambda journal: journal.active == 0)
    assert model.disconnects == before


def test_it_stops_while_streams_are_stalled() -> None:
    with (
        OfflineModel() as model,
        httpx.stream(
            "POST", f"{model.base_url}/responses", json={"model": "m", "input": "[stall]", "stream": True}
        ) as answer,
    ):
        chunks = answer.iter_bytes()
        assert b"response.created" in next(chunks)
        model.stop()
    assert model.active == 0
