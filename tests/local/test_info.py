"""What the playground is told about the stack is what the functions go by."""

from pathlib import Path

from local.info import StackInfo
from local.template import Function, Template
from tests.fixtures.functions import functions_with

PROJECT = """
from omniagent import Agent, Project
print("a line of the project's own")
agent = Agent("helper", "Be brief.", model={model!r})
project = Project(agent=agent, settings={{"max_steps": 3, "context_max_turns": 7}})
"""


def chat(folder: Path, project: str) -> Function:
    arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:x"
    template = Template(parameters={"MongoSecretArn": arn, "OpenAISecretArn": arn})
    return template.function("chat").having(code=functions_with(folder, project=project))


async def test_the_projects_own_settings_are_told_and_the_environment_wins_over_them(tmp_path: Path) -> None:
    function = chat(tmp_path, PROJECT.format(model="acme/one"))
    info = StackInfo([function], {"MAX_STEPS": "5"}, offline=False)
    told = await info.tell()
    assert (told["model"], told["max_steps"], told["context_max_turns"]) == ("acme/one", 5, 7)
    # After a change it is read again.
    (tmp_path / "project.py").write_text(PROJECT.format(model="acme/two"))
    assert (await info.tell())["model"] == "acme/two"


async def test_a_project_that_cannot_be_read_leaves_the_environment(tmp_path: Path) -> None:
    told = await StackInfo([chat(tmp_path, "raise RuntimeError")], {"MAX_STEPS": "5"}, offline=True).tell()
    assert (told["model"], told["max_steps"], told["context_max_turns"]) == ("offline", 5, 30)


AGENT = """
from omniagent import Agent, Project, tool


@tool
def refund(order_id: str) -> str:
    \"\"\"Refund an order.\"\"\"
    return "done"


project = Project(agent=Agent(name="shop", instructions={instructions}, tools=[refund], model="acme/one"))
"""


async def test_the_agent_is_described_as_its_source_is_now(tmp_path: Path) -> None:
    project = tmp_path / "project.py"
    info = StackInfo([chat(tmp_path, AGENT.format(instructions="'Be kind.'"))], {}, offline=False)
    agent = await info.agent()
    assert (agent["name"], agent["model"]) == ("shop", "acme/one")
    assert (agent["instructions"], agent["made_by"]) == ("Be kind.", None)
    [refund] = agent["tools"]
    assert (refund["name"], refund["description"]) == ("refund", "Refund an order.")
    assert list(refund["parameters"]["properties"]) == ["order_id"]

    project.write_text(AGENT.format(instructions="lambda context: context.deps.kindness"))
    agent = await info.agent()
    assert "cannot be called outside a turn: AttributeError" in agent["instructions"]
    assert agent["made_by"] == "<lambda>"

    project.write_text("import nonesuch")
    agent = await info.agent()
    assert list(agent) == ["error"]
    assert "No module named 'nonesuch'" in agent["error"]
    assert "project.py" in agent["error"]
