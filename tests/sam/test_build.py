"""What `sam build` makes: the layer's layout, platform, size and bytecode, and the functions' files."""

import os
import re
import shutil
import stat
import struct
import subprocess
from importlib.metadata import distributions
from pathlib import Path

import boto3
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from local.template import ROOT
from tests.fixtures.functions import functions_with
from tests.sam.builds import SAM_BIN, Build, Sam, files

FUNCTIONS = ("ChatFunction", "SessionsFunction", "SummaryFunction", "RunFunction")
LAMBDA_LIMIT = 250_000_000
EM_AARCH64 = 183
# What packaging's markers ask about, as Lambda would answer.
ON_LAMBDA = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "aarch64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.13.0",
    "python_version": "3.13",
    "sys_platform": "linux",
}


def pinned(path: Path) -> dict[str, str]:
    """The name and version of every requirement in a lock file that Lambda would install."""
    lines = (line.removesuffix("\\").strip() for line in path.read_text().splitlines() if re.match(r"\w", line))
    wanted = [Requirement(line) for line in lines]
    return {
        canonicalize_name(requirement.name): str(requirement.specifier).removeprefix("==")
        for requirement in wanted
        if requirement.marker is None or requirement.marker.evaluate(ON_LAMBDA)
    }


def installed(packages: Path) -> dict[str, str]:
    found = distributions(path=[str(packages)])
    return {canonicalize_name(distribution.name): distribution.version for distribution in found}


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def machine(binary: Path) -> int:
    with binary.open("rb") as file:
        magic, number = struct.unpack("<4s14xH", file.read(20))
    assert magic == b"\x7fELF"
    return int(number)


def build_function(project: Path, artifact: Path, **variables: str) -> str:
    """Run what SAM runs for a function, and return what it said."""
    artifact.mkdir(exist_ok=True)
    command = ["make", "-f", "functions/Makefile", "build-ChatFunction", f"ARTIFACTS_DIR={artifact}"]
    done = subprocess.run(
        [*command, f"PYTHON={SAM_BIN / 'python'}", *(f"{name}={value}" for name, value in variables.items())],
        cwd=project,
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_layer_holds_packages_and_the_exec_wrapper(lambda_build: Build) -> None:
    assert {path.name for path in lambda_build.layer.iterdir()} == {"python", "bin"}
    assert files(lambda_build.layer / "bin") == files(ROOT / "layers/core/bin")
    assert (lambda_build.layer / "bin/streaming").stat().st_mode & stat.S_IXOTH


def test_the_layer_holds_the_whole_of_omniagent(lambda_build: Build) -> None:
    assert files(lambda_build.packages / "omniagent") == files(ROOT / "layers/core/omniagent")


def test_the_layer_holds_what_is_pinned_for_lambda_and_nothing_else(lambda_build: Build) -> None:
    assert installed(lambda_build.packages) == pinned(ROOT / "layers/core/requirements.txt")


def test_every_extension_is_for_python_3_13_on_arm64(lambda_build: Build) -> None:
    extensions = list(lambda_build.packages.rglob("*.so*"))
    assert {"_pydantic_core", "runtime_client", "_cbson"} <= {path.name.split(".")[0] for path in extensions}
    for path in extensions:
        assert (path.name, machine(path)) == (path.name, EM_AARCH64)
        assert ".cpython-313-aarch64" in path.name or ".abi3." in path.name


def test_the_layer_fits_lambda(lambda_build: Build) -> None:
    unzipped = size(lambda_build.layer) + sum(size(lambda_build.folder / name) for name in FUNCTIONS)
    assert unzipped < LAMBDA_LIMIT


@pytest.mark.parametrize("which", ["lambda_build", "here_build"])
def test_all_bytecode_is_there_whatever_python_builds(
    which: str, python313: str, request: pytest.FixtureRequest
) -> None:
    made: Build = request.getfixturevalue(which)
    for folder in (made.packages, *(made.folder / name for name in FUNCTIONS)):
        sources = {path.relative_to(folder) for path in folder.rglob("*.py")}
        compiled = {path.relative_to(folder) for path in folder.rglob("*.pyc")}
        assert compiled == {path.parent / "__pycache__" / f"{path.stem}.cpython-313.pyc" for path in sources}
    assert made.log.count("has bytecode of Python 3.13.") == 1 + len(FUNCTIONS)


def test_a_build_that_finds_no_compiler_says_so(sam: Sam, tmp_path: Path) -> None:
    log = build_function(ROOT, tmp_path, TARGET_PYTHON="3.99")
    assert "/var/task has no bytecode and starts more slowly. No python3.99 is on the path." in log
    assert not list(tmp_path.rglob("*.pyc"))


def test_bytecode_is_used_although_a_zip_changes_the_times_of_its_sources(here_build: Build) -> None:
    for source in (here_build.packages / "omniagent").rglob("*.py"):
        os.utime(source, (0, 0))
    done = here_build.run_python("import omniagent.ai.runner", "-v")
    loaded = re.findall(
        rf"# code object from '?{re.escape(str(here_build.packages))}/(\S+?)'?$", done.stderr, re.MULTILINE
    )
    assert "omniagent/ai/__pycache__/runner" in {name.partition(".")[0] for name in loaded}
    assert {Path(name).suffix for name in loaded} == {".pyc"}


def test_no_artifact_names_the_place_it_was_built_in(here_build: Build) -> None:
    places = [str(ROOT).encode(), str(here_build.folder).encode()]
    found = [
        path
        for path in here_build.folder.rglob("*")
        if path.is_file() and any(place in path.read_bytes() for place in places)
    ]
    assert found == []


@pytest.mark.parametrize("logical_id", FUNCTIONS)
def test_each_function_holds_the_project_and_every_handler(logical_id: str, lambda_build: Build) -> None:
    assert files(lambda_build.folder / logical_id) == files(ROOT / "functions") - {"Makefile", "requirements.txt"}
    assert {"agent.py", "project.py", "chat/app.py"} <= files(lambda_build.folder / logical_id)


def test_a_tools_own_packages_are_built_for_lambda_beside_the_code(sam: Sam, tmp_path: Path) -> None:
    project = tmp_path / "project"
    functions_with(project / "functions")
    for name in ("layers/core/requirements.txt", "layers/target.mk"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, project / name)
    (project / "local").symlink_to(ROOT / "local")
    # The first is pure Python, the second is compiled and needs a package of the layer.
    (project / "functions/requirements.txt").write_text("tabulate==0.9.0\nargon2-cffi-bindings==25.1.0\n")
    artifact = tmp_path / "artifact"
    build_function(project, artifact)
    assert {"agent.py", "chat/app.py", "tabulate/__init__.py"} <= files(artifact)
    assert not {"Makefile", "requirements.txt", "layer-pins.txt"} & files(artifact)
    assert {machine(path) for path in artifact.rglob("*.so*")} == {EM_AARCH64}
    layer = pinned(ROOT / "layers/core/requirements.txt")
    assert installed(artifact)["cffi"] == layer["cffi"]


def test_the_layer_is_all_that_a_bare_python_needs(here_build: Build) -> None:
    program = """
import aws_lambda_powertools, awslambdaric, beanie, boto3, fastapi, jwt, mangum, omniagent, openai, opentelemetry.sdk
from importlib.metadata import version
for service in ("bedrock-agent-runtime", "dynamodb", "s3", "secretsmanager", "ses", "sqs", "sts"):
    boto3.client(service, region_name="us-east-1")
boto3.client("ec2", region_name="us-east-1").get_paginator("describe_instances")
boto3.client("s3").get_waiter("bucket_exists")
boto3.resource("dynamodb", region_name="us-east-1").Table("turns")
print(version("openai"), version("fastapi"), len(boto3.Session().get_available_services()))
"""
    expected = pinned(ROOT / "layers/core/requirements.txt")
    services = len(boto3.Session().get_available_services())
    assert here_build.run_python(program).stdout.split() == [expected["openai"], expected["fastapi"], str(services)]
