"""A deployment to follow the pages on, and the Next.js example under `tsc`."""

import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import boto3
import pytest

from local.aws import Aws
from local.model import OfflineModel
from tests.docs.blocks import PAGES, read_blocks
from tests.fixtures.endings import PATIENCE_SECONDS
from tests.fixtures.http_server import HttpServer, Received
from tests.fixtures.nextjs_example import COPY, EXAMPLE, install_packages
from tests.fixtures.product import Product, running_product

# What tsc knows of files that have not changed since the last run: most are types of packages.
BUILD_INFO = "node_modules/.tsbuildinfo"
SNIPPETS = {
    f"page-{page.stem}-{block.line}.tsx": block.text
    for page in PAGES
    for block in read_blocks(page)
    if block.language == "tsx"
}
NOT_COPIED = ("node_modules", ".next", "next-env.d.ts", "*.tsbuildinfo", ".env.local")


class LambdaApi(HttpServer):
    """Answers requests with what a test lists, and keeps them."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[str] = []

    def answer(self, request: Received) -> tuple[int, bytes]:
        self.asked.append(f"{request.path} {request.body.decode()}")
        answer = self.answers.pop(0)
        self.headers = {"x-amz-function-error": "Unhandled"} if "errorMessage" in answer else {}
        return 200, json.dumps(answer).encode()


Answering = Callable[..., LambdaApi]
"""Lets Lambda's API answer with these documents, one after the other."""


@contextmanager
def deployed_stack(name: str, template: dict[str, Any], **options: Any) -> Iterator[None]:
    """Deploy a template until the context ends."""
    cloudformation = boto3.client("cloudformation")
    cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(template), **options)
    yield
    cloudformation.delete_stack(StackName=name)


def with_outputs(**values: str) -> dict[str, Any]:
    """A template that has outputs and, as it must, a resource."""
    outputs = {name: {"Value": value} for name, value in values.items()}
    return {"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}, "Outputs": outputs}


@pytest.fixture(scope="module")
async def product(mongod: str, aws: Aws, model: OfflineModel) -> AsyncIterator[Product]:
    """A deployment that wants signatures."""
    async with running_product(mongod, aws, model, emulator={"sqs": None}) as product:
        yield product


@pytest.fixture
def answering(local_aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    """Only Lambda's API is another one than the local AWS's."""
    with ExitStack() as stack:

        def answering(*answers: dict[str, Any]) -> LambdaApi:
            api = stack.enter_context(LambdaApi(*answers))
            monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", api.url)
            return api

        yield answering


@pytest.fixture(scope="session")
def type_errors() -> str:
    """What `tsc --strict` says of the example and of the pages' snippets. They are one program in a copy."""
    if not shutil.which("npm"):
        pytest.skip("Node is not installed: TypeScript cannot be checked")
    install_packages()
    for old in COPY.iterdir():
        if old.name != "node_modules":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    shutil.copytree(EXAMPLE, COPY, ignore=shutil.ignore_patterns(*NOT_COPIED), dirs_exist_ok=True)
    for name, snippet in SNIPPETS.items():
        (COPY / name).write_text(snippet)
    checked = subprocess.run(
        ["node", "node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--tsBuildInfoFile", BUILD_INFO],
        cwd=COPY,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert checked.returncode == 0 or checked.stdout, checked.stderr
    return checked.stdout
