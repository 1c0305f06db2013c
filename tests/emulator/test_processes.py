"""The processes of a function: when they start, what they get, how they end."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from local.emulator import Emulator, State, Throttled
from tests.emulator.conftest import Start, toy
from tests.fixtures.calls import eventually
from tests.fixtures.meetings import Meeting


async def call(emulator: Emulator, order: dict[str, Any] | None = None, function: str = "plain") -> Any:
    result = await emulator.invoke(function, json.dumps(order or {}).encode())
    return json.loads(result.payload)


async def test_a_process_that_answered_but_is_not_done_is_waited_for_or_left_alone(
    start: Start, http: httpx.AsyncClient, gate: Meeting
) -> None:
    emulator = await start(toy("stream"))
    url = emulator.url_of("stream")
    first = await http.get(url + "/?after=1")
    _, let_on = await gate.arrival()
    second = await http.get(url)
    assert first.text == second.text
    assert len(emulator.processes("stream")) == 2
    let_on()


async def test_a_spare_process_is_ready_before_the_next_call_comes(
    start: Start, http: httpx.AsyncClient, gate: Meeting
) -> None:
    emulator = await start(toy("stream"), spare={"stream": b"{}"})
    url = emulator.url_of("stream")
    busy = asyncio.create_task(http.get(url + "/?gate=1&events=1"))
    _, let_on = await gate.arrival()
    spare = await eventually(lambda: [each for each in emulator.processes("stream") if each.state is State.IDLE])
    held = asyncio.create_task(http.get(url + "/?gate=1&events=1"))
    _, let_other_on = await gate.arrival()
    assert spare[0].pid in {each.pid for each in emulator.running("stream")}
    let_on()
    let_other_on()
    await asyncio.gather(busy, held)


async def test_calls_beyond_the_limit_are_refused(start: Start, http: httpx.AsyncClient, gate: Meeting) -> None:
    emulator = await start(toy("stream", concurrency=2))
    url = emulator.url_of("stream")
    held = [asyncio.create_task(http.get(url + "/?gate=1&events=1")) for _ in range(2)]
    arrivals = [await gate.arrival() for _ in range(2)]
    refused = await http.get(url)
    assert refused.status_code == 429
    with pytest.raises(Throttled):
        await emulator.invoke("stream", b"{}")
    for _, let_on in arrivals:
        let_on()
    assert [response.status_code for response in await asyncio.gather(*held)] == [200, 200]
    assert (await http.get(url)).status_code == 200


async def test_a_function_is_killed_at_its_timeout(start: Start, http: httpx.AsyncClient) -> None:
    emulator = await start(toy("plain", timeout=0.5))
    result = await emulator.invoke("plain", b'{"do": "hang"}')
    assert result.error_type == "Sandbox.Timedout"
    assert "Task timed out after 0.50 seconds" in json.loads(result.payload)["errorMessage"]
    response = await http.post(emulator.url_of("plain"), json={"do": "hang"})
    assert (response.status_code, response.text) == (502, "Internal Server Error")
    assert emulator.processes("plain") == []


def kernel_state(pid: int) -> str:
    """Return the state letter of a process that is being stopped, once that has happened."""
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_process_is_frozen_between_invocations_on_request(start: Start) -> None:
    emulator = await start(toy("plain"), freeze=True)
    pids = set()
    for _ in range(3):
        pids.add((await call(emulator))["pid"])
        await emulator.settled()
        [process] = emulator.processes("plain")
        assert process.state is State.IDLE
        assert kernel_state(process.pid) == "T"
    assert len(pids) == 1


async def test_the_environment_is_lambdas_and_nothing_of_the_callers(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLERS_SECRET", "x")
    function = toy("plain", environment={"OWN": "1", "AWS_REGION": "mars"}, memory=256, log_group="/logs/plain")
    emulator = await start(function, environment={"SHARED": "2"})
    environment = await call(emulator, {"do": "environment"})
    expected = {
        "OWN": "1",
        "SHARED": "2",
        "_HANDLER": "app.handler",
        "AWS_EXECUTION_ENV": "AWS_Lambda_python3.13",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
        "AWS_LAMBDA_FUNCTION_NAME": "toy-plain",
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_LOG_GROUP_NAME": "/logs/plain",
        "AWS_REGION": "us-east-1",
        "LAMBDA_TASK_ROOT": str(function.code),
    }
    assert expected.items() <= environment.items()
    assert environment["_X_AMZN_TRACE_ID"].startswith("Root=1-")
    assert not {"CALLERS_SECRET", "HOME", "USER", "PYTEST_CURRENT_TEST"} & environment.keys()


HOLDER = """
import asyncio, sys
from local.emulator import Emulator
from tests.emulator.conftest import toy

async def main():
    async with Emulator([toy("plain")], freeze=True) as emulator:
        await emulator.invoke("plain", b"{}")
        await emulator.settled()
        print(emulator.processes("plain")[0].pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent")
async def test_a_frozen_process_does_not_outlive_an_emulator_that_was_killed() -> None:
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    watched = os.pidfd_open(int(await holder.stdout.readline()))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, ended.set)
    holder.kill()
    await asyncio.wait_for(ended.wait(), 60)
    asyncio.get_running_loop().remove_reader(watched)
    os.close(watched)
    await holder.wait()
