"""Expands a SAM template into the CloudFormation that AWS deploys: `expand.py template.yaml parameters.json`.

Runs in .venv-sam, where SAM's own translator lives.
"""

import json
import sys
from pathlib import Path
from typing import Any

from samcli.yamlhelper import yaml_parse  # type: ignore[import-not-found]
from samtranslator.translator.transform import transform  # type: ignore[import-not-found]


class NoManagedPolicies:
    """The template names none, so none has to be looked up at AWS."""

    def load(self) -> dict[str, str]:
        return {}


def uploaded(template: dict[str, Any]) -> dict[str, Any]:
    """Point code at S3, as `sam package` does: the translator takes nothing else."""
    for resource in template["Resources"].values():
        for key in ("CodeUri", "ContentUri"):
            if key in resource.get("Properties", {}):
                resource["Properties"][key] = "s3://bucket/key"
    return template


if __name__ == "__main__":
    source = uploaded(yaml_parse(Path(sys.argv[1]).read_text()))
    values = {name: spec["Default"] for name, spec in source["Parameters"].items() if "Default" in spec}
    values |= json.loads(sys.argv[2])
    sys.stdout.write(json.dumps(transform(source, values, NoManagedPolicies())))
