"""Threads of sync tools: bounded, refused when full, and no obstacle to the end of the process."""

import asyncio
import subprocess
import sys
import threading

import pytest

from omniagent.ai.tools import ToolThreads
from omniagent.errors import ToolError, ToolsBusy


async def test_hung_calls_that_nobody_waits_for_still_count_and_the_next_is_refused_at_once() -> None:
    threads = ToolThreads(limit=3)
    release, running = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        running.release()
        release.wait()

    calls = [asyncio.create_task(threads.run(hang)) for _ in range(3)]
    await asyncio.to_thread(lambda: [running.acquire() for _ in range(3)])
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    with pytest.raises(ToolsBusy, match="All 3 threads for tools are busy") as refused:
        await threads.run(lambda: "never")
    assert isinstance(refused.value, ToolError)
    release.set()


async def test_errors_come_back_as_they_were_and_free_the_thread() -> None:
    def fail() -> None:
        raise StopIteration("unknown city")

    threads = ToolThreads(limit=1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(fail)


@pytest.mark.timeout(60)
def test_a_hung_tool_does_not_keep_the_process_alive() -> None:
    code = """
import asyncio, threading
from omniagent.ai.tools import tool_threads
async def main():
    started = threading.Event()
    call = asyncio.create_task(tool_threads.run(lambda: (started.set(), threading.Event().wait())))
    while not started.is_set():
        await asyncio.sleep(0)
    call.cancel()
asyncio.run(main())
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ended\n"
