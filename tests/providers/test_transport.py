"""The connection: closed at once, used again, kept alive, retried, and told which key to use."""

import asyncio
import gzip
import json
import traceback
from contextlib import aclosing, nullcontext
from datetime import date
from typing import Any

import pytest

from local.model import OfflineModel
from omniagent.ai.providers import get_llm_provider
from omniagent.ai.providers.llm_provider import ModelRequest, ModelText, ModelToolCall
from omniagent.errors import (
    ConfigurationError,
    ModelAuthError,
    ModelRejected,
    ModelStreamBroken,
    ModelUnavailable,
)
from omniagent.messages import ChatMessage, StepPart
from tests.providers.canned import HANG_UP, chat_chunks, frames, reply, saying, serve, stream, text_deltas
from tests.providers.conftest import MakeProvider
from tests.providers.helpers import ALL_APIS, APIS, answer, ask, called, finish_of, only, streamed, text_of

HELLO = stream(frames(text_deltas("Hello", ".")))
REFUSED = reply(401, {"error": {"message": "Incorrect API key provided.", "code": "invalid_api_key"}})


async def test_closing_the_stream_hangs_up_at_once(provider_of: MakeProvider) -> None:
    async with OfflineModel() as model:
        provider = provider_of("responses", model.base_url)
        async with aclosing(provider.stream(ask("[stall] [long:100]"))) as events:
            assert isinstance(await anext(events), ModelText)
        await model.until(lambda journal: journal.disconnects == 1)


@pytest.mark.parametrize("prompt", ["[stall] [long:100]", "[stall:first] Hello."])
async def test_cancelling_the_reader_hangs_up_at_once(prompt: str, provider_of: MakeProvider) -> None:
    async with OfflineModel() as model:
        provider = provider_of("responses", model.base_url)
        reading = asyncio.create_task(streamed(provider, ask(prompt)))
        await model.until(lambda journal: journal.active == 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await model.until(lambda journal: journal.disconnects == 1)


async def test_the_conversation_is_not_taken_elsewhere_by_a_redirect(provider_of: MakeProvider) -> None:
    async with serve(HELLO) as elsewhere:
        moved = f"HTTP/1.1 307 Moved\r\nlocation: {elsewhere.base_url}\r\ncontent-length: 0\r\n\r\n"
        async with serve(moved.encode()) as server:
            with pytest.raises(ModelRejected, match="status_code 307"):
                await streamed(provider_of("responses", server.base_url), ask("A secret."))
    assert (len(server.bodies), elsewhere.bodies) == (1, [])


async def test_a_server_that_is_not_there_is_unavailable(provider_of: MakeProvider) -> None:
    async with serve(HELLO) as server:
        pass
    with pytest.raises(ModelUnavailable):
        await streamed(provider_of("responses", server.base_url, max_retries=0), ask("Hi."))


async def test_one_connection_serves_call_after_call(provider_of: MakeProvider) -> None:
    async with serve(HELLO) as server:
        provider = provider_of("responses", server.base_url)
        for _ in range(3):
            assert text_of(await streamed(provider, ask("Hi."))) == "Hello."
        assert server.connections == 1


def test_every_event_loop_has_connections_of_its_own(offline: OfflineModel) -> None:
    """A script may call `asyncio.run` for each turn, and a server may have a loop in each of its threads."""
    provider = get_llm_provider("gpt-6-luna", base_url=offline.base_url)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        for runner in (first, second, first, second):
            assert text_of(runner.run(streamed(provider, ask("[echo:Hello.]")))) == "Hello."
        for runner in (first, second):
            runner.run(provider.aclose())
    with asyncio.Runner() as third:
        assert text_of(third.run(streamed(provider, ask("[echo:Hello.]")))) == "Hello."
        third.run(provider.aclose())


@pytest.mark.parametrize("api", ALL_APIS)
async def test_a_server_that_does_not_end_its_answer_does_not_hold_it_up(api: str, provider_of: MakeProvider) -> None:
    async with serve(stream(saying(api, "Hi."), end=False)) as server:
        provider = provider_of(api, server.base_url, timeout_seconds=60)
        async with asyncio.timeout(50):
            assert text_of(await streamed(provider, ask("Hi."))) == "Hi."


async def test_a_connection_lost_after_the_finish_reason_loses_nothing(provider_of: MakeProvider) -> None:
    async with serve(stream(frames(chat_chunks({"content": "Hi."})), end=False) + HANG_UP) as server:
        events = await streamed(provider_of("chat", server.base_url), ask("Hi."))
    assert (text_of(events), finish_of(events).reason) == ("Hi.", "stop")


@pytest.mark.parametrize("api", ALL_APIS)
async def test_a_call_gets_no_id_of_an_earlier_one(api: str, provider_of: MakeProvider) -> None:
    taken = "call_4f1a93c07d2e55aa"
    async with serve(stream(saying(api, call=(taken, "add", "{}")))) as server:
        conversation = [ChatMessage.user("Add."), answer(StepPart(), called(taken)), ChatMessage.user("Again.")]
        events = await streamed(provider_of(api, server.base_url), ModelRequest("", conversation))
    [call] = only(events, ModelToolCall)
    assert call.call_id != taken


async def test_an_answer_that_a_proxy_compressed_is_read(provider_of: MakeProvider) -> None:
    body = gzip.compress(b"".join(frames(text_deltas("Hello."))))
    async with serve(stream([body[:40], body[40:]], headers="content-encoding: gzip\r\n")) as server:
        assert text_of(await streamed(provider_of("responses", server.base_url), ask("Hi."))) == "Hello."


@pytest.mark.parametrize(
    "body", ["<html>Bad gateway</html>", "[]", "", '{"status": "completed"', "{}", '{"choices": [1], "output": [1]}']
)
@pytest.mark.parametrize("api", ALL_APIS)
async def test_an_answer_that_is_none_breaks(api: str, body: str, provider_of: MakeProvider) -> None:
    async with serve(reply(200, body)) as server:
        provider = provider_of(api, server.base_url)
        with pytest.raises(ModelStreamBroken):
            await streamed(provider, ask("Hi."))


@pytest.mark.parametrize("api", ALL_APIS)
async def test_an_address_without_a_model_is_named_by_what_it_sent(api: str, provider_of: MakeProvider) -> None:
    page = reply(200, "<html>\n\n<p>Welcome!</p></html>").replace(b"application/json", b"text/html; charset=utf-8")
    async with serve(page) as server:
        with pytest.raises(ModelStreamBroken, match="content type text/html"):
            await streamed(provider_of(api, server.base_url), ask("Hi."))


@pytest.mark.parametrize("is_accepted", [True, False])
async def test_a_key_that_is_refused_is_fetched_again_once(is_accepted: bool, provider_of: MakeProvider) -> None:
    fetched: list[str] = []

    async def fetch() -> str:
        fetched.append("new")
        return "new"

    async with serve(REFUSED, HELLO if is_accepted else REFUSED) as server:
        provider = provider_of("responses", server.base_url, api_key="old", refresh_key=fetch)
        if is_accepted:
            for _ in range(2):
                assert text_of(await streamed(provider, ask("Hi."))) == "Hello."
        else:
            with pytest.raises(ModelAuthError) as raised:
                await streamed(provider, ask("Hi."))
            assert "Incorrect" not in raised.value.public
    assert server.keys == ["old", "new", "new"][: 2 + is_accepted]
    assert fetched == ["new"]


async def test_a_key_may_come_from_a_function_that_is_asked_each_time(provider_of: MakeProvider) -> None:
    keys = iter(["first", " second\n"])

    async def next_key() -> str:
        return next(keys)

    async with serve(HELLO) as server:
        provider = provider_of("responses", server.base_url, api_key=next_key)
        for _ in range(2):
            await streamed(provider, ask("Hi."))
        assert server.keys == ["first", "second"]


@pytest.mark.parametrize("key", [" ", "sk-ä", "sk-\x00secret", "sk-secret\nx: y"])
async def test_a_key_that_cannot_be_one_is_a_wrong_setting_and_not_shown(key: str, provider_of: MakeProvider) -> None:
    async with serve(HELLO) as server:
        with pytest.raises(ConfigurationError) as raised:
            await streamed(provider_of("responses", server.base_url, api_key=key), ask("Hi."))
    assert "secret" not in "".join(traceback.format_exception(raised.value))


async def test_an_organization_and_a_project_are_sent(provider_of: MakeProvider) -> None:
    async with serve(HELLO) as server:
        await streamed(provider_of("responses", server.base_url, organization="org-1", project="proj-1"), ask("Hi."))
    assert "openai-organization: org-1\r\nopenai-project: proj-1\r\n" in server.heads[0]


SILENCE = b""
HEADERS_ONLY = stream([], end=False)
OVERLOADED = reply(503, {"error": {"message": "overloaded"}})


@pytest.mark.parametrize("answer", [SILENCE, HEADERS_ONLY])
async def test_a_silent_model_is_asked_once_however_many_retries_there_are(
    answer: bytes, provider_of: MakeProvider
) -> None:
    async with serve(answer) as server:
        # A busy machine has to ask within this time.
        provider = provider_of("responses", server.base_url, timeout_seconds=1, max_retries=5)
        with pytest.raises(ModelUnavailable, match="silent"):
            await streamed(provider, ask("Hi."))
        assert len(server.bodies) == 1


@pytest.mark.parametrize(("advice", "is_waited_for"), [(b"retry-after: 50", False), (b"retry-after-ms: 1", True)])
async def test_a_retry_is_made_if_it_fits_into_the_timeout(
    advice: bytes, is_waited_for: bool, provider_of: MakeProvider
) -> None:
    wait = OVERLOADED.replace(b"\r\n\r\n", b"\r\n" + advice + b"\r\n\r\n", 1)
    async with serve(wait, HELLO) as server, asyncio.timeout(30):
        provider = provider_of("responses", server.base_url, timeout_seconds=40, max_retries=5)
        with nullcontext() if is_waited_for else pytest.raises(ModelUnavailable, match="status_code 503"):
            assert text_of(await streamed(provider, ask("Hi."))) == "Hello."
        assert len(server.bodies) == 1 + is_waited_for


async def test_the_query_of_the_address_is_sent_as_one(provider_of: MakeProvider) -> None:
    async with serve(HELLO) as server:
        for address in (f"{server.base_url}?api-version=preview", f"{server.base_url}/?api-version=preview"):
            await streamed(provider_of("responses", address), ask("Hi."))
            assert server.heads[-1].startswith("POST /v1/responses?api-version=preview HTTP/1.1")


async def test_an_answer_that_came_while_the_event_loop_was_blocked_is_read(
    provider_of: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that blocks the loop, or a machine without a free core, is not the model's silence."""
    loop = asyncio.get_running_loop()
    real_time, skew = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real_time() + skew)

    def answer(*_: object) -> bytes:
        nonlocal skew
        skew += 200_000  # the answer is in the socket at once, and nobody has read it
        return HELLO

    async with serve(answer) as server:
        provider = provider_of("responses", server.base_url, timeout_seconds=100_000, max_retries=0)
        assert text_of(await streamed(provider, ask("Hi."))) == "Hello."


async def test_an_answer_may_take_longer_than_the_timeout_as_long_as_it_goes_on(
    provider_of: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    real_time, skew = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real_time() + skew)
    pieces = frames(text_deltas("One", " two", " three."))
    goes_on = asyncio.Semaphore(0)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEADERS_ONLY)
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await goes_on.acquire()
        writer.write(b"0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        provider = provider_of("responses", f"http://127.0.0.1:{port}/v1", timeout_seconds=100_000)
        said = []
        async for event in provider.stream(ask("Hi.")):
            said += [event.text] if isinstance(event, ModelText) else []
            for _ in range(60):
                skew += 1_000
                await asyncio.sleep(0)
            goes_on.release()
        assert "".join(said) == "One two three."
        await provider.aclose()


@pytest.mark.parametrize("prompt", ["[break] [long:100]", "[stall] [long:100]"])
async def test_nothing_is_retried_once_bytes_have_come(prompt: str, provider_of: MakeProvider) -> None:
    async with OfflineModel() as model:
        provider = provider_of("responses", model.base_url, timeout_seconds=0.5, max_retries=5)
        with pytest.raises(ModelStreamBroken if "break" in prompt else ModelUnavailable):
            await streamed(provider, ask(prompt))
        assert model.count == 1


PROMPT = "my secret diary"
QUOTING = {"error": {"message": f"Invalid prompt: {PROMPT}", "type": "invalid_request_error", "code": "invalid_prompt"}}


@pytest.mark.parametrize("answer", [reply(400, QUOTING), stream(frames([QUOTING]))])
async def test_the_text_of_the_api_stays_out_of_the_log(answer: bytes, provider_of: MakeProvider) -> None:
    async with serve(answer) as server:
        with pytest.raises(ModelRejected) as raised:
            await streamed(provider_of("responses", server.base_url), ask(PROMPT))
        assert PROMPT in raised.value.api_text
        assert "invalid_prompt" in str(raised.value)
        assert f"{len(raised.value.api_text)} characters" in str(raised.value)
        assert PROMPT not in "".join(traceback.format_exception(raised.value))

        with pytest.raises(ModelRejected, match=PROMPT) as raised:
            await streamed(provider_of("responses", server.base_url, verbose_errors=True), ask(PROMPT))
        assert PROMPT not in raised.value.public


@pytest.mark.parametrize(
    "body",
    [
        {"error": f"no {PROMPT}"},
        {"detail": f"no {PROMPT}"},
        [{"error": {"message": f"no {PROMPT}"}}],
        {"message": {"detail": [{"msg": f"no {PROMPT}"}]}, "type": "invalid_request_error"},
        {"error": {"code": f"Cannot parse {PROMPT}", "message": None}},
        f"no {PROMPT}",
    ],
)
async def test_the_text_of_the_api_is_found_wherever_it_is(body: Any, provider_of: MakeProvider) -> None:
    async with serve(reply(400, body if isinstance(body, str) else json.dumps(body))) as server:
        with pytest.raises(ModelRejected) as raised:
            await streamed(provider_of("responses", server.base_url), ask(PROMPT))
    assert PROMPT in raised.value.api_text
    assert PROMPT not in str(raised.value)


@pytest.mark.parametrize("api", APIS)
async def test_the_announced_date_is_returned(
    api: str, offline: OfflineModel, provider_of: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = provider_of(api, offline.base_url, model="gpt-6-luna")
    assert await provider.shutdown_date() is None
    monkeypatch.setitem(offline.shutdown_dates, "gpt-6-luna", "2031-05-01")
    assert await provider.shutdown_date() == date(2031, 5, 1)
    assert await provider_of(api, offline.base_url, model="gpt-6-sol").shutdown_date() is None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"error": {"message": "Not Found"}}),
        (200, "<html>"),
        (200, []),
        (200, {"message": "UnknownOperationException"}),
        (200, {"data": [None, "gpt-6-luna", {"id": "gpt-6-luna"}]}),
        (200, {"data": [{"id": "gpt-6-luna", "shutdown_date": "soon"}]}),
    ],
)
async def test_a_server_that_announces_no_date_returns_none(status: int, body: Any, provider_of: MakeProvider) -> None:
    async with serve(reply(status, body)) as server:
        assert await provider_of("chat", server.base_url).shutdown_date() is None


async def test_a_server_that_fails_raises(provider_of: MakeProvider) -> None:
    async with serve(reply(503, {"error": {"message": "overloaded"}})) as server:
        with pytest.raises(ModelUnavailable):
            await provider_of("chat", server.base_url, max_retries=0).shutdown_date()
