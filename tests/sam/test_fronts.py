"""How the stack is reached and replaced: API Gateway with its domain and authorizers, WAF, canaries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.cloudformation import Document
from local.template import TEMPLATE, Template
from omniagent.http import serving
from tests.sam.builds import JWT, QUEUES, REQUIRED, Sam
from tests.sam.conftest import Deploy

API = {"Front": "api-gateway"}
ID_TOKENS = {"JwtTokenUse": "id"}
USER_POOL = {"ApiUserPoolArn": "arn:aws:cognito-idp:us-east-1:123456789012:userpool/us-east-1_AbCdEf"}
AUTHORIZER = "arn:aws:lambda:us-east-1:123456789012:function:authorizer"
LAMBDA = {"ApiAuthorizerArn": AUTHORIZER}
VPC = {"VpcSubnetIds": "subnet-1", "VpcSecurityGroupIds": "sg-1"}
WAF = {"WafRateLimit": "1000"}
DOMAIN = {
    "ApiDomainName": "chat.example.com",
    "ApiCertificateArn": "arn:aws:acm:us-east-1:123456789012:certificate/11111111-2222-3333-4444-555555555555",
}
ORIGINS = {"CorsOrigins": "https://a.example,https://b.example"}


def body(document: Document) -> dict[str, Any]:
    [api] = document.resources("AWS::ApiGateway::RestApi").values()
    found: dict[str, Any] = api["Body"]
    return found


def methods(document: Document) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in body(document)["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def failed_rules(document: Document) -> list[str]:
    rules = [document.section("Rules", name) for name in document.section("Rules")]
    return [
        assertion["AssertDescription"]
        for rule in rules
        if rule["RuleCondition"]
        for assertion in rule["Assertions"]
        if not assertion["Assert"]
    ]


def test_the_api_streams_from_chat_and_leaves_the_rest_to_sessions(deploy: Deploy) -> None:
    document = deploy(**API)
    for path, _, operation in methods(document):
        integration = operation["x-amazon-apigateway-integration"]
        streams = path.startswith("/chat")
        function = "ChatFunctionAliaslive" if streams else "SessionsFunctionAliaslive"
        assert integration["type"] == "aws_proxy"
        assert f"/functions/{function}/" in integration["uri"]
        assert integration["uri"].endswith("/response-streaming-invocations") == streams
        assert (integration.get("responseTransferMode") == "STREAM") == streams
        assert integration.get("timeoutInMillis", 0) == (900_000 if streams else 0)
    assert {path for path, _, _ in methods(document)} == {"/chat", "/chat/{proxy+}", "/{proxy+}"}
    permissions = document.resources("AWS::Lambda::Permission").values()
    of_api = [item for item in permissions if item["Principal"] == "apigateway.amazonaws.com"]
    invoked = {item["FunctionName"]: item["SourceArn"] for item in of_api}
    live = "arn:aws:execute-api:us-east-1:123456789012:Api/live/*"
    assert invoked == {"ChatFunctionAliaslive": live, "SessionsFunctionAliaslive": live}


def test_the_api_has_one_stage(deploy: Deploy) -> None:
    """SAM may deploy a stage named Stage beside it, which WAF and the alarms do not cover."""
    document = deploy(**API)
    [stage] = document.resources("AWS::ApiGateway::Stage").values()
    [deployment] = document.resources("AWS::ApiGateway::Deployment").values()
    assert stage["StageName"] == "live"
    assert "StageName" not in deployment


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, [{"signature": []}]),
        (JWT, []),
        (JWT | USER_POOL, [{"pool": []}]),
        (JWT | LAMBDA, [{"authorizer": []}]),
    ],
    ids=["iam", "jwt", "user pool", "authorizer"],
)
def test_every_request_but_a_preflight_is_checked(
    parameters: dict[str, str], expected: list[Any], deploy: Deploy
) -> None:
    document = deploy(**API, **parameters)
    assert [operation["security"] for _, _, operation in methods(document)] == [expected] * 3
    preflights = [item for item in methods(deploy(**API, **ORIGINS, **parameters)) if item[1] == "options"]
    assert [operation["security"] for _, _, operation in preflights] == [[]] * 3
    known = body(document)["components"]["securitySchemes"].keys()
    assert {name for scheme in expected for name in scheme} <= known


def test_an_authorizer_of_the_teams_own_may_be_invoked(deploy: Deploy) -> None:
    document = deploy(**API, **JWT, ApiAuthorizerArn=AUTHORIZER)
    assert AUTHORIZER in [item["FunctionName"] for item in document.resources("AWS::Lambda::Permission").values()]


def test_behind_the_api_the_function_urls_are_closed(deploy: Deploy) -> None:
    """Otherwise they would lead around WAF and the authorizers."""
    document = deploy(**API, **JWT)
    assert {url["AuthType"] for url in document.resources("AWS::Lambda::Url").values()} == {"AWS_IAM"}
    assert "*" not in [item["Principal"] for item in document.resources("AWS::Lambda::Permission").values()]


def test_the_policy_for_callers_allows_the_api_and_nothing_else(deploy: Deploy) -> None:
    policy = deploy(**API).resources("AWS::IAM::ManagedPolicy")["ChatInvokePolicy"]
    [statement] = policy["PolicyDocument"]["Statement"]
    assert statement["Action"] == "execute-api:Invoke"
    assert statement["Resource"] == "arn:aws:execute-api:us-east-1:123456789012:Api/live/*"


def test_behind_the_api_the_functions_answer_for_cors(deploy: Deploy) -> None:
    for parameters, expected in ((API | ORIGINS, "https://a.example,https://b.example"), (ORIGINS, None), (API, None)):
        for function in deploy(**parameters).resources("AWS::Lambda::Function").values():
            assert function["Environment"]["Variables"].get("CORS_ORIGINS") == expected
    assert "x-amazon-apigateway-gateway-responses" in body(deploy(**API, **ORIGINS))
    assert "x-amazon-apigateway-gateway-responses" not in body(deploy(**API))


def test_cors_is_the_same_on_both_fronts(deploy: Deploy) -> None:
    urls = [url["Cors"] for url in deploy(**ORIGINS).resources("AWS::Lambda::Url").values()]
    for name, ours in (
        ("AllowMethods", serving.ALLOWED_METHODS),
        ("AllowHeaders", serving.ALLOWED_HEADERS),
        ("ExposeHeaders", serving.EXPOSED_HEADERS),
    ):
        assert set.union(*(set(url[name]) for url in urls)) == set(ours)
    assert {url["MaxAge"] for url in urls} == {serving.MAX_AGE_SECONDS}


def test_each_deploy_takes_a_new_snapshot_of_the_api() -> None:
    """SAM does not see what a condition in the API's body comes to, so a changed AuthMode would not be served."""
    assert Document(TEMPLATE).section("Resources", "Api", "Properties", "AlwaysDeploy") is True


def test_a_domain_closes_the_address_of_aws(deploy: Deploy) -> None:
    document = deploy(**API, **DOMAIN, ApiHostedZoneId="Z0123456789")
    [domain] = document.resources("AWS::ApiGateway::DomainName").values()
    assert (domain["DomainName"], domain["SecurityPolicy"]) == ("chat.example.com", "TLS_1_2")
    [mapping] = document.resources("AWS::ApiGateway::BasePathMapping").values()
    assert (mapping["RestApiId"], mapping["Stage"]) == ("Api", "ApiliveStage")
    [record] = document.resources("AWS::Route53::RecordSet").values()
    assert (record["Name"], record["AliasTarget"]["HostedZoneId"]) == ("chat.example.com", "Z1")
    # OpenAPI 3 reads the switch in a server object, and nowhere else.
    endpoint = "x-amazon-apigateway-endpoint-configuration"
    assert body(document)["servers"] == [{endpoint: {"disableExecuteApiEndpoint": True}}]
    assert body(deploy(**API))["servers"] == [{endpoint: {"disableExecuteApiEndpoint": False}}]
    assert deploy(**API, **DOMAIN).resources("AWS::Route53::RecordSet") == {}


def test_every_address_around_the_front_is_listed_as_closed(deploy: Deploy) -> None:
    urls = ["https://chat.on.aws/", "https://sessions.on.aws/"]
    api = "https://Api.execute-api.us-east-1.amazonaws.com"
    assert deploy(**API).section("Outputs", "ClosedUrls", "Value").split() == [*urls, f"{api}/Stage/"]
    behind_domain = deploy(**API, **DOMAIN).section("Outputs", "ClosedUrls", "Value").split()
    assert behind_domain == [*urls, f"{api}/Stage/", f"{api}/live/"]


def test_waf_limits_each_address_and_lets_people_write_code_into_a_chat(deploy: Deploy) -> None:
    document = deploy(**API, WafRateLimit="500")
    [acl] = document.resources("AWS::WAFv2::WebACL").values()
    rate = acl["Rules"][0]["Statement"]["RateBasedStatement"]
    assert (acl["Scope"], rate["Limit"], rate["AggregateKeyType"]) == ("REGIONAL", "500", "IP")
    assert acl["Rules"][0]["Action"]["Block"]["CustomResponse"]["ResponseCode"] == 429
    assert all(rule["OverrideAction"] == {"None": {}} for rule in acl["Rules"][1:])
    groups = [rule["Statement"].get("ManagedRuleGroupStatement", {}) for rule in acl["Rules"]]
    counted = {override["Name"] for group in groups for override in group.get("RuleActionOverrides", ())}
    assert {"CrossSiteScripting_BODY", "SizeRestrictions_BODY", "GenericLFI_BODY", "Log4JRCE_BODY"} <= counted
    [association] = document.resources("AWS::WAFv2::WebACLAssociation").values()
    assert association["ResourceArn"].endswith("/restapis/Api/stages/ApiliveStage")


def metrics_of(alarm: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The metrics of an alarm with an expression, each with its dimensions."""
    stats = [item["MetricStat"]["Metric"] for item in alarm["Metrics"] if "MetricStat" in item]
    return {stat["MetricName"]: {item["Name"]: item["Value"] for item in stat.get("Dimensions", ())} for stat in stats}


@pytest.mark.parametrize(
    ("front", "of_chat", "of_sessions"),
    [({}, "ChatUrl5xx", "SessionsUrl5xx"), (API, "Api5xx", "Api5xx")],
    ids=["urls", "api"],
)
def test_a_canary_is_rolled_back_by_errors_and_5xx_only(
    front: dict[str, str], of_chat: str, of_sessions: str, deploy: Deploy
) -> None:
    """No user can roll a deployment back: failed turns and 4xx do not count."""
    document = deploy(**front, DeploymentType="Canary10Percent5Minutes")
    groups = document.resources("AWS::CodeDeploy::DeploymentGroup")
    for group in groups.values():
        assert "Canary10Percent5Minutes" in group["DeploymentConfigName"]
        assert "DEPLOYMENT_STOP_ON_ALARM" in group["AutoRollbackConfiguration"]["Events"]
    alarms = {
        name.removesuffix("FunctionDeploymentGroup"): {alarm["Name"] for alarm in group["AlarmConfiguration"]["Alarms"]}
        for name, group in groups.items()
    }
    assert alarms["Chat"] == {"ChatCanary", of_chat}
    assert alarms["Sessions"] == {"SessionsCanary", of_sessions}
    assert (alarms["Run"], alarms["Summary"]) == ({"RunCanary"}, {"SummaryCanary"})
    assert set.union(*alarms.values()) <= document.resources("AWS::CloudWatch::Alarm").keys()
    policy = document.section("Resources", "ChatFunctionAliaslive", "UpdatePolicy", "CodeDeployLambdaAliasUpdate")
    assert policy["DeploymentGroupName"] == "ChatFunctionDeploymentGroup"


def test_a_canary_looks_at_the_errors_of_the_new_version_alone(deploy: Deploy) -> None:
    document = deploy(DeploymentType="Linear10PercentEvery1Minute")
    for function in ("Chat", "Sessions", "Run", "Summary"):
        dimensions = metrics_of(document.resources("AWS::CloudWatch::Alarm")[f"{function}Canary"])
        version = document.section("Resources", f"{function}FunctionAliaslive", "Properties", "FunctionVersion")
        name = f"{function}Function"
        expected = {"FunctionName": name, "Resource": f"{name}:live", "ExecutedVersion": version}
        assert dimensions == {"Errors": expected, "Invocations": expected}


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (API | JWT | ID_TOKENS | USER_POOL | DOMAIN | {"ApiHostedZoneId": "Z1", "WafRateLimit": "1000"}, ""),
        (API | JWT | USER_POOL, "ApiUserPoolArn needs JwtTokenUse id, which is what API Gateway checks"),
        (DOMAIN, "ApiDomainName needs Front api-gateway"),
        (API | VPC, ""),
        (VPC, "VpcSubnetIds needs Front api-gateway. A Function URL does not stream from inside a VPC"),
        (API | {"VpcSubnetIds": "subnet-1"}, "VpcSubnetIds needs VpcSecurityGroupIds"),
        (WAF, "WafRateLimit needs Front api-gateway. A Function URL takes AWS WAF only behind CloudFront"),
        (API | {"ApiDomainName": "chat.example.com"}, "ApiDomainName needs ApiCertificateArn"),
        (API | {"ApiHostedZoneId": "Z1"}, "ApiHostedZoneId needs ApiDomainName"),
        (API | ID_TOKENS | USER_POOL, "ApiUserPoolArn needs AuthMode jwt"),
        (API | LAMBDA, "ApiAuthorizerArn needs AuthMode jwt"),
        (API | JWT | ID_TOKENS | USER_POOL | LAMBDA, "Set ApiUserPoolArn or ApiAuthorizerArn, not both"),
    ],
)
def test_parameters_that_do_not_fit_together_are_refused(parameters: dict[str, str], said: str) -> None:
    assert failed_rules(Document(TEMPLATE, parameters=REQUIRED | parameters)) == [said] * bool(said)


def test_managed_instances_are_eight_lines_to_uncomment(sam: Sam, tmp_path: Path) -> None:
    lines = TEMPLATE.read_text().splitlines()
    start = lines.index("  ChatFunction:")
    part = [line.replace("# ", "", 1) for line in lines[start : start + 8]]
    changed = tmp_path / "changed.yaml"
    changed.write_text("\n".join([*lines[:start], *part, *lines[start + 8 :]]))
    function = sam.expand({"ChatMemory": "2048"}, changed).resources("AWS::Lambda::Function")["ChatFunction"]
    [config] = function["CapacityProviderConfig"].values()
    assert (config["PerExecutionEnvironmentMaxConcurrency"], "VpcConfig" in function) == (64, False)
    assert Template(changed, parameters=REQUIRED, attributes=QUEUES).function("chat").requests_at_once == 64
