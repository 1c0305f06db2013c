"""One build for Lambda and one for this machine, for all the tests here."""

import subprocess
from collections.abc import Callable

import pytest

from local.cloudformation import Document
from local.template import ROOT
from tests.sam.builds import Build, build, expand


@pytest.fixture(scope="session")
def sam() -> None:
    """The SAM CLI is installed."""
    subprocess.run(["make", ".venv-sam/.installed"], cwd=ROOT, check=True, timeout=600)


@pytest.fixture(scope="session")
def lambda_build(sam: None, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """What is deployed."""
    return build(tmp_path_factory.mktemp("lambda"))


@pytest.fixture(scope="session")
def here_build(sam: None, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The same for this machine."""
    return build(tmp_path_factory.mktemp("here"), TARGET_ARCH="here")


@pytest.fixture(scope="session")
def deploy(lambda_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Document]:
    """Returns the CloudFormation that a deploy with some parameters comes to, made once for each set of them."""
    made: dict[frozenset[tuple[str, str]], Document] = {}

    def deployed(**parameters: str) -> Document:
        key = frozenset(parameters.items())
        if key not in made:
            into = tmp_path_factory.mktemp("expanded") / "template.json"
            made[key] = expand(lambda_build.template, into, **parameters)
        return made[key]

    return deployed
