"""The public surface: what a team may import, and what importing it costs."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import omniagent
from local.template import ROOT
from omniagent import errors
from tests.docs.blocks import PAGES, read_blocks

PUBLIC = [
    "Agent",
    "AnswerStream",
    "Approver",
    "Budget",
    "Callbacks",
    "ClientTool",
    "ConfigurationError",
    "DataChunk",
    "DocumentModels",
    "FallbackProvider",
    "Feedback",
    "Gate",
    "InMemorySessionManager",
    "InMemoryStore",
    "LLMProvider",
    "Ledger",
    "MemoryLedger",
    "MemoryRegistry",
    "Message",
    "ModelFinish",
    "ModelReasoning",
    "ModelReasoningDone",
    "ModelRequest",
    "ModelText",
    "ModelToolCall",
    "ModelToolDelta",
    "ModelToolStart",
    "MongoBackendAdapter",
    "MongoSessionManager",
    "MongoTurnRegistry",
    "OmniAgentError",
    "OmniAgentInstrumentor",
    "Overrides",
    "Project",
    "ProviderPool",
    "Query",
    "ReasoningDelta",
    "RunContext",
    "RunResult",
    "Runner",
    "ScriptedModel",
    "Session",
    "SessionAddress",
    "SessionManager",
    "Settings",
    "StreamEvent",
    "Summary",
    "TextDelta",
    "Tool",
    "ToolApprovalRequest",
    "ToolCall",
    "ToolError",
    "ToolInputAvailable",
    "ToolOutputAvailable",
    "ToolOutputError",
    "ToolReply",
    "ToolRequest",
    "TurnHooks",
    "TurnRegistry",
    "Usage",
    "User",
    "ask_user",
    "client_tool",
    "get_llm_provider",
    "register_provider",
    "setup_logging",
    "tool",
    "trace_operation",
]


def test_the_public_names_are_these() -> None:
    assert omniagent.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_is_there_and_lives_in_the_package(name: str) -> None:
    public = getattr(omniagent, name)
    assert public.__module__.startswith("omniagent.")
    assert getattr(import_module(public.__module__), name) is public


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_is_documented(name: str) -> None:
    """With words of its own: a base class describes something else, a dataclass only its signature."""
    documentation = vars(getattr(omniagent, name)).get("__doc__") or getattr(omniagent, name).__doc__
    assert documentation
    assert not documentation.startswith(f"{name}(")
    assert documentation not in [base.__doc__ for base in getattr(getattr(omniagent, name), "__mro__", ())[1:]]


TEAM_CODE = [
    *PAGES,
    *sorted((ROOT / "examples").glob("*.py")),
    *sorted((ROOT / "functions").glob("*.py")),
]


@pytest.mark.parametrize("path", TEAM_CODE, ids=[str(path.relative_to(ROOT)) for path in TEAM_CODE])
def test_what_a_team_is_shown_to_write_imports_public_names_only(path: Path) -> None:
    shown = "".join(block.text for block in read_blocks(path) if block.runs) if path in PAGES else path.read_text()
    imports = set(re.findall(r"^ *(?:from|import) (omniagent\S*)", shown, re.MULTILINE))
    # The errors have a module of their own. A page compares its own code with what the run function sends.
    assert imports <= {"omniagent", "omniagent.errors", "omniagent.server", "omniagent.app.webhook"}


def test_another_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = omniagent.Nothing


def test_importing_the_package_loads_nothing_that_is_not_asked_for() -> None:
    """Cold starts are paid for by the name: errors and tools need no driver and no SDK."""
    heavy = ["openai", "beanie", "pymongo", "boto3", "fastapi", "opentelemetry.sdk"]
    code = f"import sys, omniagent, omniagent.errors; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def _tree(kind: type[errors.OmniAgentError]) -> list[type[errors.OmniAgentError]]:
    below = [each for each in kind.__subclasses__() if each.__module__.startswith(f"{errors.__name__}.")]
    return [kind, *(deeper for each in below for deeper in _tree(each))]


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    drawn = [line.split()[-1] if "──" not in line else line.split("──")[1].split()[0] for line in _drawing()]
    assert drawn == [kind.__name__ for kind in _tree(errors.OmniAgentError)]


def _drawing() -> list[str]:
    lines = (errors.__doc__ or "").splitlines()
    return [line for line in lines if line == "OmniAgentError" or "──" in line]


def test_every_error_has_a_public_text_a_code_and_a_status() -> None:
    renamed = {}
    for kind in _tree(errors.OmniAgentError):
        assert kind.public.endswith((".", "it."))
        assert kind.title == kind.code.replace("_", " ").capitalize()
        assert 400 <= kind.status < 600
        if kind.code.replace("_", "") != kind.__name__.lower():
            renamed[kind.__name__] = kind.code
    assert renamed == {
        "OmniAgentError": "internal_error",
        "RequestError": "bad_request",
        "NotAllowed": "method_not_allowed",
        **dict.fromkeys(["UnknownModelError", "ContractError", "RegistryMisconfigured"], "configuration_error"),
    }
    for kind in (errors.TurnInProgress, errors.TooManyTurns, errors.StorageUnavailable, errors.RegistryUnavailable):
        assert kind.retry_after is not None
