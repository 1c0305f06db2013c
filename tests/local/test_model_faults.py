"""How the offline model fails, on request, as a real one would."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from local.model import OfflineModel
from tests.fixtures.leaving import reading
from tests.local.model_client import Api, Asker, function

TOOLS = [function("lookup", "Look something up.", key={"type": "string"})]


def without_retries(asker: Asker) -> Asker:
    return Asker(asker.client.with_options(max_retries=0), asker.api, stream=asker.stream)


@asynccontextmanager
async def open_stream(model: OfflineModel, api: Api, prompt: str) -> AsyncIterator[None]:
    """A stream of which the first piece of text has been read, and whose reader leaves with the context."""
    said = {"input": prompt} if api == "responses" else {"messages": [{"role": "user", "content": prompt}]}
    path = "/responses" if api == "responses" else "/chat/completions"
    first_text = "response.output_text.delta" if api == "responses" else '"content":'
    async with (
        httpx.AsyncClient(base_url=model.base_url, timeout=60) as http,
        http.stream("POST", path, json={"model": "offline", "stream": True, **said}) as response,
        reading(response, response.aiter_lines()) as lines,
    ):
        async for line in lines:
            if first_text in line:
                break
        yield


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
    either: Asker, status: int, error: type[openai.APIStatusError], code: str | None
) -> None:
    with pytest.raises(error) as caught:
        await either.ask(f"[fail:{status}]")
    assert caught.value.status_code == status
    assert caught.value.code == code
    assert caught.value.body.keys() == {"message", "type", "param", "code"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", [429, 500])
async def test_a_failure_that_happens_once_is_gone_at_the_retry(
    model: OfflineModel, client: AsyncOpenAI, status: int
) -> None:
    before = len(model.requests)
    asker = Asker(client, "responses", stream=True)
    assert (await asker.ask(f"[fail-once:{status}] [echo:here]")).text == "here"
    assert len(model.requests) - before == 2


async def test_a_failure_can_wait_for_the_second_step(either: Asker) -> None:
    prompt = "[tool:lookup] [then] [fail:401]"
    assert len((await either.ask(prompt, TOOLS)).calls) == 1
    with pytest.raises(openai.AuthenticationError):
        await either.ask(prompt, TOOLS, steps=[("lookup", "{}", "found")])


async def test_a_broken_answer_is_a_lost_connection(asker: Asker) -> None:
    for prompt in ("[break] Tell me about rivers.", '[break] [tool:lookup {"key": "a b c"}]'):
        with pytest.raises(openai.APIConnectionError):
            await without_retries(asker).ask(prompt, TOOLS)


async def test_a_reported_failure_keeps_what_was_said_before(client: AsyncOpenAI) -> None:
    answer = await Asker(client, "responses", stream=True).ask("[failed] Tell me about rivers.")
    assert answer.finish == "failed"
    assert answer.text.startswith("## Rivers")


async def test_a_failure_in_a_chat_stream_is_an_error_event(model: OfflineModel) -> None:
    said = [{"role": "user", "content": "[failed] Tell me about rivers."}]
    async with httpx.AsyncClient(timeout=60) as http:
        body = {"model": "offline", "messages": said, "stream": True}
        answer = await http.post(f"{model.base_url}/chat/completions", json=body)
    *before, last = answer.text.strip().split("\n\n")
    assert "Rivers" in "".join(before)
    assert "had an error" in json.loads(last.removeprefix("data: "))["error"]["message"]


@pytest.mark.parametrize(
    ("api", "prompt"),
    [
        ("responses", "[stall] Tell me about rivers."),
        ("chat", "[stall] Tell me about rivers."),
        ("responses", "[slow] [long:2000]"),
        ("responses", "[burst:60000]"),
    ],
)
async def test_a_client_that_leaves_in_the_middle_is_noticed(model: OfflineModel, api: Api, prompt: str) -> None:
    before = model.disconnects
    async with open_stream(model, api, prompt):
        assert model.active == 1
    await model.until(lambda journal: journal.disconnects == before + 1 and journal.active == 0)


async def test_a_paced_model_takes_its_time() -> None:
    async with OfflineModel(tokens_per_second=50) as model:
        async with open_stream(model, "responses", "[long:5000]"):
            pass
        await model.until(lambda journal: journal.disconnects == 1)


async def test_a_model_that_never_starts_runs_into_the_timeout(model: OfflineModel, either: Asker) -> None:
    before = model.disconnects
    with pytest.raises(openai.APITimeoutError):
        await without_retries(either).ask("[stall:first]", timeout=0.2)
    await model.until(lambda journal: journal.disconnects == before + 1)


async def test_a_whole_answer_that_was_read_to_the_end_is_no_disconnect(model: OfflineModel, either: Asker) -> None:
    before = model.disconnects
    await either.ask("[slow:1] [long:20]")
    await model.until(lambda journal: journal.active == 0)
    assert model.disconnects == before


def test_it_stops_while_streams_are_stalled() -> None:
    with (
        OfflineModel() as model,
        httpx.stream(
            "POST", f"{model.base_url}/responses", json={"model": "m", "input": "[stall]", "stream": True}, timeout=60
        ) as answer,
    ):
        chunks = answer.iter_bytes()
        assert b"response.created" in next(chunks)
        model.stop()
    assert model.active == 0
