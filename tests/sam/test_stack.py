"""What a deploy comes to: functions, aliases, state, alarms and the parameters it is given."""

import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.cloudformation import STACK, Document
from local.template import ROOT, TEMPLATE
from omniagent.errors import ConfigurationError
from omniagent.http.auth import trusted_principals
from omniagent.session import summaries
from omniagent.settings import Settings, env_name
from omniagent.turns.watch import takeover
from tests.sam.builds import OF_A_TURN, QUEUES, Sam
from tests.sam.conftest import Deploy

FUNCTIONS = ("ChatFunction", "SessionsFunction", "SummaryFunction", "RunFunction")
# Read by Lambda, Powertools and our metrics rather than by Settings.
THEIRS = {
    "AWS_LAMBDA_EXEC_WRAPPER",
    "METRICS_SERVICE_NAME",
    "POWERTOOLS_METRICS_NAMESPACE",
    "POWERTOOLS_SERVICE_NAME",
}
KEY = "arn:aws:kms:us-east-1:123456789012:key"
SPACE, CHAT = "OmniAgent", f"{STACK}-chat"
COST_DRIVERS = {"Duration", "ConsumedWriteCapacityUnits", "ConsumedReadCapacityUnits", "NumberOfMessagesSent"}


def versions(document: Document) -> set[str]:
    return set(document.resources("AWS::Lambda::Version"))


@cache
def parameters() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = Document(TEMPLATE).section("Parameters")
    return found


def test_the_template_passes_the_linter(sam: Sam) -> None:
    assert "is a valid SAM Template" in sam.run("validate", "--lint")


def test_every_function_runs_python_3_13_on_arm64_with_the_layer(deploy: Deploy) -> None:
    document = deploy()
    [(layer, properties)] = document.resources("AWS::Lambda::LayerVersion").items()
    assert properties["LayerName"] == f"{STACK}-core", "two stacks of an account share no layer"
    functions = document.resources("AWS::Lambda::Function")
    assert set(functions) == set(FUNCTIONS)
    for name, function in functions.items():
        handler = f"{name.removesuffix('Function').lower()}.app.handler"
        assert (function["Runtime"], function["Architectures"]) == ("python3.13", ["arm64"])
        assert (function["Handler"], function["Layers"]) == (handler, [layer])
        assert function["LoggingConfig"]["LogFormat"] == "JSON"


def test_a_name_is_given_up_long_before_its_function_is_killed(deploy: Deploy) -> None:
    timeout = deploy().resources("AWS::Lambda::Function")["SessionsFunction"]["Timeout"]
    assert timeout >= 2 * summaries.NAME_SECONDS


def test_only_chat_streams_and_only_chat_starts_through_the_wrapper(deploy: Deploy) -> None:
    document = deploy()
    urls = {url["TargetFunctionArn"]: url["InvokeMode"] for url in document.resources("AWS::Lambda::Url").values()}
    assert urls == {"ChatFunctionAliaslive": "RESPONSE_STREAM", "SessionsFunctionAliaslive": "BUFFERED"}
    functions = document.resources("AWS::Lambda::Function")
    wrapped = [name for name in functions if "AWS_LAMBDA_EXEC_WRAPPER" in functions[name]["Environment"]["Variables"]]
    assert wrapped == ["ChatFunction"]


def test_a_new_release_publishes_every_function(deploy: Deploy) -> None:
    first, second = versions(deploy(Release="1794819600")), versions(deploy(Release="1794819601"))
    assert len(first) == len(second) == len(FUNCTIONS)
    assert not first & second


def test_a_changed_layer_publishes_every_function(deploy: Deploy, sam: Sam, tmp_path: Path) -> None:
    changed = tmp_path / "changed.yaml"
    changed.write_text(TEMPLATE.read_text().replace("the streaming runtime", "another runtime"))
    assert not versions(deploy()) & versions(sam.expand({}, changed))


@pytest.mark.parametrize(("given", "applied"), [("on", "PublishedVersions"), ("off", "None")])
def test_snapstart_is_for_those_that_people_wait_for(given: str, applied: str, deploy: Deploy) -> None:
    functions = deploy(SnapStart=given).resources("AWS::Lambda::Function")
    assert functions["ChatFunction"]["SnapStart"] == functions["SessionsFunction"]["SnapStart"] == {"ApplyOn": applied}
    assert "SnapStart" not in functions["SummaryFunction"] | functions["RunFunction"]


def test_browsers_are_let_in_from_the_origins_given_and_from_nowhere_else(deploy: Deploy) -> None:
    for url in deploy().resources("AWS::Lambda::Url").values():
        assert "Cors" not in url
    for url in deploy(CorsOrigins="https://a.example,https://b.example").resources("AWS::Lambda::Url").values():
        assert url["Cors"]["AllowOrigins"] == ["https://a.example", "https://b.example"]
        assert {"authorization", "content-type", "user-agent"} <= set(url["Cors"]["AllowHeaders"])
        # Only back ends speak for others, and they are no web pages.
        assert not [name for name in url["Cors"]["AllowHeaders"] if name.startswith("x-user-")]


@pytest.mark.parametrize(
    ("entry", "taken"),
    [
        ("", True),
        ("arn:aws:iam::123456789012:role/web", True),
        (" arn:aws:iam::123456789012:role/team/web", True),
        ("arn:aws-cn:iam::123456789012:user/team/ci", True),
        ("arn:aws:sts::123456789012:assumed-role/web/*", True),
        ("arn:aws:sts::123456789012:assumed-role/web/i-0abc", True),
        ("arn:aws:sts::123456789012:federated-user/ci", True),
        ("*", False),
        ("123456789012", False),
        ("arn:aws:iam::123456789012:root", False),
        ("arn:aws:iam::123456789012:role/*", False),
        ("arn:aws:iam::*:role/web", False),
        ("arn:aws:iam::12345678901:role/web", False),
        ("arn:aws:sts::123456789012:assumed-role/*/*", False),
        ("arn:aws:sts::123456789012:assumed-role/web", False),
    ],
)
def test_a_deploy_takes_the_principals_that_the_functions_take(entry: str, taken: bool) -> None:
    pattern = parameters()["TrustedPrincipals"]["AllowedPattern"]
    assert (re.search(pattern, entry, re.ASCII) is not None) is taken
    with nullcontext() if taken else pytest.raises(ConfigurationError):
        trusted_principals(entry)


def test_the_environment_is_what_settings_reads_and_holds_no_secret(deploy: Deploy) -> None:
    read = {env_name(setting) for setting in fields(Settings)}
    everything = {
        "OpenAIBaseUrl": "https://x.example",
        "JwtJwksUrl": "https://x.example",
        "JwtAudience": "x",
        "JwtClientIds": "web,app",
        "TrustedPrincipals": "arn:aws:iam::123456789012:role/a,arn:aws:iam::123456789012:role/b",
        "OtlpEndpoint": "https://x.example",
        "OtlpHeaders": "api-key=k",
    }
    for function in deploy(**everything).resources("AWS::Lambda::Function").values():
        variables = function["Environment"]["Variables"]
        assert variables.keys() - THEIRS <= read
        assert not {"OPENAI_API_KEY", "MONGODB_URI"} & variables.keys()
        Settings.from_env(variables)


def test_the_collectors_headers_are_hidden_and_reach_every_function(deploy: Deploy) -> None:
    assert parameters()["OtlpHeaders"]["NoEcho"] is True
    for given in ("", "api-key=a%20key", "api-key=k, x-team=me"):
        assert re.fullmatch(parameters()["OtlpHeaders"]["AllowedPattern"], given)
        for function in deploy(OtlpHeaders=given).resources("AWS::Lambda::Function").values():
            assert function["Environment"]["Variables"].get("OTEL_EXPORTER_OTLP_HEADERS", "") == given
    assert not re.fullmatch(parameters()["OtlpHeaders"]["AllowedPattern"], "just-a-key")


MAX_SETTINGS, MAX_PARAMETERS = 50, 62
# What a project may set: empty here, so that its own defaults count until a parameter is given.
THE_PROJECTS = {
    "Model": "model",
    "OpenAIApi": "openai_api",
    "MaxSteps": "max_steps",
}
LIMITS = {
    "MaxRunningTurnsPerUser": "max_running_turns_per_user",
    "MaxQueuedMessages": "max_queued_messages",
    "MaxTurnSeconds": "max_turn_seconds",
    "BudgetRequestsPerMinute": "budget_requests_per_minute",
    "BudgetTokensPerDay": "budget_tokens_per_day",
}


def test_the_defaults_of_template_and_settings_agree() -> None:
    given = parameters()
    pairs = {
        "MongoDatabase": "mongodb_database",
        "AuthMode": "auth_mode",
        "JwtTokenUse": "jwt_token_use",
        "LogLevel": "log_level",
        "SessionRetentionDays": "session_retention_days",
        "JournalDays": "journal_days",
    }
    assert {name: given[name]["Default"] for name in pairs} == {
        name: getattr(Settings(), field) for name, field in pairs.items()
    }
    for name, field in (THE_PROJECTS | LIMITS).items():
        default = getattr(Settings(), field)
        text = f"{default:g}" if isinstance(default, float) else json.dumps(default).strip('"')
        assert given[name]["Default"] == ""
        assert f"else {text}." in given[name]["Description"]


def test_an_operator_has_few_knobs() -> None:
    assert len(fields(Settings)) <= MAX_SETTINGS
    assert len(parameters()) <= MAX_PARAMETERS


def test_a_deploy_takes_no_model_that_the_functions_refuse() -> None:
    pattern = re.compile(parameters()["Model"]["AllowedPattern"])
    for value in ("gpt-6-sol", "gpt-6-sol,openai-chat/llama3", "a, b"):
        assert pattern.search(value)
        Settings.from_env({"OMNIAGENT_MODEL": value})
    for value in (",", "a,", "a,,b", " "):
        assert not pattern.search(value)


def test_a_projects_defaults_count_until_a_parameter_is_given(deploy: Deploy) -> None:
    names = {env_name(setting) for setting in fields(Settings) if setting.name in THE_PROJECTS.values()}
    left_out = deploy().resources("AWS::Lambda::Function")["ChatFunction"]["Environment"]["Variables"]
    assert not names & left_out.keys()
    limits = dict.fromkeys(LIMITS, "5000")
    given = deploy(Model="m", OpenAIApi="chat", MaxSteps="4", **limits)
    functions = given.resources("AWS::Lambda::Function")
    assert names <= functions["ChatFunction"]["Environment"]["Variables"].keys()
    for function in functions.values():
        assert {field.upper() for field in LIMITS.values()} <= function["Environment"]["Variables"].keys()


def test_a_queue_hides_a_message_for_longer_than_its_function_may_take(deploy: Deploy) -> None:
    document = deploy(RunTimeout="900")
    hidden = {name: queue.get("VisibilityTimeout", 0) for name, queue in document.resources("AWS::SQS::Queue").items()}
    assert hidden["SummaryQueue"] >= 6 * document.resources("AWS::Lambda::Function")["SummaryFunction"]["Timeout"]
    assert min(hidden["RunQueue"], hidden["ScheduleQueue"]) > parameters()["RunTimeout"]["MaxValue"]
    sources = document.resources("AWS::Lambda::EventSourceMapping")
    assert sources["RunFunctionQueue"]["BatchSize"] == 1
    for name in ("RunFunction", "SummaryFunction"):
        source = sources[f"{name}Queue"]
        failures = source["FunctionResponseTypes"]
        assert (source["FunctionName"], failures) == (f"{name}Aliaslive", ["ReportBatchItemFailures"])


@pytest.mark.parametrize("name", ["ScheduleUser", "ScheduleQuery"])
def test_what_would_break_the_message_of_a_schedule_is_refused(name: str) -> None:
    pattern = re.compile(parameters()[name]["AllowedPattern"])
    for text in ("", "user:ada", "What is new, Zoë?"):
        assert pattern.fullmatch(text)
    for text in ('say "hi"', "a\\b", "two\nlines", "a\ttab"):
        assert not pattern.fullmatch(text)


@pytest.mark.parametrize(
    "keys", [{}, {"DataKmsKeyArn": f"{KEY}/data", "LogsKmsKeyArn": f"{KEY}/logs"}], ids=["aws", "own"]
)
def test_state_and_logs_are_encrypted_and_turns_expire(keys: dict[str, str], deploy: Deploy) -> None:
    document = deploy(**keys)
    [table] = document.resources("AWS::DynamoDB::Table").values()
    own = {"SSEType": "KMS", "KMSMasterKeyId": f"{KEY}/data"} if keys else {}
    assert table["SSESpecification"] == {"SSEEnabled": True, **own}
    assert table["TimeToLiveSpecification"] == {"AttributeName": "expires_at", "Enabled": True}
    queues = {queue["KmsMasterKeyId"] for queue in document.resources("AWS::SQS::Queue").values()}
    logs = {group.get("KmsKeyId") for group in document.resources("AWS::Logs::LogGroup").values()}
    assert (queues, logs) == ({keys.get("DataKmsKeyArn", "alias/aws/sqs")}, {keys.get("LogsKmsKeyArn")})


def watched_metrics(alarms: Mapping[str, dict[str, Any]]) -> set[tuple[str, str]]:
    """Every metric that some alarm looks at, with the value of its first dimension."""
    plain = [alarm for alarm in alarms.values() if "MetricName" in alarm]
    inner = [
        item["MetricStat"]["Metric"]
        for alarm in alarms.values()
        for item in alarm.get("Metrics", ())
        if "MetricStat" in item
    ]
    return {(item["MetricName"], item.get("Dimensions", [{"Value": ""}])[0]["Value"]) for item in [*plain, *inner]}


def test_alarms_watch_what_users_see(deploy: Deploy) -> None:
    watched = watched_metrics(deploy().resources("AWS::CloudWatch::Alarm"))
    assert watched >= {(metric, function) for metric in ("Errors", "Throttles") for function in FUNCTIONS}
    # A function that answers 503 because MongoDB is down has not failed for Lambda: only this metric counts it. An
    # issuer that fails makes it refuse everybody.
    urls = ("Url5xxCount", "Url4xxCount", "UrlRequestCount")
    assert watched >= {(metric, function) for metric in urls for function in ("ChatFunction", "SessionsFunction")}
    assert watched >= {(metric, CHAT) for metric in ("FailedTurns", "Turns", "TimeToFirstToken")}
    assert watched >= {("InterruptedTurns", ""), ("ClaimedAccountConcurrency", "")}
    assert watched >= {("WriteThrottleEvents", "TurnsTable"), ("ReadThrottleEvents", "TurnsTable")}
    assert watched >= {("ApproximateAgeOfOldestMessage", queue) for queue in QUEUES if queue.endswith("Queue")}
    assert watched >= {("BudgetRefusals", CHAT), ("RateRefusals", CHAT)}
    assert watched >= {("ModelsEndingSoon", f"{STACK}-summary")}
    of_api = watched_metrics(deploy(Front="api-gateway").resources("AWS::CloudWatch::Alarm"))
    assert of_api >= {(metric, STACK) for metric in ("Count", "4XXError", "5XXError")}
    tokens = deploy(TokensPerDayAlarm="5000000").resources("AWS::CloudWatch::Alarm")["TokensPerDay"]
    assert tokens["Threshold"] == "5000000"
    queues = deploy().resources("AWS::SQS::Queue")
    dead = {
        queue["RedrivePolicy"]["deadLetterTargetArn"].rpartition(":")[2]
        for queue in queues.values()
        if "RedrivePolicy" in queue
    }
    assert {value for metric, value in watched if metric == "ApproximateNumberOfMessagesVisible"} == dead


def test_alarms_notify_whom_the_operator_named(deploy: Deploy) -> None:
    topic = "arn:aws:sns:us-east-1:123456789012:oncall"
    alarms = deploy(AlarmTopicArn=topic, AlarmEmail="oncall@example.com").resources("AWS::CloudWatch::Alarm")
    assert all(alarm["AlarmActions"] == ["AlarmTopic", topic] for alarm in alarms.values())
    plain = deploy().resources("AWS::CloudWatch::Alarm")
    assert all(alarm["AlarmActions"] == [] for alarm in plain.values())


def test_the_costs_name_every_alarm_and_metric(deploy: Deploy) -> None:
    """AWS charges an alarm for each metric in it."""
    alarms = deploy().resources("AWS::CloudWatch::Alarm")
    metrics = sum(
        sum("MetricStat" in item for item in alarm["Metrics"]) if "Metrics" in alarm else 1 for alarm in alarms.values()
    )
    page = (ROOT / "docs" / "costs.md").read_text()
    assert f"| {len(alarms)} alarms of {metrics} metrics, $0.10 each | ${metrics / 10:.2f} |" in page


def test_interrupted_turns_are_counted_from_the_line_that_their_end_logs(deploy: Deploy) -> None:
    document = deploy()
    filters = document.resources("AWS::Logs::MetricFilter").values()
    assert {item["LogGroupName"] for item in filters} == {
        f"/aws/lambda/{STACK}/{function}" for function in ("chat", "run")
    }
    alarm = document.resources("AWS::CloudWatch::Alarm")["InterruptedTurns"]
    for item in filters:
        line = re.fullmatch(r'\{ \$\.message = "(.+)" && \$\.status = "interrupted" \}', item["FilterPattern"])
        assert line
        assert f'logger.warning("{line[1]}"' in Path(takeover.__file__).read_text()
        [metric] = item["MetricTransformations"]
        assert (metric["MetricNamespace"], metric["MetricName"]) == (alarm["Namespace"], alarm["MetricName"])


def test_what_a_function_logs_and_measures_names_its_stack(deploy: Deploy) -> None:
    for logical_id, function in deploy().resources("AWS::Lambda::Function").items():
        variables = function["Environment"]["Variables"]
        short_name = logical_id.removesuffix("Function").lower()
        assert variables["POWERTOOLS_SERVICE_NAME"] == f"{STACK}-{short_name}"
        assert variables["POWERTOOLS_METRICS_NAMESPACE"] == SPACE


def test_the_dashboard_shows_every_metric_of_a_turn_and_what_costs_money(deploy: Deploy) -> None:
    [dashboard] = deploy().resources("AWS::CloudWatch::Dashboard").values()
    widgets = json.loads(dashboard["DashboardBody"])["widgets"]
    shown = {row[1] for widget in widgets for row in widget["properties"].get("metrics", ()) if row[0] != "..."}
    assert shown >= OF_A_TURN | COST_DRIVERS
    body = dashboard["DashboardBody"]
    assert all(body.count(f'"{name}Function"') >= 3 for name in ("Chat", "Sessions", "Run", "Summary"))
    assert all(f'"{name}Queue"' in body and f'"{name}DeadLetters"' in body for name in ("Run", "Summary"))
    assert {"Count", "4XXError", "5XXError", "ApproximateAgeOfOldestMessage"} <= shown
    ours = {tuple(row[2:4]) for widget in widgets for row in widget["properties"].get("metrics", ()) if row[0] == SPACE}
    assert ours == {("service", CHAT)}
    places = [(widget["x"], widget["y"]) for widget in widgets]
    assert len(set(places)) == len(places)


def test_every_parameter_is_described_and_grouped_once() -> None:
    groups = Document(TEMPLATE).section("Metadata", "AWS::CloudFormation::Interface")["ParameterGroups"]
    listed = [name for group in groups for name in group["Parameters"]]
    assert sorted(listed) == sorted(parameters())
    assert all(spec["Description"] for spec in parameters().values())


@pytest.mark.parametrize(("profile", "stage"), [("default", "dev"), ("prod", "prod")])
def test_a_stage_deploys_with_parameters_that_the_template_takes(profile: str, stage: str) -> None:
    config = tomllib.loads((ROOT / "samconfig.toml").read_text())
    assert config[profile]["deploy"]["parameters"]["parameter_overrides"] == [f"file://parameters/{stage}.yaml"]
    given = yaml.safe_load((ROOT / "parameters" / f"{stage}.yaml").read_text())
    known = parameters()
    for name, value in given.items():
        spec = known[name]
        assert value in spec.get("AllowedValues", [value]), name
        refused = not re.search(spec.get("AllowedPattern", ""), str(value))
        assert refused == (value == "PUT-THE-ARN-HERE"), name
    # Once deployed, a parameter left out keeps its last value, and a kept release publishes nothing.
    assert given["Release"] == ""
