"""ASGI apps as handlers: what the app is told of the request, and how whole responses are given back."""

import asyncio
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.meetings import Meeting
from tests.lambda_runtime.processes import function, through_wrapper, without_wrapper
from tests.lambda_runtime.runtime_api import RuntimeApi, rest_event, url_event

HEAD = {
    "statusCode": 200,
    "headers": {"content-type": "text/event-stream", "x-session-id": "s-1"},
    "cookies": ["a=1; Path=/", "b=2"],
}
"""Of the app at `/events`."""
BODY = b64encode(b"hello").decode()


@pytest.mark.parametrize(
    ("event", "cookie"),
    [
        (url_event("/identity", query="a=1&a=2", body=BODY, cookies=["c=1", "d=2"]), "c=1; d=2"),
        (rest_event("/identity", query={"a": ["1", "2"]}, body=BODY, cookie=["c=1", "d=2"]), "c=1, d=2"),
    ],
    ids=["2.0", "1.0"],
)
async def test_the_app_sees_the_event_as_an_http_request(api: RuntimeApi, event: Any, cookie: str) -> None:
    sent = event | {"isBase64Encoded": True}
    request_id = api.invoke(sent)
    post = await api.posted()
    assert (await post.prelude())["statusCode"] == 201
    answer = await post.json()
    assert (answer["body"], answer["query"], answer["cookie"]) == ("hello", "a=1&a=2", cookie)
    assert answer["request_id"] == request_id
    assert answer["event"].items() <= sent.items()


async def test_a_stream_to_api_gateway_begins_with_the_same_prelude(api: RuntimeApi, stage: Meeting) -> None:
    api.invoke(rest_event("/events", query={}))
    following = asyncio.create_task(api.posted())
    for _ in range(3):
        await stage.hear()
    post = await following
    assert await post.prelude() == HEAD
    assert b"".join(await post.rest()) == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


async def test_null_fields_of_an_event_are_missing_ones(api: RuntimeApi) -> None:
    event = url_event("/identity")
    event |= dict.fromkeys(("rawQueryString", "cookies", "body", "isBase64Encoded", "queryStringParameters"))
    event["headers"]["x-empty"] = None
    api.invoke(event)
    post = await api.posted()
    assert (await post.prelude())["statusCode"] == 201
    answer = await post.json()
    assert (answer["body"], answer["query"]) == ("", "")


async def test_a_disconnect_is_heard_only_after_the_last_byte(api: RuntimeApi, stage: Meeting) -> None:
    post = await api.call("/disconnect")
    await post.prelude()
    assert await post.chunk() == b"first"
    assert await stage.hear() == "disconnected False"
    assert await post.rest() == [b"last"]
    assert await stage.hear() == "then http.disconnect"


async def test_the_reader_is_released_at_the_last_byte_and_the_invocation_at_the_apps_end(
    api: RuntimeApi, stage: Meeting
) -> None:
    api.invoke(url_event("/empty"))
    api.invoke(url_event("/burst"))
    await (await api.posted()).closed.wait()
    following = asyncio.create_task(api.posted())
    assert await stage.hear() == "sent"
    assert not following.done()
    await (await following).rest()


async def test_an_app_that_is_cancelled_costs_the_response_and_not_the_process(api: RuntimeApi) -> None:
    for _ in range(2):
        post = await api.call("/cancelled")
        assert post.path.endswith("/error")
        assert (await post.json())["errorMessage"] == "The ASGI app was cancelled"


async def test_an_event_of_another_kind_is_refused(api: RuntimeApi) -> None:
    api.invoke({"Records": []})
    post = await api.posted()
    assert post.path.endswith("/error")
    assert (await post.json())["errorType"] == "ValueError"


@pytest.mark.parametrize("wrapped", [True, False])
async def test_sam_local_gets_a_payload_2_0_response(
    bare_api: RuntimeApi, stage: Meeting, layer: Path, log: Path, *, wrapped: bool
) -> None:
    command = through_wrapper(layer) if wrapped else without_wrapper("app.handler")
    local = {"MEETING": stage.address, "AWS_SAM_LOCAL": "true"}
    async with function(command, log, handler="app.handler", api=bare_api.address, **local):
        bare_api.invoke(url_event("/events"))
        for _ in range(3):
            await stage.hear()
        post = await bare_api.posted()
        assert post.headers["content-type"] == "application/json"
        text = "data: 0\n\ndata: 1\n\ndata: 2\n\n"
        assert await post.json() == HEAD | {"body": text, "isBase64Encoded": False}


async def test_a_buffered_function_keeps_its_loop_after_a_failure(bare_api: RuntimeApi, log: Path) -> None:
    async with function(without_wrapper("app.buffered"), log, handler="app.buffered", api=bare_api.address):
        paths = ("/identity", "/fails-early", "/identity")
        first, failed, last = [await (await bare_api.call(path)).json() for path in paths]
    assert failed["errorMessage"] == "before the first byte"
    assert (first["statusCode"], last["statusCode"]) == (201, 201)
    assert json.loads(first["body"])["loop"] == json.loads(last["body"])["loop"]
