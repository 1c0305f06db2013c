"""What the local stack reads from a template."""

from pathlib import Path

import pytest

from local.cloudformation import TemplateError
from local.template import Template

SMALL = """
Parameters:
  Stage: {Type: String, Default: dev}
  Origins: {Type: CommaDelimitedList, Default: "https://a.example, https://b.example"}
  Key: {Type: String}
Conditions:
  Prod: !Equals [!Ref Stage, prod]
  Small: !And [!Not [!Condition Prod], !Or [!Condition Prod, !Equals [1, "1"]]]
Globals:
  Function:
    Runtime: python3.13
    Handler: app.handler
    Layers: [!Ref Shared]
    Environment: {Variables: {STAGE: !Ref Stage, BOTH: global}}
Resources:
  Shared: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: layer}}
  Jobs: {Type: AWS::SQS::Queue}
  Kept: {Type: AWS::DynamoDB::Table, Condition: Prod}
  WorkFunction:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: work
      Timeout: !If [Small, 5, 50]
      Environment:
        Variables:
          BOTH: own
          QUEUE: !Ref Jobs
          ARN: !GetAtt Jobs.Arn
          TEXT: !Sub "${Stage} in ${AWS::Region} of ${Jobs.Arn}, ${!literal}"
          JOINED: !Join ["-", [!Ref Stage, !Select [1, !Ref Origins]]]
          ABSENT: !If [Prod, yes, !Ref AWS::NoValue]
      FunctionUrlConfig: {AuthType: AWS_IAM, Cors: {AllowOrigins: !Ref Origins}}
      Events:
        Jobs: {Type: SQS, Properties: {Queue: !GetAtt Jobs.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}}
  SecretFunction:
    Type: AWS::Serverless::Function
    Condition: Prod
    Properties: {CodeUri: secret, Environment: {Variables: {KEY: !Ref Key}}}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "template.yaml"
    path.write_text(SMALL)
    return path


def test_a_function_gets_its_own_values_over_the_globals(small: Path) -> None:
    work = Template(small, attributes={"Jobs": {"Ref": "http://queue/jobs"}}).functions["WorkFunction"]
    assert work.environment == {
        "STAGE": "dev",
        "BOTH": "own",
        "QUEUE": "http://queue/jobs",
        "ARN": "arn:aws:sqs:us-east-1:123456789012:Jobs",
        "TEXT": "dev in us-east-1 of arn:aws:sqs:us-east-1:123456789012:Jobs, ${literal}",
        "JOINED": "dev-https://b.example",
    }
    assert (work.handler, work.timeout, work.layers) == ("app.handler", 5, (small.parent / "layer",))
    assert work.url is not None
    assert work.url.auth_type == "AWS_IAM"
    assert work.url.cors is not None
    assert work.url.cors.allow_origins == ("https://a.example", "https://b.example")
    assert [source.reports_failures for source in work.queues] == [True]


def test_conditions_decide_which_resources_there_are(small: Path) -> None:
    assert set(Template(small).functions) == {"WorkFunction"}
    prod = Template(small, parameters={"Stage": "prod", "Key": "k"})
    assert prod.functions["WorkFunction"].timeout == 50
    assert prod.functions["SecretFunction"].environment["KEY"] == "k"


def test_a_parameter_without_a_value_is_named(small: Path) -> None:
    template = Template(small, parameters={"Stage": "prod"})
    with pytest.raises(TemplateError, match="Key has no value"):
        _ = template.functions
