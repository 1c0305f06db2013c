"""The Invoke API."""

import json

import httpx
import pytest

from local.emulator import Emulator
from tests.emulator.conftest import Start, get_event, toy


def address(emulator: Emulator, function: str) -> str:
    return f"{emulator.endpoint}/2015-03-31/functions/{function}/invocations"


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "toy-plain",
        "PlainFunction",
        "toy-plain:live",
        "arn:aws:lambda:us-east-1:123456789012:function:toy-plain:live",
    ],
)
async def test_a_function_is_invoked_by_any_of_its_names(plain: Emulator, http: httpx.AsyncClient, name: str) -> None:
    response = await http.post(address(plain, name), json={"a": 1})
    assert response.status_code == 200
    assert response.json()["event"] == {"a": 1}
    assert response.headers["x-amz-executed-version"] == "$LATEST"
    assert "x-amz-function-error" not in response.headers


async def test_a_function_error_is_a_200_with_the_error(plain: Emulator, http: httpx.AsyncClient) -> None:
    response = await http.post(address(plain, "plain"), json={"do": "fail"})
    assert response.status_code == 200
    assert response.headers["x-amz-function-error"] == "Unhandled"
    error = response.json()
    assert (error["errorType"], error["errorMessage"]) == ("ValueError", "as asked")


async def test_a_function_that_ends_its_process_says_how(start: Start, http: httpx.AsyncClient) -> None:
    emulator = await start(toy("plain"))
    error = (await http.post(address(emulator, "plain"), json={"do": "exit"})).json()
    assert error["errorType"] == "Runtime.ExitError"
    assert error["errorMessage"].endswith("exit status 3")
    await emulator.settled()
    start_line, died, end, report = emulator.logs("plain")
    request_id = start_line.split()[2]
    assert died == f"RequestId: {request_id} Error: Runtime exited with error: exit status 3"
    assert end == f"END RequestId: {request_id}"
    assert report.startswith(f"REPORT RequestId: {request_id} Duration: ")


async def test_a_streaming_function_invoked_as_a_whole_answers_prelude_and_body(
    streaming: Emulator, http: httpx.AsyncClient
) -> None:
    response = await http.post(address(streaming, "stream"), json=get_event())
    prelude, body = response.content.split(bytes(8))
    assert json.loads(prelude)["statusCode"] == 200
    assert body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


async def test_a_failed_asynchronous_invocation_is_tried_twice_more(start: Start, http: httpx.AsyncClient) -> None:
    failures: list[str] = []
    emulator = await start(
        toy("plain"),
        retry_delays=(0, 0),
        on_line=lambda _, line: failures.append(line) if "as asked" in line else None,
    )
    headers = {"x-amz-invocation-type": "Event"}
    await http.post(address(emulator, "plain"), json={"do": "fail"}, headers=headers)
    while len(failures) < 3:
        await http.post(address(emulator, "plain"), json={})
    await emulator.settled()
    assert len(failures) == 3


@pytest.mark.parametrize(
    ("function", "content", "status"),
    [("nobody", b"{}", 404), ("plain", b"{", 400), ("plain", b'"' + b"x" * 6291456 + b'"', 413)],
)
async def test_what_cannot_be_invoked_is_refused(
    plain: Emulator, http: httpx.AsyncClient, function: str, content: bytes, status: int
) -> None:
    assert (await http.post(address(plain, function), content=content)).status_code == status
