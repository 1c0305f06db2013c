"""`make test-arm64`: what `make build` made answers on an arm64 Python 3.13, emulated where the CPU is another.

Not part of `make test`: emulated, an import of the layer takes twelve times as long.
"""

import json
from dataclasses import replace

import pytest

from local.aws import Aws
from local.interpreters import built_for
from local.model import OfflineModel
from local.template import ROOT, Function
from tests.fixtures.product import running_product
from tests.fixtures.stream import check_order
from tests.sam.builds import Build

PATIENCE = 900.0
# Nothing may take its own slowness for a failure.
UNHURRIED = {
    "TICK_SECONDS": "2",
    "LEASE_SECONDS": "300",
    "MODEL_TIMEOUT_SECONDS": "300",
    "MONGODB_TIMEOUT_SECONDS": "120",
    "LOG_LEVEL": "INFO",
}

pytestmark = pytest.mark.timeout(4 * PATIENCE)


@pytest.fixture(scope="module")
def deployed() -> Build:
    """What the last `make build` left, which `make deploy` uploads."""
    return Build(ROOT / ".aws-sam" / "build", "")


def unhurried(function: Function) -> Function:
    return replace(function, timeout=PATIENCE)


def test_it_is_the_artifact_of_lambda_and_its_python_starts(deployed: Build) -> None:
    assert built_for(deployed.packages) == ("3.13", "aarch64")
    done = deployed.run_python("import platform; print(platform.machine(), '%d.%d' % sys.version_info[:2])")
    assert done.stdout.split() == ["aarch64", "3.13"]


async def test_it_chats_lists_and_summarizes(deployed: Build, mongod: str, aws: Aws, model: OfflineModel) -> None:
    options = {"template": deployed.template, "environment": UNHURRIED, "change": unhurried}
    emulator = {"sqs": None, "start_seconds": PATIENCE}
    async with running_product(mongod, aws, model, emulator=emulator, **options) as product:
        product.http.timeout = PATIENCE
        user = product.user()
        async with user.asking("[tool:days_between] How many days are there?") as answer:
            events = await answer.rest()
        check_order(events)
        assert [event["type"] for event in events].count("tool-output-available") == 1
        assert answer.text
        await user.ask("[echo:A summary stops before the last turn]")
        listed = (await user.call("GET", "/sessions")).json()["sessions"]
        assert [session["id"] for session in listed] == [user.session]
        summarized = await product.emulator.invoke("summary", json.dumps({"session_id": user.key}).encode())
        assert json.loads(summarized.payload)["status"] == "summarized"
