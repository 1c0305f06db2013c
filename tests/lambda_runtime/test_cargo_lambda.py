"""A second opinion on the protocol: an emulator of Lambda that is not ours."""

from pathlib import Path

import httpx

from tests.lambda_runtime.cargo_lambda import cargo_lambda
from tests.lambda_runtime.processes import Meeting, function, through_wrapper


async def test_responses_arrive_as_sent_through_a_third_partys_function_url(
    tmp_path: Path, layer: Path, log: Path, stage: Meeting
) -> None:
    async with (
        cargo_lambda(tmp_path) as emulator,
        function(through_wrapper(layer), log, handler="app.handler", api=emulator.runtime_api, MEETING=stage.path),
        httpx.AsyncClient(timeout=None) as client,
    ):
        # Without a query this emulator says null where Lambda says "".
        async with client.stream("POST", f"{emulator.url}/events?a=1", json={"id": "s-1"}) as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == "text/event-stream"
            assert response.headers["x-session-id"] == "s-1"
            assert response.headers.get_list("set-cookie") == ["a=1; Path=/", "b=2"]
            number = 0
            async for event in response.aiter_raw():
                assert event == b"data: %d\n\n" % number
                assert await stage.hear() == f"sent {number}"
                number += 1
            assert number == 3
        empty = await client.get(f"{emulator.url}/empty?a=1")
        assert (empty.status_code, empty.headers["x-answer"], empty.content) == (204, "none", b"")
        assert await stage.hear() == "sent"
