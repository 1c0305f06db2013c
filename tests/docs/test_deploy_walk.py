"""A stranger's walk through docs/deploy.md: a shell runs every command of the page, as far as it can be run here.

`aws` calls the local AWS, `curl` the emulator. `make` is asked what it would run, and `sam delete` is only looked up.
"""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from local.aws import Aws
from local.background import BackgroundStack
from local.template import ROOT
from scripts.parameters import parameter_findings
from tests.docs.blocks import Block, read_blocks
from tests.docs.conftest import deployed_stack, with_outputs
from tests.fixtures.endings import PATIENCE_SECONDS
from tests.fixtures.product import Product

BLOCKS = [block for block in read_blocks(ROOT / "docs" / "deploy.md") if block.language == "sh"]
# `make` runs nothing; the build's variable would look for a compiler.
COMMANDS = {
    "bin/aws": f'exec "{sys.executable}" -m tests.docs.aws_command "$@"',
    "bin/make": f'PATH="$REAL_PATH" exec make -n -C "{ROOT}" SAM_BUILD=: "$@"',
    ".venv-sam/bin/sam": f'[ "$1 $2" = "delete --stack-name" ] && grep -q "stack_name = .$3." "{ROOT}/samconfig.toml"',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place to walk in, with commands in the place of those that reach beyond this machine."""
    folder = tmp_path_factory.mktemp("walk")
    for name, script in COMMANDS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return folder


async def walk(block: Block, folder: Path, aws: Aws, typed: str = "", **variables: str) -> str:
    """Run a block as a whole, type what it reads, and return what it printed."""
    path = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "REAL_PATH": os.environ["PATH"], "HOME": str(folder)}
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env={**path, **aws.environment, "PYTHONPATH": str(ROOT), **variables},
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def blocks_with(text: str) -> list[Block]:
    found = [block for block in BLOCKS if text in block.text]
    assert found, text
    return found


async def test_the_secrets_of_the_page_have_arns_that_the_parameters_take(folder: Path, aws: Aws) -> None:
    [create], [delete] = blocks_with("create-secret"), blocks_with("delete-secret")
    uri = "mongodb+srv://user:password@cluster.abcde.mongodb.net"
    mongo, openai = (await walk(create, folder, aws, typed=f"{uri}\nsk-1\n")).split()
    assert [aws.secrets.get_secret_value(SecretId=arn)["SecretString"] for arn in (mongo, openai)] == [uri, "sk-1"]
    findings = parameter_findings({"MongoSecretArn": mongo, "OpenAISecretArn": openai})
    assert [finding.text for finding in findings] == []
    await walk(delete, folder, aws)


async def test_make_would_check_build_deploy_and_prove_each_stage(folder: Path, aws: Aws) -> None:
    [deploy], [smoke] = blocks_with("make deploy"), blocks_with("make smoke")
    told = await walk(deploy, folder, aws)
    assert told.count("-m scripts.preflight dev") == 2
    assert told.count("-m scripts.migrate") == 2
    assert "-m scripts.preflight prod" in told
    assert "--config-env default" in told
    assert "--config-env prod" in told
    assert "file://parameters/prod.yaml" in told
    assert (await walk(smoke, folder, aws, TOKEN="a-token")).count("-m scripts.smoke") == 3


def test_a_stage_of_your_own_keeps_its_name() -> None:
    command = ["make", "-n", "deploy", "STAGE=eu-dev", "SAM_BUILD=:"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "--config-env eu-dev " in told
    assert "file://parameters/eu-dev.yaml" in told


async def test_the_role_for_github_is_made_and_trusts_one_repository(folder: Path, aws: Aws) -> None:
    [block] = blocks_with("create-open-id-connect-provider")
    told = await walk(block, folder, aws)
    assert ":role/omniagent-deploy" in told
    assert "repo:OWNER/REPO:environment:*" in (folder / "trust.json").read_text()


async def test_the_address_and_the_credentials_come_from_the_stack_and_the_profile(
    folder: Path, local_aws: Aws
) -> None:
    [block] = blocks_with("export-credentials")
    url = "https://abc.lambda-url.us-east-1.on.aws/"
    shown = replace(block, text=f'{block.text}\necho "$CHAT_URL $AWS_REGION $AWS_ACCESS_KEY_ID"')
    with deployed_stack("omniagent-dev", with_outputs(ChatUrl=url)):
        said = (await walk(shown, folder, local_aws)).split()
    assert said == [url, "us-east-1", "local"]


async def test_curl_asks_with_a_signature_and_with_a_token(
    folder: Path, aws: Aws, product: Product, stack: BackgroundStack
) -> None:
    signed, bearer = blocks_with("--aws-sigv4"), blocks_with("authorization: Bearer")
    for block, url in ((signed[0], product.emulator.url_of("chat")), (bearer[0], stack.url)):
        told = await walk(block, folder, aws, CHAT_URL=f"{url}/", TOKEN="a-token")
        assert told.startswith('data: {"type":"start"')
        assert told.endswith("data: [DONE]\n\n")


def test_no_command_of_the_page_is_left_out() -> None:
    walked = ("create-secret", "make deploy", "make smoke", "export-cred", "create-open-id", "curl", "delete-secret")
    assert [block.line for block in BLOCKS if not any(text in block.text for text in walked)] == []
