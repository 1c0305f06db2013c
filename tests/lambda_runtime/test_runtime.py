"""The streaming runtime: a real process, started through the wrapper, before a Runtime API that sees every chunk."""

import asyncio
import json
import sys
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

from tests.fixtures.meetings import Meeting
from tests.lambda_runtime.processes import TASK, Start
from tests.lambda_runtime.runtime_api import RuntimeApi, url_event


async def test_each_event_arrives_before_the_next_is_sent(api: RuntimeApi, stage: Meeting) -> None:
    request_id = api.invoke(url_event("/events"))
    post = await api.posted()
    assert post.path == f"/invocation/{request_id}/response"
    assert post.headers["lambda-runtime-function-response-mode"] == "streaming"
    assert post.headers["transfer-encoding"] == "chunked"
    assert post.headers["content-type"] == "application/vnd.awslambda.http-integration-response"
    await post.prelude()
    for number in range(3):
        assert await post.chunk() == b"data: %d\n\n" % number
        assert post.chunks.empty()
        assert await stage.hear() == f"sent {number}"
    assert await post.rest() == []
    assert post.trailers == {}
    await post.closed.wait()


async def test_a_response_begins_before_its_process_goes_on_with_other_work(api: RuntimeApi, stage: Meeting) -> None:
    api.invoke(url_event("/occupied"))
    async with asyncio.timeout(60):
        post = await api.posted()
        await post.prelude()
        assert await post.chunk() == b"first"
    assert await stage.hear() == "occupied"
    assert await post.rest() == [b"last"]


async def test_the_invocation_id_is_echoed_where_there_is_one(api: RuntimeApi) -> None:
    name = "Lambda-Runtime-Invocation-Id"
    for path, sent in (("/burst", {name: "i-1"}), ("/burst", {}), ("/fails-early", {name: "i-2"})):
        assert (await api.call(path, **sent)).headers.get(name.lower()) == sent.get(name)


async def test_a_failure_before_the_first_byte_is_a_function_error(api: RuntimeApi) -> None:
    request_id = api.invoke(url_event("/fails-early"))
    post = await api.posted()
    assert post.path == f"/invocation/{request_id}/error"
    error = await post.json()
    assert (error["errorType"], error["errorMessage"]) == ("RuntimeError", "before the first byte")


async def test_a_failure_after_the_first_byte_goes_as_trailers_and_to_the_log(
    api: RuntimeApi, logged: Callable[[], str]
) -> None:
    request_id = api.invoke(url_event("/fails-late"))
    post = await api.posted()
    declared = {name.strip().lower() for name in post.headers["trailer"].split(",")}
    await post.prelude()
    assert await post.rest() == [b"half of"]
    assert set(post.trailers) == declared
    assert post.trailers["lambda-runtime-function-error-type"] == "RuntimeError"
    error = json.loads(b64decode(post.trailers["lambda-runtime-function-error-body"]))
    assert error["errorType"] == "RuntimeError"
    assert error["errorMessage"].startswith("after the first byte")
    assert error["requestId"] == request_id
    assert sum(map(len, post.trailers.values())) < 4000
    assert request_id in logged()
    assert "in fails_late" in logged()


async def test_an_app_that_stops_short_of_its_last_byte_has_failed(api: RuntimeApi) -> None:
    post = await api.call("/stops-short")
    await post.rest()
    assert post.trailers["lambda-runtime-function-error-type"] == "RuntimeError"


async def test_a_failure_after_the_last_byte_leaves_the_response_as_it_is(
    api: RuntimeApi, logged: Callable[[], str]
) -> None:
    post = await api.call("/fails-when-done")
    assert (await post.prelude())["statusCode"] == 500
    assert await post.rest() == [b"sorry"]
    assert post.trailers == {}
    await post.closed.wait()
    assert "told already" in logged()


async def test_an_empty_response_is_never_a_prelude_without_a_body(api: RuntimeApi, stage: Meeting) -> None:
    post = await api.call("/empty")
    head = await post.prelude()
    assert head["statusCode"] == 204
    assert head["headers"]["x-answer"] == "none"
    assert "content-length" not in head["headers"]
    assert await post.rest() == [b"\n"]
    assert await stage.hear() == "sent"


async def test_pieces_that_wait_together_share_a_frame(api: RuntimeApi) -> None:
    post = await api.call("/burst")
    await post.prelude()
    chunks = await post.rest()
    assert b"".join(chunks).split() == [b"%d" % number for number in range(100)]
    assert chunks[0] == b"0 ", "the first goes with the head"
    assert len(chunks) < 20, "what waits is sent together"


async def test_a_slow_reader_slows_the_app_instead_of_filling_memory(
    bare_api: RuntimeApi, start: Start, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    counter.write_bytes(bytes(8))
    async with start(COUNTER=str(counter)):
        post = await bare_api.call("/flood")
        await post.prelude()
        seen = 0
        while (chunk := await post.chunks.get()) is not None:
            seen += len(chunk)
            let_go = int.from_bytes(counter.read_bytes(), "big")
            # The sockets of both ends hold up to 6 MB; without back-pressure all 64 would be let go at once.
            assert let_go - seen < 16 * 2**20
        assert seen == 64 * 2**20


async def test_the_app_runs_to_its_end_when_the_runtime_api_hangs_up(
    api: RuntimeApi, stage: Meeting, logged: Callable[[], str]
) -> None:
    post = await api.call("/abandoned")
    await post.prelude()
    assert await post.chunk() == b"first"
    api.hang_up()
    assert await stage.hear() == "begun"
    assert await stage.hear() == "finished"
    assert len(await (await api.call("/burst")).rest()) > 0, "the process serves on"
    assert "response lost" in logged()


async def test_a_refused_response_is_logged_and_the_process_serves_on(
    api: RuntimeApi, logged: Callable[[], str]
) -> None:
    api.verdict = 413
    await (await api.call("/burst")).rest()
    api.verdict = 202
    await (await api.call("/burst")).rest()
    assert "refused the response: 413" in logged()


async def test_invocations_share_one_process_and_one_event_loop(api: RuntimeApi) -> None:
    loops = set()
    for _ in range(3):
        post = await api.call("/identity")
        await post.prelude()
        answer = await post.json()
        loops.add((answer["pid"], answer["loop"]))
        await (await api.call("/fails-early")).json()
    assert len(loops) == 1


async def test_what_an_invocation_leaves_is_collected_before_the_next_one(api: RuntimeApi) -> None:
    left = []
    for _ in range(3):
        post = await api.call("/garbage")
        await post.prelude()
        left.append((await post.json())["left"])
    assert left == [0, 0, 0]


async def test_the_path_is_the_functions_then_the_layers(api: RuntimeApi, layer: Path) -> None:
    post = await api.call("/identity")
    await post.prelude()
    answer = await post.json()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert answer["path"][:3] == [
        str(TASK),
        str(layer / "python" / "lib" / version / "site-packages"),
        str(layer / "python"),
    ]
    assert Path(answer["package"]).is_relative_to(layer)


async def test_a_function_that_cannot_be_loaded_is_an_init_error(bare_api: RuntimeApi, start: Start) -> None:
    async with start(handler="broken.handler") as process:
        post = await bare_api.posted()
        assert post.path == "/init/error"
        assert (await post.json())["errorMessage"] == "no luck at import"
        assert await process.wait() == 1


async def test_a_shared_process_fails_one_invocation_while_another_streams(
    start: Start, bare_api: RuntimeApi, stage: Meeting, logged: Callable[[], str]
) -> None:
    deadline = {"Lambda-Runtime-Deadline-Ms": str(int(time.time() * 1000) + 60_000)}
    async with start(handler="app.streaming", AWS_LAMBDA_MAX_CONCURRENCY="2"):
        bare_api.invoke(url_event("/events"), **deadline)
        events = await bare_api.posted()
        await events.prelude()
        assert await events.chunk() == b"data: 0\n\n"
        request_id = bare_api.invoke(url_event("/fails-early"), **deadline, **{"Lambda-Runtime-Invocation-Id": "i-2"})
        failed = await bare_api.posted()
        assert failed.path == f"/invocation/{request_id}/error"
        assert failed.headers["lambda-runtime-function-error-type"] == "RuntimeError"
        assert failed.headers["lambda-runtime-invocation-id"] == "i-2"
        assert (await failed.json())["errorMessage"] == "before the first byte"
        for _ in range(3):
            await stage.hear()
        assert await events.rest() == [b"data: 1\n\n", b"data: 2\n\n"]
    assert "before the first byte" in logged()


async def test_a_shared_process_needs_a_handler_for_several_requests(start: Start, logged: Callable[[], str]) -> None:
    async with start(handler="app.plain", AWS_LAMBDA_MAX_CONCURRENCY="2") as process:
        assert await process.wait() != 0
    assert "app.plain serves one request at a time" in logged()
