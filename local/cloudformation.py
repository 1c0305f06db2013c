"""A CloudFormation template's intrinsic functions, resolved as a deployment would."""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import yaml

REGION = "us-east-1"
ACCOUNT = "123456789012"
STACK = "omniagent"
PSEUDO_PARAMETERS = {
    "AWS::Region": REGION,
    "AWS::AccountId": ACCOUNT,
    "AWS::Partition": "aws",
    "AWS::StackName": STACK,
    "AWS::URLSuffix": "amazonaws.com",
}
# Per type: the property with a resource's name (default: its logical id), and the format of its ARN.
NAMED = {
    "AWS::DynamoDB::Table": ("TableName", "dynamodb:{region}:{account}:table/{name}"),
    "AWS::Logs::LogGroup": ("LogGroupName", "logs:{region}:{account}:log-group:{name}:*"),
    "AWS::SQS::Queue": ("QueueName", "sqs:{region}:{account}:{name}"),
    "AWS::Serverless::Function": ("FunctionName", "lambda:{region}:{account}:function:{name}"),
    "AWS::Serverless::LayerVersion": ("LayerName", "lambda:{region}:{account}:layer:{name}:1"),
    "AWS::IAM::Role": ("RoleName", "iam::{account}:role/{name}"),
    "AWS::Events::Rule": ("Name", "events:{region}:{account}:rule/{name}"),
}

Attributes = Mapping[str, Mapping[str, str]]
"""The values of `Ref` and the attributes of deployed resources, by logical id: {"Queue": {"Ref": ..., "Arn": ...}}."""


class TemplateError(ValueError):
    """Something in the template cannot be resolved."""


class _Absent:
    """AWS::NoValue: the property counts as missing."""


ABSENT = _Absent()


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Reads the short tags: `!Sub x` as {"Fn::Sub": "x"}."""


def _short_tag(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any = None
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    elif isinstance(node, yaml.MappingNode):
        value = loader.construct_mapping(node, deep=True)
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _short_tag)


@lru_cache(maxsize=4)
def _parsed(text: str) -> dict[str, Any]:
    """Parse a template once, however often it is read. It is never changed."""
    template: dict[str, Any] = yaml.load(text, Loader=_Loader)
    return template


class Document:
    """A template with its parameters filled in.

    `attributes` has the values of deployed resources. Of other resources, only the name is known.
    """

    def __init__(
        self, path: Path, *, parameters: Mapping[str, str] | None = None, attributes: Attributes | None = None
    ) -> None:
        """Read the file. A parameter without a value or a default is an error only where it is used."""
        text = path.read_text()
        self._raw: dict[str, Any] = json.loads(text) if path.suffix == ".json" else _parsed(text)
        declared = self._raw.get("Parameters", {})
        if unknown := set(parameters or {}) - set(declared):
            raise TemplateError(f"{path.name} has no parameter {', '.join(sorted(unknown))}.")
        self._parameters: dict[str, Any] = {
            name: _typed(spec, str((parameters or {}).get(name, spec.get("Default"))))
            for name, spec in declared.items()
            if name in (parameters or {}) or "Default" in spec
        }
        self._attributes = attributes or {}

    def section(self, *keys: str) -> Any:
        """Return a resolved part of the template, or {} if it has none."""
        part: Any = self._raw
        for key in keys:
            part = part.get(key, {})
        return self.resolve(part)

    def resources(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the resolved properties of every resource of a type, by logical id."""
        resources = self._raw["Resources"]
        return {name: self.resolve(resources[name].get("Properties", {})) for name in self.logical_ids(kind)}

    def logical_ids(self, kind: str) -> list[str]:
        """Return the resources of a type whose conditions hold."""
        return [
            name
            for name, resource in self._raw["Resources"].items()
            if resource["Type"] == kind and self._holds(resource.get("Condition"))
        ]

    def name_of(self, logical_id: str) -> str:
        """Return the name of a resource, or its logical id if it has none."""
        resource = self._raw["Resources"][logical_id]
        named_by, _ = NAMED.get(resource["Type"], ("", ""))
        return str(self.resolve(resource.get("Properties", {}).get(named_by, logical_id)))

    def resolve(self, value: Any) -> Any:
        """Return `value` with every intrinsic function in it replaced by its result."""
        if isinstance(value, list):
            items = [self.resolve(item) for item in value]
            return [item for item in items if item is not ABSENT]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            [(name, argument)] = value.items()
            if function := self._FUNCTIONS.get(name):
                return function(self, argument)
            if name.startswith("Fn::"):
                raise TemplateError(f"{name} is not supported here.")
        fields = {key: self.resolve(item) for key, item in value.items()}
        return {key: item for key, item in fields.items() if item is not ABSENT}

    def _ref(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return ABSENT
        for known in (PSEUDO_PARAMETERS, self._parameters):
            if name in known:
                return known[name]
        if name in self._attributes:
            return self._attributes[name]["Ref"]
        if name in self._raw["Resources"]:
            return self.name_of(name)
        raise TemplateError(f"{name} has no value: pass it as a parameter.")

    def _attribute(self, path: list[str] | str) -> str:
        name, attribute = path.split(".", 1) if isinstance(path, str) else path
        known = self._attributes.get(name, {})
        if attribute in known:
            return known[attribute]
        kind = self._raw["Resources"].get(name, {}).get("Type")
        if attribute != "Arn" or kind not in NAMED:
            raise TemplateError(f"{name}.{attribute} is not known before {name} is deployed.")
        shape = NAMED[kind][1].format(region=REGION, account=ACCOUNT, name=self.name_of(name))
        return f"arn:aws:{shape}"

    def _sub(self, argument: str | list[Any]) -> str:
        text, extra = (argument, {}) if isinstance(argument, str) else argument

        def replace(match: re.Match[str]) -> str:
            name = match[1]
            if name.startswith("!"):
                return "${" + name[1:] + "}"
            if name in extra:
                return str(self.resolve(extra[name]))
            return str(self._attribute(name) if "." in name else self._ref(name))

        return re.sub(r"\$\{([^}]+)\}", replace, text)

    def _if(self, argument: list[Any]) -> Any:
        condition, yes, no = argument
        return self.resolve(yes if self._holds(condition) else no)

    def _holds(self, condition: str | None) -> bool:
        return condition is None or bool(self.resolve(self._raw["Conditions"][condition]))

    def _join(self, argument: list[Any]) -> str:
        separator, parts = argument
        return str(separator).join(str(part) for part in self.resolve(parts))

    def _equals(self, argument: list[Any]) -> bool:
        left, right = self.resolve(argument)
        return str(left) == str(right)

    def _select(self, argument: list[Any]) -> Any:
        index, items = self.resolve(argument)
        return items[int(index)]

    def _find_in_map(self, argument: list[Any]) -> Any:
        name, first, second = self.resolve(argument)
        return self._raw["Mappings"][name][first][second]

    _FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {
        "Ref": _ref,
        "Condition": _holds,
        "Fn::GetAtt": _attribute,
        "Fn::Sub": _sub,
        "Fn::If": _if,
        "Fn::Join": _join,
        "Fn::Select": _select,
        "Fn::FindInMap": _find_in_map,
        "Fn::Equals": _equals,
        "Fn::Not": lambda self, argument: not self.resolve(argument)[0],
        "Fn::And": lambda self, argument: all(self.resolve(argument)),
        "Fn::Or": lambda self, argument: any(self.resolve(argument)),
    }


def _typed(spec: Mapping[str, Any], value: str) -> str | list[str]:
    if spec["Type"] == "CommaDelimitedList":
        return [item.strip() for item in value.split(",")]
    return value
