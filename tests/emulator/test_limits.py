"""Lambda's quotas and the rules for headers."""

import httpx
import pytest

from local.emulator import Emulator, Limits
from tests.emulator.conftest import Start, toy


async def test_a_streamed_response_is_cut_off_at_its_limit(start: Start, http: httpx.AsyncClient) -> None:
    emulator = await start(toy("stream"), limits=Limits(streamed_bytes=100_000))
    assert (await http.get(emulator.url_of("stream") + "/?padding=20000&events=4")).status_code == 200
    with pytest.raises(httpx.RemoteProtocolError):
        await http.get(emulator.url_of("stream") + "/?padding=20000&events=6")


async def test_a_process_that_never_starts_fails_its_invocation(start: Start) -> None:
    emulator = await start(toy("slow", timeout=0.5), limits=Limits(init_seconds=0.5))
    result = await emulator.invoke("slow", b"{}")
    assert result.error_type == "Sandbox.Timedout"
    assert emulator.processes("slow") == []


async def test_headers_that_the_front_answers_for_get_another_name(plain: Emulator, http: httpx.AsyncClient) -> None:
    headers = {"WWW-Authenticate": "Bearer", "Content-Length": "7", "Date": "never", "Transfer-Encoding": "chunked"}
    answer = {"statusCode": 200, "body": "", "headers": {**headers, "X-Count": 3, "X-On": True}}
    response = await http.post(plain.url_of("plain"), json={"do": "answer", "answer": answer})
    remapped = {"x-amzn-remapped-www-authenticate": "Bearer", "x-amzn-remapped-content-length": "7"}
    expected = remapped | {"content-length": "0", "x-count": "3", "x-on": "true"}
    assert dict(response.headers) | expected == dict(response.headers)
    assert not {"www-authenticate", "transfer-encoding", "date"} & set(response.headers)
