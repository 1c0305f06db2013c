"""Serves SAM's own code to the tests, from one process of .venv-sam: its imports take longer than most of its work.

Serves until its input ends. Each line is an order, and one line answers it:

- {"arguments": […], "environment": {…}} runs the SAM CLI in a forked process: {"code": its exit code, "output": …}.
- {"template": path, "parameters": {…}} expands a template into the CloudFormation that AWS deploys: {"document": …}.
- {"template": path, "env_vars": {…}} returns the environment that `sam local invoke` gives each function, and the
  options that it reads from samconfig.toml.
"""

import copy
import json
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import samcli.commands.build.command  # type: ignore[import-not-found]
import samcli.commands.validate.validate  # type: ignore[import-not-found]  # noqa: F401 - both are loaded before a fork
from samcli.cli.main import cli  # type: ignore[import-not-found]
from samcli.commands.local.lib.local_lambda import LocalLambdaRunner  # type: ignore[import-not-found]
from samcli.lib.config.samconfig import SamConfig  # type: ignore[import-not-found]
from samcli.lib.providers.sam_function_provider import SamFunctionProvider  # type: ignore[import-not-found]
from samcli.lib.providers.sam_stack_provider import SamLocalStackProvider  # type: ignore[import-not-found]
from samcli.yamlhelper import yaml_parse  # type: ignore[import-not-found]
from samtranslator.translator.transform import transform  # type: ignore[import-not-found]


class NoManagedPolicies:
    """The template names none, so none has to be looked up at AWS."""

    def load(self) -> dict[str, str]:
        return {}


@cache
def uploaded(path: Path) -> dict[str, Any]:
    """Read a template and point code at S3, as `sam package` does: the translator takes nothing else."""
    template: dict[str, Any] = yaml_parse(path.read_text())
    places = [resource.get("Properties", {}) for resource in template["Resources"].values()]
    for properties in [*places, template.get("Globals", {}).get("Function", {})]:
        for key in ("CodeUri", "ContentUri"):
            if key in properties:
                properties[key] = "s3://bucket/key"
    return template


def expanded(path: Path, parameters: dict[str, str]) -> dict[str, Any]:
    source = copy.deepcopy(uploaded(path))  # the translator changes it
    values = {name: spec["Default"] for name, spec in source["Parameters"].items() if "Default" in spec}
    document: dict[str, Any] = transform(source, values | parameters, NoManagedPolicies())
    return document


def local_environment(path: Path, env_vars: dict[str, Any]) -> dict[str, Any]:
    stacks, _ = SamLocalStackProvider.get_stacks(str(path))
    functions = SamFunctionProvider(stacks)
    folder = str(path.parent)
    runner = LocalLambdaRunner(None, functions, folder, folder, env_vars_values=env_vars)
    environments = {
        function.function_id: runner._make_env_vars(function).resolve()  # noqa: SLF001 - what it starts a container with
        for function in functions.get_all()
    }
    return {
        "environments": environments,
        "options": SamConfig(str(path.parent)).get_all(["local", "invoke"], "parameters"),
    }


def run_command(arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Do what .venv-sam/bin/sam does, in a process of its own, with its output and errors in one."""
    with tempfile.TemporaryFile("w+") as output:
        if (child := os.fork()) == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os.environ.update(environment)
            code = 1
            try:
                cli(arguments, prog_name="sam")
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return {"code": os.waitstatus_to_exitcode(status), "output": output.read()}


def answer(order: dict[str, Any]) -> dict[str, Any]:
    if "arguments" in order:
        return run_command(order["arguments"], order["environment"])
    path = Path(order["template"])
    if "env_vars" in order:
        return local_environment(path, order["env_vars"])
    return {"document": expanded(path, order["parameters"])}


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()
