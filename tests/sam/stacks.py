"""`make stacks`: creates the expanded template in moto, in every form that a deployment may have, and prints it.

moto resolves references, conditions, attributes and outputs, and fails on those that are wrong. Kinds of resources that
it does not know are recorded with their resolved properties.
"""

import io
import json
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import boto3
import yaml
from moto import mock_aws
from moto.cloudformation import parsing

from local.cloudformation import REGION, STACK
from local.template import ROOT
from tests.sam.builds import JWT, REQUIRED, Sam

Json = dict[str, Any]
API = {"Front": "api-gateway"}
ARN = "arn:aws:{}:us-east-1:123456789012:{}"
KEY = ARN.format("kms", "key/11111111-2222-3333-4444-555555555555")
KNOWN_IN_PART = {"AWS::ApiGateway::Deployment", "AWS::Lambda::Version", "AWS::Route53::RecordSet"}
"""moto knows neither the attributes of a version, nor the methods of an API's body, nor a hosted zone by its id."""
FORMS: dict[str, dict[str, str]] = {
    "the defaults": {},
    "tokens and pages": JWT | {"CorsOrigins": "https://app.example", "SnapStart": "on"},
    "REST API": API,
    "REST API, domain, WAF": API
    | JWT
    | {
        "ApiDomainName": "chat.example.com",
        "ApiCertificateArn": ARN.format("acm", "certificate/1"),
        "ApiHostedZoneId": "Z1",
        "WafRateLimit": "1000",
        "CorsOrigins": "https://app.example",
    },
    "REST API, user pool": API
    | JWT
    | {"JwtTokenUse": "id", "ApiUserPoolArn": ARN.format("cognito-idp", "userpool/us-east-1_AbCdEf")},
    "VPC and boundary": API
    | {
        "VpcSubnetIds": "subnet-1,subnet-2",
        "VpcSecurityGroupIds": "sg-1",
        "PermissionsBoundaryArn": "arn:aws:iam::123456789012:policy/boundary",
    },
    "canary": {"DeploymentType": "Canary10Percent5Minutes", "ChatConcurrency": "50"},
    "canary behind the API": API | {"DeploymentType": "Linear10PercentEvery1Minute"},
    "own keys, retention": {
        "DataKmsKeyArn": KEY,
        "LogsKmsKeyArn": KEY,
        "SecretsKmsKeyArn": KEY,
        "SessionRetentionDays": "30",
        "TableWarmUnits": "20000",
    },
    "webhook, schedule, alarms": {
        "WebhookUrl": "https://hooks.example/turns",
        "WebhookSecretArn": ARN.format("secretsmanager", "secret:webhook-AbCdEf"),
        "ScheduleExpression": "rate(1 day)",
        "ScheduleUser": "ada",
        "ScheduleQuery": "What is new?",
        "AlarmEmail": "oncall@example.com",
        "TokensPerDayAlarm": "5000000",
    },
}


@dataclass
class Made:
    """A stack that moto has created."""

    status: str
    outputs: dict[str, str]
    kinds: Counter[str]
    recorded: dict[str, Json] = field(default_factory=dict)
    """The properties of resources that moto does not know, by logical id."""

    def described(self) -> str:
        """What an operator would like to know of it, in one line."""
        urls = [item for item in self.recorded.values() if "TargetFunctionArn" in item]
        stages = [item["StageName"] for item in self.recorded.values() if "StageName" in item]
        closed = self.outputs.get("ClosedUrls", "").split()
        facts = {
            "resources": self.kinds.total(),
            "functions": self.kinds["AWS::Lambda::Function"],
            "alarms": self.kinds["AWS::CloudWatch::Alarm"],
            "roles": self.kinds["AWS::IAM::Role"],
            "URLs": "/".join(sorted({url["AuthType"] for url in urls})),
            "stages": "/".join(stages) or "none",
            "closed": len(closed),
            "address": self.outputs["ChatUrl"].partition("://")[2].partition(".")[2] or self.outputs["ChatUrl"],
        }
        return f"{self.status}  " + ", ".join(f"{name} {value}" for name, value in facts.items())


def create(document: Json, parameters: Mapping[str, str]) -> Made:
    """Create a stack of an expanded template in an AWS of its own."""
    recorded: dict[str, Json] = {}
    kinds = {resource["Type"] for resource in document["Resources"].values()}
    unknown = kinds - parsing.get_model_map().keys() | KNOWN_IN_PART
    with mock_aws(), patch.dict(parsing.get_model_map(), {kind: _recording(kind, recorded) for kind in unknown}):
        s3 = boto3.client("s3", region_name=REGION)
        s3.create_bucket(Bucket="bucket")
        s3.put_object(Bucket="bucket", Key="key", Body=_archive())
        client = boto3.client("cloudformation", region_name=REGION)
        client.create_stack(
            StackName=STACK,
            TemplateBody=json.dumps(document),
            Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()],
            Capabilities=["CAPABILITY_IAM"],
        )
        [stack] = client.describe_stacks(StackName=STACK)["Stacks"]
        pages = client.get_paginator("list_stack_resources").paginate(StackName=STACK)
        items = [item for page in pages for item in page["StackResourceSummaries"]]
        made = Counter(item["ResourceType"] for item in items if item.get("PhysicalResourceId"))
    outputs = {item["OutputKey"]: item["OutputValue"] for item in stack.get("Outputs", [])}
    return Made(stack["StackStatus"], outputs, made, recorded)


def _recording(kind: str, recorded: dict[str, Json]) -> type:
    """Return a model for a kind that moto does not know, in the shape of moto's own. Its attributes are their names."""

    class Recorded:
        def __init__(self, name: str) -> None:
            self.physical_resource_id = name

        cloudformation_name_type: Callable[[], str] = staticmethod(lambda: "")
        cloudformation_type: Callable[[], str] = staticmethod(lambda: kind)

        @classmethod
        def has_cfn_attr(cls, attr: str) -> bool:
            return True

        def is_created(self) -> bool:
            return True

        def get_cfn_attribute(self, attribute_name: str) -> str:
            return f"https://{attribute_name}.{self.physical_resource_id}"

        @classmethod
        def create_from_cloudformation_json(
            cls,
            resource_name: str,
            cloudformation_json: Json,
            account_id: str,
            region_name: str,
            **kwargs: Any,
        ) -> "Recorded":
            properties = recorded[kwargs["LogicalId"]] = cloudformation_json.get("Properties", {})
            if kind == "AWS::Lambda::Alias":  # others refer to the function by it, and moto looks that up
                return cls(f"arn:aws:lambda:{region_name}:{account_id}:function:{properties['FunctionName']}")
            return cls(kwargs["LogicalId"])

    return Recorded


def _archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("app.py", "")
    return content.getvalue()


def production() -> dict[str, str]:
    """The parameters that parameters/prod.yaml ships, where they are no placeholders."""
    given = yaml.safe_load((ROOT / "parameters" / "prod.yaml").read_text())
    texts = {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in given.items()}
    return {name: text for name, text in texts.items() if name not in REQUIRED}


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        sam = Sam(Path(folder))
        try:
            for name, given in {**FORMS, "parameters/prod.yaml": production()}.items():
                made = create(sam.expanded(given), {**REQUIRED, **given})
                failed += made.status != "CREATE_COMPLETE"
                print(f"{name:28}{made.described()}", flush=True)
        finally:
            sam.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
