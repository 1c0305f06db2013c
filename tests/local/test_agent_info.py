"""What the page is told about the agent: its instructions and tools, or why it cannot be loaded."""

from pathlib import Path

import pytest

from local.agent_info import AgentInfo
from local.template import ROOT, Function

AGENT = """
from omniagent import Agent, Project, tool

print("noise of the project")


@tool
def refund(order_id: str) -> str:
    \"\"\"Refund an order.\"\"\"
    return "done"


project = Project(agent=Agent(name="shop", instructions={instructions}, tools=[refund], model="acme/one"))
"""


@pytest.fixture
def info(tmp_path: Path) -> AgentInfo:
    function = Function("ChatFunction", code=tmp_path, handler="x.handler", layers=(ROOT / "layers" / "core",))
    return AgentInfo(function, {}, built=False)


async def test_the_agent_is_described_as_its_source_is_now(info: AgentInfo, tmp_path: Path) -> None:
    project = tmp_path / "project.py"
    project.write_text(AGENT.format(instructions="'Be kind.'"))
    described = await info.describe()
    assert (described["name"], described["model"]) == ("shop", "acme/one")
    assert (described["instructions"], described["made_by"]) == ("Be kind.", None)
    [refund] = described["tools"]
    assert (refund["name"], refund["description"]) == ("refund", "Refund an order.")
    assert list(refund["parameters"]["properties"]) == ["order_id"]

    project.write_text(AGENT.format(instructions="lambda context: context.deps.kindness"))
    described = await info.describe()
    assert "cannot be called outside a turn: AttributeError" in described["instructions"]
    assert described["made_by"] == "<lambda>"

    project.write_text("import nonesuch")
    described = await info.describe()
    assert list(described) == ["error"]
    assert "No module named 'nonesuch'" in described["error"]
    assert "project.py" in described["error"]
