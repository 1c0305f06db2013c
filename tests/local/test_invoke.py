"""`python -m local invoke`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from local.aws import Aws
from local.cloudformation import TemplateError
from local.invoke import invoke
from local.stack import StackOptions
from local.template import ROOT

TEMPLATE = """
Parameters:
  MongoSecretArn: {Type: String}
  OpenAISecretArn: {Type: String}
  OpenAIBaseUrl: {Type: String}
  AuthMode: {Type: String}
Resources:
  GreetFunction:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: greet, Handler: app.handler, Runtime: python3.13}
"""
CODE = """
import os

def handler(event, context):
    print("greeting", event["name"])
    return {"greeting": "Hello " + event["name"], "sam": os.environ["AWS_SAM_LOCAL"]}
"""


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "template.yaml"
    path.write_text(TEMPLATE)
    (tmp_path / "greet").mkdir()
    (tmp_path / "greet" / "app.py").write_text(CODE)
    return path


def test_the_answer_is_printed_and_the_log_is_apart(template: Path, mongod: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "local", "invoke", "greet", "-", "--template", str(template)],
        cwd=ROOT,
        env={**os.environ, "MONGODB_URI": mongod},
        input='{"name": "Ada"}',
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, {"greeting": "Hello Ada", "sam": "true"})
    log = [line for line in done.stderr.splitlines() if not line.startswith("Installing the functions' packages")]
    assert [line.split()[0] for line in log] == ["START", "greeting", "END", "REPORT"]


async def test_a_function_error_is_printed_and_fails_the_command(
    template: Path, mongod: str, aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    options = StackOptions(
        template=template, mongodb_uri=mongod, aws=aws, openai_api_key="none", emulator={"sqs": None}
    )
    assert await invoke(options, "greet", b"{}") == 1
    assert json.loads(capsys.readouterr().out)["errorType"] == "KeyError"


async def test_an_unknown_function_is_said_in_one_line_before_anything_is_started(template: Path) -> None:
    nobody = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100"
    options = StackOptions(template=template, mongodb_uri=nobody, functions=("grete",))
    with pytest.raises(TemplateError, match=r"^There is no function grete\. There are: greet\.$"):
        await invoke(options, "grete", b"{}")
