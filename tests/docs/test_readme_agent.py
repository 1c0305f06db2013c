"""The README's agent, pasted over `functions/agent.py`."""

from collections.abc import Iterator

import httpx
import pytest

from local.aws import Aws
from local.background import BackgroundStack
from local.template import ROOT
from tests.docs.blocks import read_blocks
from tests.fixtures.endings import PATIENCE_SECONDS
from tests.fixtures.stack import stack_with


@pytest.fixture(scope="module")
def pasted(mongod: str, aws: Aws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundStack]:
    """What `make run` starts, after the paste."""
    [agent] = [block.text for block in read_blocks(ROOT / "README.md") if block.runs]
    with stack_with(mongod, aws, tmp_path_factory.mktemp("pasted") / "functions", agent=agent) as stack:
        yield stack


def test_a_pasted_agent_refunds_and_waits_for_an_approval(pasted: BackgroundStack) -> None:
    with httpx.Client(base_url=pasted.url, timeout=PATIENCE_SECONDS, trust_env=False) as http:

        def ask(**body: object) -> dict[str, object]:
            answer: dict[str, object] = http.post("/chat?stream=false", json=body).json()
            return answer

        small = ask(query="Refund order 1002")
        assert (small["status"], "15 euros" in str(small["text"])) == ("complete", True)
        unknown = ask(query="Refund order 7")
        assert "There is no order 7" in str(unknown["text"])
        large = ask(query="Refund order 1001", session_id="large")
        assert large["status"] == "waiting"
        [request] = http.get("/approvals").json()["approvals"]
        reply = {"tool_call_id": request["toolCallId"], "approved": True}
        paid = ask(session_id="large", replies=[reply])
        assert (paid["status"], "80 euros" in str(paid["text"])) == ("complete", True)
