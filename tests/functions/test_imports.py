"""What a cold start imports, counted in modules: each function pays only for what it needs.

Some imports are not ours to avoid: FastAPI takes the OpenTelemetry API (but no SDK), Powertools the root of botocore,
one small module.
"""

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from pymongo.database import Database

from local.template import ROOT

# As on Lambda, and as the template has it.
ENVIRONMENT = {
    "AWS_LAMBDA_FUNCTION_NAME": "a-function",
    "AWS_REGION": "us-east-1",
    "AUTH_MODE": "iam",
    "TRUSTED_PRINCIPALS": "arn:aws:iam::123456789012:role/web-backend",
    "MONGODB_SECRET_ARN": "arn:aws:secretsmanager:us-east-1:123456789012:secret:mongodb",
    "OPENAI_SECRET_ARN": "arn:aws:secretsmanager:us-east-1:123456789012:secret:openai",
    "TURNS_TABLE": "turns",
    "SUMMARY_QUEUE_URL": "https://sqs.us-east-1.amazonaws.com/123456789012/summaries",
    "RUN_QUEUE_URL": "https://sqs.us-east-1.amazonaws.com/123456789012/runs",
}
# All that a cold start may load, whoever asks for it: this grows by decision only.
BUDGETS = {"chat": 660, "sessions": 775, "summary": 630, "run": 630}
# SDKs and providers are imported at their first use, what reads tokens and what traces only where it is switched on.
UNNEEDED_AT_START = (
    *("boto3", "s3transfer", "openai", "httpx2", "jwt", "cryptography", "opentelemetry.sdk", "opentelemetry.exporter"),
    *(f"omniagent.ai.providers.{name}" for name in ("anthropic", "openai", "bedrock")),
)
UNNEEDED_BY = {
    "chat": ("fastapi", "opentelemetry"),
    "sessions": ("omniagent.ai.runner",),
    "summary": ("fastapi", "starlette", "mangum", "anyio", "opentelemetry"),
    "run": (),
}

WATCH = """
import json, sys

class Watch:
    asked_by = {}

    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while frame.f_globals["__name__"].partition(".")[0] in ("importlib", "_frozen_importlib"):
            frame = frame.f_back
        self.asked_by.setdefault(name, frame.f_globals["__name__"])

sys.meta_path.insert(0, Watch())
"""
REPORT = "print(json.dumps({name: Watch.asked_by.get(name, '') for name in sys.modules}))"
# Requests to the sessions function, one after the other.
SERVE = """
class Context:
    aws_request_id = "r1"

    def get_remaining_time_in_millis(self):
        return 30_000

def served(path):
    with open(path) as event:
        return app.handler(json.load(event), Context())["statusCode"]

statuses = [served(path) for path in {paths}]
assert statuses == {statuses}, statuses
"""
SERVED = {"create": 201, "get": 200, "list": 200, "messages": 200, "rename": 200, "cancel": 409, "delete-user": 204}


@cache
def imported(function: str, then: str = "", **environment: str) -> dict[str, str]:
    """The modules that a process of the function has, each with the module that first asked for it."""
    paths = [str(ROOT / "functions"), str(ROOT / "layers/core")]
    program = f"{WATCH}\nsys.path[:0] = {paths}\nfrom {function} import app\n{then}\n{REPORT}"
    command = [sys.executable, "-I", "-c", program]
    known = ENVIRONMENT | environment
    done = subprocess.run(command, env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return modules


def packages(modules: dict[str, str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("function", BUDGETS)
def test_a_cold_start_stays_within_its_budget(function: str) -> None:
    assert len(imported(function)) <= BUDGETS[function]


@pytest.mark.parametrize("function", BUDGETS)
def test_no_function_imports_what_it_may_not_need(function: str) -> None:
    modules = imported(function)
    unneeded = (*UNNEEDED_AT_START, *UNNEEDED_BY[function])
    assert not [name for name in modules if f"{name}.".startswith(tuple(f"{each}." for each in unneeded))]
    assert {name for name in modules if name.partition(".")[0] == "botocore"} <= {"botocore"}
    assert modules.get("botocore", "").startswith("aws_lambda_powertools")
    assert modules.get("opentelemetry", "fastapi").partition(".")[0] == "fastapi"


@pytest.mark.parametrize(("model", "other"), [("anthropic/claude", "openai"), ("gpt-6-luna", "anthropic")])
def test_a_provider_and_its_connections_need_no_sdk_and_no_other_provider(model: str, other: str) -> None:
    make = f"from omniagent.ai.providers import get_llm_provider\nget_llm_provider({model!r}, api_key='k')"
    modules = imported("chat", f"{make}\nfrom omniagent.network import open_pool\nopen_pool()")
    assert not {"anthropic", "openai", "httpx2"} & packages(modules)
    assert f"omniagent.ai.providers.{other}" not in modules


def test_serving_sessions_needs_no_model_and_no_aws(mongod: str, database: Database[dict[str, Any]]) -> None:
    """Without a secret, a table and a queue there is nothing to ask AWS for; only a name asks the model."""
    paths = [str(ROOT / "events" / f"sessions-{event}.json") for event in SERVED]
    place = {"MONGODB_URI": mongod, "MONGODB_DATABASE": database.name}
    unset = ("MONGODB_SECRET_ARN", "TURNS_TABLE", "SUMMARY_QUEUE_URL", "RUN_QUEUE_URL")
    local = dict.fromkeys(unset, "") | place
    modules = imported("sessions", SERVE.format(paths=paths, statuses=list(SERVED.values())), **local)
    assert not {"boto3", "openai", "httpx2"} & packages(modules)
