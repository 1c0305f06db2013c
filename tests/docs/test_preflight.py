"""`make preflight`: what would fail in a deploy is found before it, with what to do about it."""

from collections.abc import Iterator, Mapping
from typing import Any

import boto3
import pytest

from local.aws import Aws
from local.model import OfflineModel
from omniagent.tls import require_mongodb_tls
from scripts import preflight
from scripts.parameters import Finding, parameter_findings, read_parameters, stage_findings
from scripts.preflight import (
    account_findings,
    environment_findings,
    issuer_findings,
    key_findings,
    model_findings,
    mongodb_findings,
    quota_findings,
    secret_findings,
)
from tests.docs.conftest import Answering
from tests.fixtures.issuer import Issuer

ARN = "arn:aws:secretsmanager:us-east-1:123456789012:secret:{}-AbCdEf"
GOOD = {"MongoSecretArn": ARN.format("mongodb"), "OpenAISecretArn": ARN.format("openai")}
JWT = {"AuthMode": "jwt", "JwtIssuer": "https://id.mycompany.io/", "JwtAudience": "chat"}
URI = "mongodb+srv://user:password@cluster.mycompany.io"


def texts(findings: Iterator[Finding], level: str = "error") -> list[str]:
    return [finding.text for finding in findings if finding.level == level]


def put_secret(session: boto3.Session, aws: Aws, name: str, value: str) -> str:
    """Store a secret and return its whole ARN."""
    return session.client("secretsmanager").describe_secret(SecretId=aws.put_secret(name, value))["ARN"]


@pytest.fixture
def session(local_aws: Aws) -> boto3.Session:
    return boto3.Session()


def test_the_stages_as_they_come_are_not_ready_and_say_what_is_missing(
    session: boto3.Session, capsys: pytest.CaptureFixture[str]
) -> None:
    assert texts(parameter_findings(read_parameters("dev"))) == [
        f"{name} is still the placeholder. Create the secret (docs/deploy.md, step 2) and put its ARN there."
        for name in ("MongoSecretArn", "OpenAISecretArn")
    ]
    prod = texts(parameter_findings(read_parameters("prod")))
    examples = {text.split()[0] for text in prod if "is still the example" in text}
    assert examples == {"JwtIssuer", "CorsOrigins", "AlarmEmail"}
    assert preflight.main(["dev"]) == 1
    assert "dev is not ready" in capsys.readouterr().err


def test_a_stage_that_is_not_there_is_named_with_those_that_are() -> None:
    [text] = texts(stage_findings("staging"))
    assert text == "There is no stage staging: samconfig.toml has dev, prod. Choose one: STAGE=dev."


def test_good_parameters_pass() -> None:
    origins = {"CorsOrigins": "https://app.mycompany.io,http://localhost:3000"}
    for given in (GOOD, GOOD | JWT | origins):
        assert texts(parameter_findings(given)) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"Modell": "gpt-6-sol"}, "Modell is not a parameter of template.yaml: did you mean Model?"),
        ({"AuthMode": "none"}, "AuthMode is 'none'; it must be one of 'iam', 'jwt'."),
        ({"ChatTimeout": "1000"}, "ChatTimeout is 1000; it must be from 30 to 900."),
        ({"ChatTimeout": "5m"}, "ChatTimeout is '5m'; it must be a number."),
        ({"MongoSecretArn": "mongodb"}, "MongoSecretArn is 'mongodb'; it must be the ARN of a Secrets Manager secret."),
        ({"AuthMode": "jwt"}, "AuthMode jwt needs JwtIssuer."),
        (
            {"WafRateLimit": "500"},
            "WafRateLimit needs Front api-gateway. A Function URL takes AWS WAF only behind CloudFront.",
        ),
        ({"CorsOrigins": "https://app.mycompany.io/"}, "without a path or a slash at its end"),
        ({"CorsOrigins": "app.mycompany.io"}, "An origin is scheme, host and port"),
    ],
)
def test_a_parameter_that_cloudformation_would_refuse_is_named(given: Mapping[str, str], said: str) -> None:
    assert any(said in text for text in texts(parameter_findings({**GOOD, **given})))


def test_without_region_or_credentials_it_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, session: boto3.Session
) -> None:
    assert texts(account_findings(session, GOOD)) == []
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert "No region is set" in texts(account_findings(boto3.Session(), GOOD))[0]
    assert "There are no AWS credentials" in texts(account_findings(boto3.Session(region_name="us-east-1"), GOOD))[0]


def test_secrets_elsewhere_are_a_warning(session: boto3.Session) -> None:
    elsewhere = {"MongoSecretArn": "arn:aws:secretsmanager:eu-west-1:999999999999:secret:mongodb-AbCdEf"}
    told = texts(account_findings(session, {**GOOD, **elsewhere}), "warning")
    assert ["eu-west-1" in told[0], "999999999999" in told[1]] == [True, True]


def test_a_region_without_function_urls_is_refused(session: boto3.Session) -> None:
    assert texts(account_findings(session, GOOD)) == []
    elsewhere = boto3.Session(region_name="il-central-1")
    assert texts(account_findings(elsewhere, GOOD)) == [
        "Lambda has no Function URLs in il-central-1: deploy the stack in another region."
    ]


NEW = "The account runs at most 10 "


def account(concurrency: int) -> dict[str, Any]:
    """How many invocations an account may run at once, as Lambda tells it."""
    return {"AccountLimit": {"ConcurrentExecutions": concurrency}}


@pytest.mark.parametrize(
    ("concurrency", "given", "found"),
    [
        (1000, {}, []),
        (1000, {"ChatConcurrency": "900", "RunConcurrency": "200"}, ["RunConcurrency is 200, but only 100 "]),
        (1000, {"ChatConcurrency": "500", "SessionsConcurrency": "500"}, ["ChatConcurrency and "]),
        (10, {"ChatConcurrency": "500"}, [NEW, "AccountConcurrency is 1000", "ChatConcurrency and "]),
        (10, {"AccountConcurrency": "10"}, [NEW, "RunConcurrency is 100, but only 10 "]),
        (10, {"RunConcurrency": "5", "AccountConcurrency": "10"}, [NEW]),
    ],
)
def test_an_account_that_runs_too_little_at_once_is_found(
    concurrency: int, given: dict[str, str], found: list[str], session: boto3.Session, answering: Answering
) -> None:
    api = answering(account(concurrency))
    findings = list(quota_findings(session, GOOD | given))
    assert api.asked[0].startswith("/2016-08-19/account-settings ")
    assert [finding.text.startswith(start) for finding, start in zip(findings, found, strict=True)] == [True] * len(
        found
    )
    assert [finding.level == "error" for finding in findings] == [start.startswith("Chat") for start in found]


def test_an_environment_over_4_kb_is_found() -> None:
    roles = [f"arn:aws:iam::123456789012:role/a-rather-long-path/of-a-role-number-{n:02}" for n in range(50)]
    assert texts(environment_findings(GOOD | {"TrustedPrincipals": ",".join(roles[:10])})) == []
    [text] = texts(environment_findings(GOOD | {"TrustedPrincipals": ",".join(roles)}))
    assert "bytes, Lambda takes 4096. Shorten TrustedPrincipals" in text


def test_a_stage_is_checked_against_its_account(
    session: boto3.Session,
    aws: Aws,
    answering: Answering,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {
        "MongoSecretArn": put_secret(session, aws, "preflight-h", "mongodb+srv://<user>:<password>@cluster"),
        "OpenAISecretArn": put_secret(session, aws, "preflight-i", "sk-1"),
        "JwtClientIds": "a" * 4096,
        "ChatConcurrency": "500",
    }
    monkeypatch.setattr(preflight, "read_parameters", lambda _: given)
    answering(account(10))
    assert preflight.main(["dev"]) == 1
    said = capsys.readouterr().err
    assert "bytes, Lambda takes 4096" in said
    assert "ChatConcurrency and SessionsConcurrency reserve 500" in said
    assert "The MongoDB secret still has a placeholder" in said
    assert "dev is not ready: 3 to correct" in said


def test_a_partial_secret_arn_is_found(session: boto3.Session, aws: Aws) -> None:
    whole = put_secret(session, aws, "preflight-g", "sk-1")
    given = {**GOOD, "OpenAISecretArn": whole.rpartition("-")[0]}
    assert f"is not the whole ARN, which is {whole}." in texts(secret_findings(session, given))[1]


def test_a_secret_that_is_missing_or_holds_something_else_is_found(session: boto3.Session, aws: Aws) -> None:
    missing = texts(secret_findings(session, GOOD))
    assert [text.split(":")[0] for text in missing] == ["MongoSecretArn", "OpenAISecretArn"]
    assert all("Create it (docs/deploy.md, step 2)" in text for text in missing)
    wrong = {
        "MongoSecretArn": put_secret(session, aws, "preflight-a", "mongodb://user:password@db.mycompany.io/"),
        "OpenAISecretArn": put_secret(session, aws, "preflight-b", '{"token": "sk-1"}'),
    }
    told = texts(secret_findings(session, wrong))
    assert "must begin with mongodb+srv:// or say tls=true" in told[0]
    assert "has none of the keys OPENAI_API_KEY" in told[1]
    assert "password@" not in "".join(told)
    assert "sk-1" not in "".join(told)


def test_the_secret_of_webhooks_is_checked_where_there_is_one(session: boto3.Session, aws: Aws) -> None:
    both = {
        "MongoSecretArn": put_secret(session, aws, "preflight-c", "mongodb+srv://<user>@cluster"),
        "OpenAISecretArn": put_secret(session, aws, "preflight-d", "sk-1"),
    }
    [placeholder] = texts(secret_findings(session, both))
    for content, said in (
        ("whsec_", "whsec_ and nothing else"),
        ('{"key": "a"}', "has none of the keys WEBHOOK_SECRET"),
    ):
        given = {**both, "WebhookSecretArn": put_secret(session, aws, "preflight-e", content)}
        told = texts(secret_findings(session, given))
        assert (told[0], len(told)) == (placeholder, 2)
        assert told[1].startswith("WebhookSecretArn: ")
        assert said in told[1]
    sound = {**both, "WebhookSecretArn": put_secret(session, aws, "preflight-e", "whsec_MDEyMzQ1Njc4OTAxMjM0NQ==")}
    assert texts(secret_findings(session, sound)) == [placeholder]


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("mongodb+srv://ada:<db_password>@cluster.mycompany.io", "a placeholder in <brackets>"),
        ("cluster.mycompany.io", "not a connection string"),
        ("mongodb://ada:pw@db.mycompany.io/?tls=true&tlsInsecure=true", "certificate is verified"),
        ("mongodb://ada:p@ss:word@db.mycompany.io/?tls=true", "Percent-encode"),
    ],
)
def test_a_connection_string_that_would_fail_is_found(uri: str, said: str) -> None:
    [text] = texts(mongodb_findings(uri))
    assert said in text
    assert "pw@" not in text


def test_a_mongodb_that_cannot_be_reached_from_here_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "CONNECT_SECONDS", 0.2)
    uri = "mongodb://ada:pw@127.0.0.1:9/?tls=true"
    require_mongodb_tls(uri)
    assert texts(mongodb_findings(uri)) == []
    assert "network access" in texts(mongodb_findings(uri), "warning")[0]


def test_a_login_by_the_functions_role_is_not_tried_from_here() -> None:
    uri = "mongodb://127.0.0.1:9/?tls=true&authMechanism=MONGODB-AWS&authSource=%24external"
    assert list(mongodb_findings(uri)) == []


def test_a_key_that_was_copied_badly_is_found() -> None:
    assert texts(key_findings("sk-proj-abc")) == []
    for key in ("sk-…", "sk-abc\nOPENAI", "sk-..."):
        assert "not a key" in texts(key_findings(key))[0]


def test_a_model_that_ends_soon_is_a_warning_with_its_date(session: boto3.Session, aws: Aws) -> None:
    with OfflineModel() as model:
        given = {"OpenAISecretArn": put_secret(session, aws, "preflight-f", "sk-1"), "OpenAIBaseUrl": model.base_url}
        assert list(model_findings(session, given)) == []
        model.shutdown_dates["gpt-6-sol"] = "2001-02-04"
        [text] = texts(model_findings(session, {**given, "Model": "gpt-6-sol"}), "warning")
        assert text.startswith("The model gpt-6-sol is shut down on 2001-02-04 (-")
        assert "Set Model" in text
    [text] = texts(model_findings(session, given), "warning")
    assert "could not be checked" in text
    assert "sk-1" not in text


def test_an_issuer_without_keys_is_found() -> None:
    with Issuer() as issuer:
        given = {**JWT, "JwtIssuer": issuer.url}
        assert texts(issuer_findings(given)) == []
        assert "Set JwtJwksUrl" in texts(issuer_findings({**given, "JwtJwksUrl": f"{issuer.url}/nowhere"}))[0]
    assert "could not be fetched" in texts(issuer_findings(given), "warning")[0]
    assert texts(issuer_findings({"AuthMode": "iam"})) == []


def test_only_bedrock_needs_no_secret_of_a_model(session: boto3.Session) -> None:
    mongo = {"MongoSecretArn": GOOD["MongoSecretArn"]}
    [text] = texts(parameter_findings({**mongo, "ModelAccess": "key"}))
    assert "ModelAccess key needs OpenAISecretArn" in text
    bedrock = {**mongo, "ModelAccess": "bedrock"}
    assert not texts(parameter_findings(bedrock))
    assert not [text for text in texts(secret_findings(session, bedrock)) if "OpenAISecretArn" in text]
