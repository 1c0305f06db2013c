"""The functions as they are deployed: what `sam build` made, on a bare Python: Lambda's 3.13 where it can be had."""

import json
from pathlib import Path

import pytest

from local.aws import Aws
from local.interpreters import PYTHONS, built_for
from local.model import OfflineModel
from local.template import ROOT
from tests.fixtures.product import running_product
from tests.fixtures.stream import check_order
from tests.sam.builds import Build

# The build itself, when no other test has made it before.
pytestmark = pytest.mark.timeout(900)


async def test_the_built_functions_chat_list_and_summarize(
    here_build: Build, mongod: str, cloud: Aws, model: OfflineModel
) -> None:
    async with running_product(mongod, cloud, model, template=here_build.template, emulator={"sqs": None}) as product:
        user = product.user()
        with product.wire.held() as gate:
            async with user.asking("[slow:1][echo:Built, and streamed word by word]") as answer:
                # The stream has begun while the model is still held back: nothing waits for the whole.
                first = await answer.until("start")
                gate.open()
                events = [first, *await answer.rest()]
        check_order(events)
        assert answer.text == "Built, and streamed word by word"
        await user.ask("A summary stops before the last turn")
        listed = (await user.call("GET", "/sessions")).json()["sessions"]
        assert [session["id"] for session in listed] == [user.session]
        summarized = await product.emulator.invoke("summary", json.dumps({"session_id": user.key}).encode())
        assert json.loads(summarized.payload) | {"status": "summarized", "end_turn_number": 1} == json.loads(
            summarized.payload
        )
        for process in product.emulator.processes():
            check_files(process.pid, here_build)


def check_files(pid: int, build: Build) -> None:
    """A process is of the Python that the build is for, and has nothing of the repository or its environment."""
    process = Path("/proc") / str(pid)
    target = built_for(build.packages)
    if process.is_dir() and target:  # not on every system
        mapped = (process / "maps").read_text().replace(str(PYTHONS), "")
        assert str(build.packages) in mapped
        assert f"python{target[0]}" in mapped
        assert str(ROOT) not in mapped
        assert f"PYTHONPATH={ROOT}" not in (process / "environ").read_text()
