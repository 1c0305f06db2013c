"""Expands SAM templates into the CloudFormation that AWS deploys, and lints it. Runs in .venv-sam, with SAM's own code.

Serves until its input ends: a line is {"template": path, "parameters": {…}, "lint": bool}, and so is the answer,
{"document": …, "errors": […]}. With "env_vars" the answer is the environment that `sam local invoke` gives each
function, and the options that it reads from samconfig.toml.
"""

import json
import sys
from pathlib import Path
from typing import Any

from cfnlint.api import ManualArgs, lint  # type: ignore[import-not-found]
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


def uploaded(template: dict[str, Any]) -> dict[str, Any]:
    """Point code at S3, as `sam package` does: the translator takes nothing else."""
    places = [resource.get("Properties", {}) for resource in template["Resources"].values()]
    for properties in [*places, template.get("Globals", {}).get("Function", {})]:
        for key in ("CodeUri", "ContentUri"):
            if key in properties:
                properties[key] = "s3://bucket/key"
    return template


def expanded(path: Path, parameters: dict[str, str]) -> dict[str, Any]:
    source = uploaded(yaml_parse(path.read_text()))
    values = {name: spec["Default"] for name, spec in source["Parameters"].items() if "Default" in spec}
    document: dict[str, Any] = transform(source, values | parameters, NoManagedPolicies())
    return document


def lint_errors(document: dict[str, Any]) -> list[str]:
    found = lint(json.dumps(document), config=ManualArgs(regions=["us-east-1"]))
    return [f"{match.rule.id} {match.message} ({'/'.join(map(str, match.path))})" for match in found]


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


if __name__ == "__main__":
    for line in sys.stdin:
        order = json.loads(line)
        if "env_vars" in order:
            answer = local_environment(Path(order["template"]), order["env_vars"])
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
            continue
        document = expanded(Path(order["template"]), order["parameters"])
        errors = lint_errors(document) if order["lint"] else []
        sys.stdout.write(json.dumps({"document": document, "errors": errors}) + "\n")
        sys.stdout.flush()
