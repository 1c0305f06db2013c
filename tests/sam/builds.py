"""SAM's own command line and translator, and what `sam build` made."""

import json
import os
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.cloudformation import Document
from local.interpreters import built_for, find_python
from local.template import ROOT, TEMPLATE
from tests.fixtures.endings import PATIENCE_SECONDS

SAM_BIN = ROOT / ".venv-sam" / "bin"
UV = ROOT / ".uv" / "bin" / "uv"
MONGO_SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:mongodb-AbCdEf"
OPENAI_SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:openai-AbCdEf"
JWT = {"AuthMode": "jwt", "JwtIssuer": "https://auth.example.com/", "JwtAudience": "omniagent"}
REQUIRED = {"MongoSecretArn": MONGO_SECRET, "OpenAISecretArn": OPENAI_SECRET}
QUEUES = {
    name: {"Ref": f"https://sqs/{name}", "QueueName": name}
    for name in ("SummaryQueue", "SummaryDeadLetters", "RunQueue", "ScheduleQueue", "RunDeadLetters")
}
OF_A_TURN = {
    *("Turns", "WaitingTurns", "CancelledTurns", "FailedTurns", "RejectedTurns", "TimeToFirstToken", "TurnDuration"),
    *("InputTokens", "CachedInputTokens", "CacheWriteTokens", "OutputTokens", "ToolCalls", "ToolErrors"),
}
"""The metrics that a turn prints."""
DOMAIN = {
    "Ref": "ApiDomain",
    "RegionalDomainName": "d-abc.execute-api.us-east-1.amazonaws.com",
    "RegionalHostedZoneId": "Z1",
}
URLS = {
    f"{name.title()}FunctionUrl": {"Ref": name, "FunctionUrl": f"https://{name}.on.aws/"}
    for name in ("chat", "sessions")
}
ATTRIBUTES = QUEUES | URLS | {"ApiDomain": DOMAIN, "WebAcl": {"Ref": "WebAcl", "Arn": "arn:aws:wafv2:acl"}}


@dataclass(frozen=True)
class Build:
    """The folder that `sam build` filled, and what it said meanwhile."""

    folder: Path
    log: str

    @property
    def layer(self) -> Path:
        return self.folder / "CoreLayer"

    @property
    def packages(self) -> Path:
        return self.layer / "python"

    def run_python(self, program: str, *options: str) -> "subprocess.CompletedProcess[str]":
        """Run a program on the Python that the build is for, with nothing but the layer on its path."""
        target = built_for(self.packages)
        assert target
        program = f"import sys; sys.path.append({str(self.packages)!r})\n{program}"
        # -I and -S: neither an environment's packages nor its variables.
        command = [find_python(*target), "-I", "-S", "-B", *options, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    @property
    def template(self) -> Path:
        return self.folder / "template.yaml"


class Sam:
    """SAM's command line and translator and CloudFormation's linter, in one process of .venv-sam for the test run.

    A command of SAM runs in a process forked from it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [str(SAM_BIN / "python"), str(Path(__file__).with_name("expand.py"))],
            env=_environment(),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> str:
        """Run the SAM CLI at the root of the project and return what it said."""
        done = self._send({"arguments": arguments, "environment": environment})
        output: str = done["output"]
        assert done["code"] == 0, f"sam {arguments[0]} failed:\n{output}"
        return output

    def build(self, folder: Path, **environment: str) -> Build:
        """Run `sam build` into a folder of its own, with nothing kept from an earlier one."""
        # Into the cache of SAM, which nobody would read again, everything would be copied once more.
        log = self.run(
            "build",
            "--no-cached",
            "--build-dir",
            str(folder),
            PYTHON=str(SAM_BIN / "python"),
            UV=str(UV),
            **environment,
        )
        return Build(folder, log)

    def expand(self, parameters: Mapping[str, str], template: Path = TEMPLATE) -> Document:
        """Return the CloudFormation that a deploy of the template with these parameters comes to."""
        document = self.expanded(parameters, template)
        into = self._folder / f"{uuid.uuid4().hex}.json"
        into.write_text(json.dumps(document))
        resources = document["Resources"].items()
        versions = {
            name: {"Ref": name, "Version": f"{name}'s number"}
            for name, resource in resources
            if resource["Type"] == "AWS::Lambda::Version"
        }
        return Document(into, parameters={**REQUIRED, **parameters}, attributes=ATTRIBUTES | versions)

    def expanded(self, parameters: Mapping[str, str], template: Path = TEMPLATE) -> dict[str, Any]:
        """Return that CloudFormation as it is sent, with its conditions and references."""
        answer = self._send({"template": str(template), "parameters": {**REQUIRED, **parameters}})
        document: dict[str, Any] = answer["document"]
        return document

    def local(self, env_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `sam local invoke` would start each function with, and its options in samconfig.toml."""
        return self._send({"template": str(TEMPLATE), "env_vars": env_vars})

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_SECONDS)

    def _send(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"SAM failed: {order}"
        answer: dict[str, Any] = json.loads(line)
        return answer


def files(folder: Path) -> set[str]:
    """The files under a folder that are source, not bytecode."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {path.relative_to(folder).as_posix() for path in found}


def _environment() -> dict[str, str]:
    """No AWS account, no MAKEFLAGS of the `make test` above us, and no telemetry."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "MAKE", "MFLAGS"))}
    return inherited | {"AWS_DEFAULT_REGION": "us-east-1", "SAM_CLI_TELEMETRY": "0"}
