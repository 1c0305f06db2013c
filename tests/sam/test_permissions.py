"""Who may do what, in the CloudFormation that is deployed: the functions at AWS, and callers at the functions."""

import json
from typing import Any

import pytest

from local.cloudformation import Document
from local.template import TEMPLATE
from tests.sam.builds import JWT, MONGO_SECRET, OPENAI_SECRET, REQUIRED
from tests.sam.conftest import Deploy

KEY = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
TABLE = "arn:aws:dynamodb:us-east-1:123456789012:table/TurnsTable"
QUEUE = "arn:aws:sqs:us-east-1:123456789012:SummaryQueue"
RUNS = "arn:aws:sqs:us-east-1:123456789012:RunQueue"
SCHEDULES = "arn:aws:sqs:us-east-1:123456789012:ScheduleQueue"
TAKES = "sqs:ReceiveMessage sqs:DeleteMessage sqs:GetQueueAttributes"
LOGS = "arn:aws:logs:us-east-1:123456789012:log-group:/aws/lambda/omniagent/{}:*"

Grants = set[tuple[str, str]]


def grants(actions: str, *resources: str) -> Grants:
    return {(action, resource) for action in actions.split() for resource in resources}


def logs(function: str) -> Grants:
    return grants("logs:CreateLogStream logs:PutLogEvents", LOGS.format(function))


def common(function: str) -> Grants:
    return logs(function) | grants("secretsmanager:GetSecretValue", MONGO_SECRET, OPENAI_SECRET)


ALLOWED = {
    "ChatRole": common("chat")
    | grants("dynamodb:GetItem dynamodb:PutItem dynamodb:UpdateItem dynamodb:DeleteItem dynamodb:Query", TABLE)
    | grants("sqs:SendMessage", QUEUE, RUNS),
    "SessionsRole": common("sessions")
    | grants("dynamodb:GetItem dynamodb:PutItem dynamodb:UpdateItem dynamodb:DeleteItem dynamodb:Query", TABLE)
    | grants("sqs:SendMessage", QUEUE, RUNS),
    "SummaryRole": common("summary")
    | grants(f"{TAKES} sqs:SendMessage", QUEUE)
    | grants("dynamodb:GetItem dynamodb:UpdateItem", TABLE),
    "RunRole": common("run")
    | grants(f"{TAKES} sqs:SendMessage", RUNS)
    | grants(TAKES, SCHEDULES)
    | grants("dynamodb:GetItem dynamodb:PutItem dynamodb:UpdateItem dynamodb:DeleteItem dynamodb:Query", TABLE)
    | grants("sqs:SendMessage", QUEUE),
}

BEDROCK = grants("bedrock:InvokeModel bedrock:InvokeModelWithResponseStream bedrock:CallWithBearerToken", "*")
# The functions that a team's tools run in.
RUNS_TOOLS = {"ChatRole", "RunRole"}


@pytest.fixture
def iam_mode(deploy: Deploy) -> Document:
    return deploy()


@pytest.fixture
def jwt_mode(deploy: Deploy) -> Document:
    return deploy(**JWT)


def statements(policy: dict[str, Any]) -> Grants:
    """Every action with every resource it is allowed on."""
    allowed: Grants = set()
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        assert not {"NotAction", "NotResource", "NotPrincipal"} & statement.keys()
        allowed |= grants(" ".join(_list(statement["Action"])), *_list(statement["Resource"]))
    return allowed


def allowed(document: Document) -> dict[str, Grants]:
    """What each role may do."""
    roles = {name: role["Policies"] for name, role in document.resources("AWS::IAM::Role").items()}
    return {name: statements(policy["PolicyDocument"]) for name, [policy] in roles.items()}


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def test_each_function_may_do_what_is_listed_here_and_nothing_else(iam_mode: Document) -> None:
    assert allowed(iam_mode) == ALLOWED
    for name, role in iam_mode.resources("AWS::IAM::Role").items():
        assert role.get("ManagedPolicyArns", []) == (["ToolPermissions"] if name in RUNS_TOOLS else [])


def test_tools_may_do_nothing_until_the_team_allows_it(iam_mode: Document) -> None:
    policy = iam_mode.resources("AWS::IAM::ManagedPolicy")["ToolPermissions"]
    assert {statement["Effect"] for statement in policy["PolicyDocument"]["Statement"]} == {"Deny"}


def test_each_function_has_its_own_role_that_only_lambda_assumes(iam_mode: Document) -> None:
    used = [str(function["Role"]) for function in iam_mode.resources("AWS::Lambda::Function").values()]
    assert sorted(arn.rsplit("/")[-1] for arn in used) == sorted(ALLOWED)
    for role in iam_mode.resources("AWS::IAM::Role").values():
        [statement] = role["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Principal"] == {"Service": "lambda.amazonaws.com"}


def test_bedrock_is_called_by_role_and_without_a_secret(deploy: Deploy) -> None:
    document = deploy(ModelAccess="bedrock", OpenAISecretArn="")
    secret = grants("secretsmanager:GetSecretValue", OPENAI_SECRET)
    assert allowed(document) == {name: (known - secret) | BEDROCK for name, known in ALLOWED.items()}
    for function in document.resources("AWS::Lambda::Function").values():
        assert "OPENAI_SECRET_ARN" not in function["Environment"]["Variables"]


@pytest.mark.parametrize(
    ("parameter", "uses", "services"),
    [
        ("SecretsKmsKeyArn", "Decrypt", "secretsmanager.us-east-1.amazonaws.com"),
        (
            "DataKmsKeyArn",
            "Decrypt DescribeKey Encrypt GenerateDataKey ReEncryptFrom ReEncryptTo",
            ["dynamodb.us-east-1.amazonaws.com", "sqs.us-east-1.amazonaws.com"],
        ),
    ],
)
def test_a_customer_key_may_be_used_through_its_services_only(
    parameter: str, uses: str, services: str | list[str], deploy: Deploy
) -> None:
    document = deploy(**{parameter: KEY})
    used = grants(" ".join(f"kms:{use}" for use in uses.split()), KEY)
    assert allowed(document) == {name: known | used for name, known in ALLOWED.items()}
    for role in document.resources("AWS::IAM::Role").values():
        [use] = [each for each in role["Policies"][0]["PolicyDocument"]["Statement"] if each["Resource"] == KEY]
        assert use["Condition"] == {"StringEquals": {"kms:ViaService": services}}


def test_the_run_function_reads_the_webhooks_secret_where_there_is_one(deploy: Deploy) -> None:
    secret = "arn:aws:secretsmanager:us-east-1:123456789012:secret:webhook"
    document = deploy(WebhookUrl="https://example.com/hook", WebhookSecretArn=secret)
    of_run = ALLOWED["RunRole"] | grants("secretsmanager:GetSecretValue", secret)
    assert allowed(document) == ALLOWED | {"RunRole": of_run}
    for name, function in document.resources("AWS::Lambda::Function").items():
        variables = function["Environment"]["Variables"]
        tells = name in ("ChatFunction", "RunFunction")
        assert variables.get("WEBHOOK_URL") == ("https://example.com/hook" if tells else None)
        assert variables.get("WEBHOOK_SECRET") == (secret if tells else None)


def test_a_configured_schedule_only_sends_to_the_queue_of_schedules(deploy: Deploy) -> None:
    assert deploy().resources("AWS::Scheduler::Schedule") == {}
    given = {"ScheduleExpression": "rate(1 day)", "ScheduleUser": "user:ada", "ScheduleQuery": "What is new?"}
    document = deploy(**given, DataKmsKeyArn=KEY)
    [schedule] = document.resources("AWS::Scheduler::Schedule").values()
    message = json.loads(schedule["Target"]["Input"])
    assert message == {
        "kind": "schedule",
        "schedule": "example",
        "time": "<aws.scheduler.scheduled-time>",
        "user": "user:ada",
        "query": "What is new?",
    }
    assert schedule["Target"]["Arn"] == SCHEDULES
    role = document.resources("AWS::IAM::Role")["ScheduleRole"]
    with_key = grants("kms:Decrypt kms:GenerateDataKey", KEY)
    assert allowed(document)["ScheduleRole"] == grants("sqs:SendMessage", SCHEDULES) | with_key
    [trusted] = role["AssumeRolePolicyDocument"]["Statement"]
    assert trusted["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert trusted["Condition"] == {"StringEquals": {"aws:SourceAccount": "123456789012"}}


def test_no_function_that_runs_tools_can_forge_a_schedule_or_a_deletion(iam_mode: Document) -> None:
    """`ALLOWED` lets no function invoke another, as a deletion is, or send to the queue of schedules."""
    sources = iam_mode.resources("AWS::Lambda::EventSourceMapping").values()
    assert {(source["FunctionName"].removesuffix("Aliaslive"), source["EventSourceArn"]) for source in sources} == {
        ("SummaryFunction", QUEUE),
        ("RunFunction", RUNS),
        ("RunFunction", SCHEDULES),
    }
    functions = iam_mode.resources("AWS::Lambda::Function")
    # By its queue's name, the function knows which messages it may believe.
    assert functions["RunFunction"]["Environment"]["Variables"]["RUN_QUEUE_URL"].endswith("/RunQueue")


@pytest.mark.parametrize(
    ("rule", "permission", "function", "event"),
    [
        ("RunFunctionSweep", "RunFunctionSweepPermission", "RunFunction", '{"kind": "sweep"}'),
        ("ModelCheckSchedule", "ModelCheckMayInvoke", "SummaryFunction", '{"model_ends": true}'),
    ],
)
def test_a_schedule_may_call_its_function(
    rule: str, permission: str, function: str, event: str, iam_mode: Document
) -> None:
    [target] = iam_mode.resources("AWS::Events::Rule")[rule]["Targets"]
    assert (target["Arn"], target["Input"]) == (f"{function}Aliaslive", event)
    allowed = iam_mode.resources("AWS::Lambda::Permission")[permission]
    assert allowed["FunctionName"] == f"{function}Aliaslive"
    assert allowed["SourceArn"].endswith(rule)


def test_the_run_function_sweeps_once_a_minute(iam_mode: Document, deploy: Deploy) -> None:
    variables = deploy(SessionRetentionDays="90").resources("AWS::Lambda::Function")["RunFunction"]["Environment"]
    assert variables["Variables"]["SESSION_RETENTION_DAYS"] == "90"
    assert iam_mode.resources("AWS::Events::Rule")["RunFunctionSweep"]["ScheduleExpression"] == "rate(1 minute)"


def test_in_iam_mode_urls_require_signatures_and_the_stack_admits_nobody(iam_mode: Document) -> None:
    assert [url["AuthType"] for url in iam_mode.resources("AWS::Lambda::Url").values()] == ["AWS_IAM"] * 2
    assert iam_mode.resources("AWS::Lambda::Permission").keys() == {"RunFunctionSweepPermission", "ModelCheckMayInvoke"}


def test_in_iam_mode_a_policy_to_attach_allows_the_two_urls(iam_mode: Document) -> None:
    policy = iam_mode.resources("AWS::IAM::ManagedPolicy")["ChatInvokePolicy"]
    aliases = ("ChatFunctionAliaslive", "SessionsFunctionAliaslive")
    document = policy["PolicyDocument"]
    assert statements(document) == grants("lambda:InvokeFunctionUrl lambda:InvokeFunction", *aliases)
    assert {"Bool": {"lambda:InvokedViaFunctionUrl": True}} in [item["Condition"] for item in document["Statement"]]
    assert not {"Users", "Roles", "Groups"} & policy.keys()


def test_in_jwt_mode_the_urls_are_open_and_nothing_but_the_urls(jwt_mode: Document) -> None:
    assert [url["AuthType"] for url in jwt_mode.resources("AWS::Lambda::Url").values()] == ["NONE"] * 2
    assert jwt_mode.resources("AWS::IAM::ManagedPolicy").keys() == {"ToolPermissions"}
    permissions = list(jwt_mode.resources("AWS::Lambda::Permission").values())
    for alias in ("ChatFunctionAliaslive", "SessionsFunctionAliaslive"):
        everybody = {"FunctionName": alias, "Principal": "*"}
        by_url = {"Action": "lambda:InvokeFunctionUrl", "FunctionUrlAuthType": "NONE"}
        through_url = {"Action": "lambda:InvokeFunction", "InvokedViaFunctionUrl": True}
        assert everybody | by_url in permissions
        assert everybody | through_url in permissions
    assert len(permissions) == 4 + 2  # the schedules'


def test_jwt_mode_is_refused_without_issuer_and_audience_or_client() -> None:
    def rule(**parameters: str) -> dict[str, Any]:
        document = Document(TEMPLATE, parameters=REQUIRED | {"AuthMode": "jwt"} | parameters)
        found: dict[str, Any] = document.section("Rules", "JwtNeedsIssuerAndAudience")
        return found

    for given in (rule(**JWT), rule(JwtIssuer="https://issuer.example", JwtClientIds="web")):
        assert [item["Assert"] for item in given["Assertions"]] == [True, True]
    missing = rule()
    assert [item["Assert"] for item in missing["Assertions"]] == [False, False]
    assert missing["RuleCondition"] is True


VPC = {"Front": "api-gateway", "VpcSubnetIds": "subnet-1,subnet-2", "VpcSecurityGroupIds": "sg-1"}


def test_every_function_is_in_the_vpc_and_only_lambda_connects_it(deploy: Deploy) -> None:
    document = deploy(**VPC)
    for function in document.resources("AWS::Lambda::Function").values():
        assert function["VpcConfig"] == {"SubnetIds": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]}
    functions = [function["Role"] for function in document.resources("AWS::Lambda::Function").values()]
    roles = document.resources("AWS::IAM::Role")
    connected = {
        f"arn:aws:iam::123456789012:role/{name}" for name in roles if "VpcAccess" in roles[name]["ManagedPolicyArns"]
    }
    assert connected == set(functions)
    policy = document.resources("AWS::IAM::ManagedPolicy")["VpcAccess"]["PolicyDocument"]
    allowed, denied = policy["Statement"]
    assert {action.partition(":")[0] for action in allowed["Action"]} == {"ec2"}
    assert (denied["Effect"], list(denied["Condition"]["ArnLike"])) == ("Deny", ["lambda:SourceFunctionArn"])
    assert set(allowed["Action"]) - set(denied["Action"]) == {"ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets"}


def test_every_role_has_the_permissions_boundary(deploy: Deploy) -> None:
    boundary = "arn:aws:iam::123456789012:policy/boundary"
    everything = {
        "DeploymentType": "Canary10Percent5Minutes",
        "ScheduleExpression": "rate(1 day)",
        "ScheduleUser": "ada",
        "ScheduleQuery": "What is new?",
    }
    roles = deploy(PermissionsBoundaryArn=boundary, **everything).resources("AWS::IAM::Role")
    assert {"ScheduleRole", "DeployRole"} <= roles.keys()
    assert {role["PermissionsBoundary"] for role in roles.values()} == {boundary}
    assert not [
        role for role in deploy(**everything).resources("AWS::IAM::Role").values() if "PermissionsBoundary" in role
    ]
