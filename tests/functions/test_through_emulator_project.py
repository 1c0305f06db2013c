"""What a team registers once in project.py, and the packages it may import, in all functions."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from local.aws import Aws
from local.model import OfflineModel
from local.template import Function
from omniagent.session.ids import session_key, user_id_of
from tests.fixtures.functions import functions_with
from tests.fixtures.product import Product, running_product

PROJECTS = Path(__file__).parent / "projects"
FUNCTIONS = ("chat", "sessions", "summary", "run")

RunProject = Callable[..., AbstractAsyncContextManager[Product]]


@pytest.fixture
def run_project(mongod: str, cloud: Aws, model: OfflineModel, tmp_path: Path) -> RunProject:
    """Runs the functions with other modules: `run_project(project=…, requirements="…")`."""

    @asynccontextmanager
    async def run(requirements: str = "", **modules: Path | str) -> AsyncIterator[Product]:
        code = functions_with(tmp_path, **modules)
        if requirements:
            (code / "requirements.txt").write_text(requirements)

        def change(function: Function) -> Function:
            return function.having(code=code)

        options = {"functions": FUNCTIONS, "emulator": {"sqs": None}}
        async with running_product(mongod, cloud, model, change=change, **options) as product:
            yield product

    return run


async def test_what_is_registered_once_is_used_by_all_functions(run_project: RunProject) -> None:
    async with run_project(project=PROJECTS / "acme.py") as product:
        user = product.user()
        await user.ask("Hello")
        async with user.asking("A summary stops before the last turn") as answer:
            await answer.rest()
        assert answer.text == "acme-1 answers"
        named = await user.call("POST", "/sessions/{}/name")
        assert named.json()["name"] == "acme-1 answers"
        done = await product.emulator.invoke("summary", json.dumps({"session_id": user.key}).encode())
        assert json.loads(done.payload)["status"] == "summarized"

        scheduled = {"kind": "schedule", "schedule": "daily", "time": "2026-01-02T03:00:00Z", "user": "acme:ada"}
        accepted = await product.emulator.invoke("run", json.dumps({**scheduled, "query": "Hello"}).encode())
        assert json.loads(accepted.payload) == {"status": "accepted"}
        key = session_key(user_id_of("acme:ada"), "daily-20260102T030000Z")
        run = await product.emulator.invoke("run", json.dumps({"kind": "run", "session_id": key}).encode())
        assert json.loads(run.payload) == {"status": "ran"}
        [answered] = product.database.messages.find({"session_id": key, "role": "assistant"})
        assert "acme-1 answers" in str(answered["parts"])

        sessions = {session["_id"]: session["team"] for session in product.database.sessions.find({})}
        assert sessions == {user.key: "support", key: "support"}
        [summary] = product.database.summaries.find({"session_id": user.key})
        assert (summary["team"], summary["content"]) == ("support", "acme-1 answers")
        created = (await user.call("POST", "/sessions", json={"name": "By hand"})).json()
        [by_hand] = product.database.sessions.find({"name": "By hand"})
        assert (by_hand["team"], created["name"]) == ("support", "By hand")

        too_long = await user.call("POST", "/chat", json={"query": "x" * 101})
        assert (too_long.status_code, "100 characters" in too_long.text) == (422, True)


async def test_a_package_that_lambda_would_lack_is_missing_here_too(run_project: RunProject) -> None:
    async with run_project(agent="import moto\n") as product:
        for path in ("/chat/one/stream", "/sessions"):
            assert (await product.user().call("GET", path)).status_code == 502
        for function in ("summary", "run"):
            assert (await product.emulator.invoke(function, b"{}")).error_type
        for function in FUNCTIONS:
            assert any("No module named 'moto'" in line for line in product.emulator.logs(function))


async def test_a_package_of_the_functions_requirements_is_there(run_project: RunProject) -> None:
    async with run_project("tabulate==0.9.0\n", agent=PROJECTS / "tabulated.py") as product:
        async with product.user().asking("[tool:table]") as answer:
            output = await answer.until("tool-output-available")
            await answer.rest()
        assert output["output"] == "-  -\n1  2\n-  -"


async def test_requirements_that_cannot_be_installed_are_said_in_the_log(run_project: RunProject) -> None:
    async with run_project("omniagent-has-no-such-package==1.0\n") as product:
        assert (await product.user().call("GET", "/sessions")).status_code == 502
        log = "\n".join(product.emulator.logs("sessions"))
        assert "The functions' packages cannot be installed" in log
        assert "omniagent-has-no-such-package" in log
