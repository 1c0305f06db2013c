"""Checks a stage's parameters against the template before CloudFormation does."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import yaml

from local.cloudformation import Document
from local.places import page
from local.template import ROOT, TEMPLATE

PLACEHOLDER = "PUT-THE-ARN-HERE"


@dataclass(frozen=True)
class Finding:
    """A problem and what to do about it. An error stops the deployment."""

    level: Literal["error", "warning"]
    text: str


def error(text: str) -> Finding:
    return Finding("error", text)


def warning(text: str) -> Finding:
    return Finding("warning", text)


def stage_findings(stage: str) -> Iterator[Finding]:
    """Check that the stage has a section in samconfig.toml and a parameter file."""
    config = tomllib.loads((ROOT / "samconfig.toml").read_text())
    stages = ["dev" if name == "default" else name for name in config if name != "version"]
    if stage not in stages:
        yield error(
            f"There is no stage {stage}: samconfig.toml has {', '.join(stages)}. Choose one: STAGE={stages[0]}."
        )
    elif not (ROOT / "parameters" / f"{stage}.yaml").exists():
        yield error(f"parameters/{stage}.yaml is missing. Copy parameters/dev.yaml and fill it in.")


def read_parameters(stage: str) -> dict[str, str]:
    """Return the stage's parameters as CloudFormation gets them. Raises `ValueError` if they cannot be read."""
    path = ROOT / "parameters" / f"{stage}.yaml"
    try:
        found = yaml.safe_load(path.read_text())
    except yaml.YAMLError as problem:
        raise ValueError(f"parameters/{stage}.yaml cannot be read: {problem}") from None
    if not isinstance(found, dict):
        raise ValueError(f"parameters/{stage}.yaml must be a list of `Name: value`.")  # noqa: TRY004 - the file is wrong, not a type
    return {str(name): _text(value) for name, value in found.items()}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def parameter_findings(parameters: Mapping[str, str]) -> Iterator[Finding]:
    """Check that CloudFormation would accept each value, and that the values are consistent."""
    known: dict[str, dict[str, Any]] = Document(TEMPLATE).section("Parameters")
    for name in parameters.keys() - known.keys():
        near = difflib.get_close_matches(name, known, 1)
        yield error(f"{name} is not a parameter of template.yaml{f': did you mean {near[0]}?' if near else '.'}")
    for name, spec in known.items():
        value = parameters.get(name, spec.get("Default"))
        if value is None:
            yield error(f"{name} has no value. {spec['Description']}")
        elif value == PLACEHOLDER:
            how = f"Create the secret ({page('deploy.md')}, step 2) and put its ARN there."
            yield error(f"{name} is still the placeholder. {how}")
        else:
            yield from _value_findings(name, str(value), spec)
    yield from _origin_findings(parameters.get("CorsOrigins", ""))
    yield from _rule_findings({name: parameters[name] for name in parameters.keys() & known.keys()})
    for name, value in parameters.items():
        if re.search(r"\bexample\.(com|org|net)\b", value):
            yield error(f"{name} is still the example: {value}. Replace it with your own, or remove the line.")


def _value_findings(name: str, value: str, spec: Mapping[str, Any]) -> Iterator[Finding]:
    allowed = [str(item) for item in spec.get("AllowedValues", ())]
    if allowed and value not in allowed:
        yield error(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")
    elif spec["Type"] == "Number":
        try:
            number = float(value)
        except ValueError:
            yield error(f"{name} is {value!r}; it must be a number.")
            return
        low, high = float(spec.get("MinValue", "-inf")), float(spec.get("MaxValue", "inf"))
        if not low <= number <= high:
            yield error(f"{name} is {value}; it must be from {low:g} to {high:g}.")
    elif not re.search(spec.get("AllowedPattern", ""), value):
        yield error(f"{name} is {value!r}; it {spec.get('ConstraintDescription', 'does not fit')}.")


def _origin_findings(origins: str) -> Iterator[Finding]:
    for origin in filter(None, (origin.strip() for origin in origins.split(","))):
        parts = urlsplit(origin)
        if origin != "*" and (parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}"):
            yield error(
                f"CorsOrigins has {origin!r}. An origin is scheme, host and port without a path or a slash at its end, "
                "such as https://app.mycompany.io."
            )


def _rule_findings(parameters: Mapping[str, str]) -> Iterator[Finding]:
    document = Document(TEMPLATE, parameters=parameters)
    for name in Document(TEMPLATE).section("Rules"):
        rule = document.section("Rules", name)
        if rule["RuleCondition"]:
            for assertion in rule["Assertions"]:
                if not assertion["Assert"]:
                    yield error(f"{assertion['AssertDescription']}.")
