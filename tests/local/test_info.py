"""What the playground is told about the stack is what the functions go by."""

from pathlib import Path

from local.info import StackInfo
from local.template import Function, Template
from tests.fixtures.functions import functions_with

PROJECT = """
from omniagent import Agent, Project, tool
print("a line of the project's own")


@tool
def refund(order_id: str) -> str:
    \"\"\"Refund an order.\"\"\"
    return "done"


agent = Agent(name="shop", instructions={instructions}, tools=[refund], model={model!r})
project = Project(agent=agent, settings={{"max_steps": 3, "context_max_turns": 7}})
"""


def chat(folder: Path, project: str) -> Function:
    arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:x"
    template = Template(parameters={"MongoSecretArn": arn, "OpenAISecretArn": arn})
    return template.function("chat").having(code=functions_with(folder, project=project))


async def test_the_project_is_described_as_its_source_is_now(tmp_path: Path) -> None:
    function = chat(tmp_path, PROJECT.format(instructions="'Be kind.'", model="acme/one"))
    info = StackInfo([function], {"MAX_STEPS": "5"})
    told, agent = await info.tell(), await info.agent()
    # Its settings are told, and the environment wins over them.
    assert (told["model"], told["max_steps"], told["context_max_turns"]) == ("acme/one", 5, 7)
    assert told["window_tokens"] == 28_000, "the rest is for the question and its answer"
    assert (agent["name"], agent["model"]) == ("shop", "acme/one")
    assert (agent["instructions"], agent["made_by"]) == ("Be kind.", None)
    # Without a title and suggestions of its own, they are its name and what its tools do.
    assert [(told["title"], told["suggestions"]) for told in told["agents"]] == [("Shop", ["Refund an order"])]
    [refund] = agent["tools"]
    assert (refund["name"], refund["description"]) == ("refund", "Refund an order.")
    assert list(refund["parameters"]["properties"]) == ["order_id"]

    project = tmp_path / "project.py"
    project.write_text(PROJECT.format(instructions="lambda context: context.deps.kindness", model="acme/two"))
    told, agent = await info.tell(), await info.agent()
    assert told["model"] == "acme/two"
    assert "cannot be called outside a turn: AttributeError" in agent["instructions"]
    assert agent["made_by"] == "<lambda>"

    # One that cannot be read leaves the environment.
    project.write_text("import nonesuch")
    told, agent = await info.tell(), await info.agent()
    assert (told["max_steps"], told["context_max_turns"]) == (5, 30)
    assert set(agent) == {"error", "problem"}
    problem = {"title": "project.py does not load, line 1"}
    problem["detail"] = "ModuleNotFoundError: No module named 'nonesuch'\nimport nonesuch"
    assert told["agents"][0]["problem"] == agent["problem"] == problem
    assert "No module named 'nonesuch'" in agent["error"]
    assert "project.py" in agent["error"]
