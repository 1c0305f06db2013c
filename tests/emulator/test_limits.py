"""Lambda's quotas and the rules for headers."""

from typing import Any

import httpx
import pytest

from local.cloudformation import TemplateError
from local.emulator import Emulator, Limits
from tests.emulator.conftest import Start, toy


async def test_a_streamed_response_is_cut_off_at_its_limit(start: Start, http: httpx.AsyncClient) -> None:
    emulator = await start(toy("stream"), limits=Limits(streamed_bytes=100_000))
    assert (await http.get(emulator.url_of("stream") + "/?padding=20000&events=4")).status_code == 200
    with pytest.raises(httpx.RemoteProtocolError):
        await http.get(emulator.url_of("stream") + "/?padding=20000&events=6")


async def test_an_environment_that_lambda_would_refuse_is_refused() -> None:
    with pytest.raises(TemplateError, match="PlainFunction: the environment variables have 4100 bytes, Lambda takes"):
        async with Emulator([toy("plain", environment={"LONG": "x" * 4096})]):
            pass


async def test_a_process_that_never_starts_fails_its_invocation(start: Start) -> None:
    emulator = await start(toy("slow", timeout=0.5), limits=Limits(init_seconds=0.5))
    result = await emulator.invoke("slow", b"{}")
    assert result.error_type == "Sandbox.Timedout"
    assert emulator.processes("slow") == []


def answering(**answer: Any) -> dict[str, Any]:
    return {"do": "answer", "answer": {"statusCode": 200, "body": "", **answer}}


async def test_headers_that_the_front_answers_for_get_another_name(plain: Emulator, http: httpx.AsyncClient) -> None:
    headers = {"WWW-Authenticate": "Bearer", "Content-Length": "7", "Date": "never", "Transfer-Encoding": "chunked"}
    response = await http.post(plain.url_of("plain"), json=answering(headers={**headers, "X-Count": 3, "X-On": True}))
    assert response.headers["x-amzn-remapped-www-authenticate"] == "Bearer"
    assert response.headers["x-amzn-remapped-content-length"] == "7"
    assert (response.headers["content-length"], response.headers["x-count"], response.headers["x-on"]) == (
        "0",
        "3",
        "true",
    )
    assert not {"www-authenticate", "transfer-encoding", "date"} & set(response.headers)
