"""The wheel alone is a library with MongoDB; a server and AWS are extras."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.model import OfflineModel
from tests.package.wheels import Environment, new_environment

PROGRAMS = Path(__file__).parent
SERVER_ONLY = ("fastapi", "starlette", "jwt", "opentelemetry.sdk", "opentelemetry.exporter")
LAMBDA_ONLY = ("aws_lambda_powertools", "awslambdaric", "boto3", "botocore", "mangum")
WHICH = """
import json, sys
from importlib.util import find_spec
def found(name):
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
print(json.dumps([name for name in sys.argv[1:] if found(name)]))
"""


@pytest.fixture
def services(mongod: str) -> Iterator[dict[str, str]]:
    """A database of the test's own, and the offline model."""
    with OfflineModel() as model:
        yield {
            "MONGODB_URI": mongod,
            "MONGODB_DATABASE": f"package-{uuid.uuid4().hex[:8]}",
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": "offline",
        }


def found(environment: Environment, *modules: str) -> list[str]:
    names: list[str] = json.loads(environment.run("python", "-I", "-c", WHICH, *modules).stdout)
    return names


def test_the_library_alone_runs_stores_and_needs_no_server(bare: Environment, services: dict[str, str]) -> None:
    assert found(bare, "omniagent", "pymongo", *SERVER_ONLY, *LAMBDA_ONLY) == ["omniagent", "pymongo"]
    done = bare.run("python", "-I", PROGRAMS / "library_program.py", **services)
    stored = [("user", "complete"), ("assistant", "complete")]
    assert done.stdout == f"in memory: complete It is 42.\nstored: {stored}\n", done.stderr


def test_a_server_without_its_extra_names_what_to_install(bare: Environment) -> None:
    done = bare.run("python", "-I", "-c", "from omniagent.server import sessions_app")
    assert done.stderr.splitlines()[-1] == (
        "ImportError: omniagent.server.sessions_app needs fastapi: pip install 'omniagent[server]'"
    )


def test_the_server_extra_serves_chat_and_sessions_without_aws(
    wheel: Path, services: dict[str, str], tmp_path: Path
) -> None:
    server = new_environment(tmp_path / "venv", f"{wheel}[server]", "httpx")
    assert found(server, *LAMBDA_ONLY) == []
    done = server.run("python", "-I", PROGRAMS / "server_program.py", **services)
    assert done.stdout == "data: [DONE]\n['s1']\n", done.stderr
