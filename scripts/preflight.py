"""`make preflight`, and the first step of `make deploy`: finds what would fail later, and says what to do about it.

Checked: the stage, its parameters against the template, the size of the environment variables, the region, the
credentials, the account's Lambda concurrency, the secrets and what is in them, the end of the models, the issuer's
keys. A check that this machine cannot make is a warning; `make deploy` goes on after one.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import httpx
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError
from pymongo import MongoClient
from pymongo.errors import ConfigurationError as MongoConfigurationError
from pymongo.errors import InvalidURI, OperationFailure, PyMongoError

from local.cloudformation import Document, TemplateError
from local.emulator.limits import Limits
from local.packages import project_environment
from local.places import command, page
from local.processes import ServiceError
from local.template import ROOT, TEMPLATE, Template
from omniagent.app.on_lambda import SECRET_KEYS
from omniagent.app.webhook import signed_headers
from omniagent.aws.secrets import pick_value
from omniagent.errors import ConfigurationError
from omniagent.tls import require_mongodb_tls
from scripts.parameters import Finding, error, parameter_findings, read_parameters, stage_findings, warning

SECRETS = {
    "MongoSecretArn": SECRET_KEYS["mongodb"],
    "OpenAISecretArn": (*SECRET_KEYS["openai"], *SECRET_KEYS["anthropic"]),
    "WebhookSecretArn": SECRET_KEYS["webhook"],
}
CONNECT_SECONDS = 8
# https://docs.aws.amazon.com/lambda/latest/dg/urls-configuration.html
WITHOUT_FUNCTION_URLS = {
    *("ap-east-2", "ap-south-2", "ap-southeast-4", "ap-southeast-5", "ap-southeast-6", "ap-southeast-7", "ca-west-1"),
    *("eu-central-2", "eu-south-2", "il-central-1", "me-central-1"),
}
USUAL_CONCURRENCY, MIN_UNRESERVED = 1000, 100
MORE_CONCURRENCY = (
    "aws service-quotas request-service-quota-increase --service-code lambda --quota-code L-B99A9384 "
    "--desired-value 1000"
)
ENDING_MODELS = Path(__file__).with_name("ending_models.py")
BAD_LOGIN = 18


def account_findings(session: boto3.Session, parameters: Mapping[str, str]) -> Iterator[Finding]:
    """Check that a region and valid credentials are set, and that the secrets are in that region and account."""
    if not session.region_name:
        yield error("No region is set. Set AWS_REGION, or `region` in your AWS profile (`aws configure`).")
        return
    try:
        caller = session.client("sts").get_caller_identity()
    except NoCredentialsError:
        yield error("There are no AWS credentials. Run `aws configure sso` (or `aws configure`), or set AWS_PROFILE.")
        return
    except (BotoCoreError, ClientError) as problem:
        yield error(f"AWS does not accept the credentials: {_reason(problem)}. Log in again: `aws sso login`.")
        return
    if session.region_name in WITHOUT_FUNCTION_URLS:
        yield error(f"Lambda has no Function URLs in {session.region_name}: deploy the stack in another region.")
    for name in SECRETS:
        _, _, _, region, account, *_ = [*parameters.get(name, "").split(":"), "", "", "", "", ""]
        if region and region != session.region_name:
            yield warning(
                f"{name} is in {region}, the stack in {session.region_name}: every cold start reads it across regions."
            )
        if account and account != caller["Account"]:
            yield warning(
                f"{name} is in account {account}, you deploy to {caller['Account']}: its own policy must let the "
                "functions read it."
            )


def quota_findings(session: boto3.Session, parameters: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the account can run as many invocations at once as the parameters ask for."""
    try:
        limit = session.client("lambda").get_account_settings()["AccountLimit"]["ConcurrentExecutions"]
    except (BotoCoreError, ClientError) as problem:
        yield warning(f"The account's Lambda concurrency could not be checked: {_reason(problem)}.")
        return
    known = Document(TEMPLATE).section("Parameters")
    chat, sessions, run, named = (
        int(parameters.get(name, known[name]["Default"]))
        for name in ("ChatConcurrency", "SessionsConcurrency", "RunConcurrency", "AccountConcurrency")
    )
    left = limit - chat - sessions
    if limit < USUAL_CONCURRENCY:
        yield warning(
            f"The account runs at most {limit} Lambda invocations at once (new accounts: 10). Each streamed answer, "
            f"each other request and each queue job is one. Ask for more: {MORE_CONCURRENCY}"
        )
    if named != limit:
        yield warning(f"AccountConcurrency is {named}, the account's limit {limit}: set it, its alarm depends on it.")
    if chat + sessions and left < (unreserved := min(limit, MIN_UNRESERVED)):
        yield error(
            f"ChatConcurrency and SessionsConcurrency reserve {chat + sessions} of the account's {limit} concurrent "
            f"invocations, and Lambda keeps {unreserved} unreserved. Set them to 0, or ask for more: {MORE_CONCURRENCY}"
        )
    elif run > left:
        yield warning(
            f"RunConcurrency is {run}, but only {left} concurrent invocations are left for it: Lambda would throttle "
            f"background turns. Set it to at most {max(2, left // 2)}."
        )


def environment_findings(parameters: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the environment variables of each function fit into what Lambda takes."""
    queues = {
        name: {"Ref": f"https://sqs.{'r' * 14}.amazonaws.com/{'0' * 12}/{'q' * 80}"} for name in Template().queues
    }
    for function in Template(parameters=parameters, attributes=queues).functions.values():
        try:
            Limits().check_environment(function)
        except TemplateError as problem:
            yield error(f"{problem}. Shorten TrustedPrincipals, JwtClientIds or OtlpHeaders.")
            return


def secret_findings(session: boto3.Session, parameters: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the secrets exist and have valid contents. Their values are never shown."""
    for name, keys in SECRETS.items():
        arn = parameters.get(name, "")
        if not arn and (name == "WebhookSecretArn" or _needs_no_key(name, parameters)):
            continue
        try:
            text = _secret(session, arn, keys)
        except ConfigurationError as problem:
            yield error(f"{name}: {problem}.")
        except ClientError as problem:
            yield from _secret_problem(name, arn, problem)
        except BotoCoreError as problem:
            yield warning(f"{name} could not be checked: {problem}")
        else:
            yield from CONTENTS[name](text)


def _needs_no_key(name: str, parameters: Mapping[str, str]) -> bool:
    return name == "OpenAISecretArn" and parameters.get("ModelAccess") == "bedrock"


def _secret(session: boto3.Session, arn: str, keys: tuple[str, ...]) -> str:
    region = arn.split(":")[3] if arn.count(":") > 3 else None
    found = session.client("secretsmanager", region_name=region).get_secret_value(SecretId=arn)
    if found["ARN"] != arn:
        # Secrets Manager takes a part of the ARN, the functions' permission does not.
        raise ConfigurationError(f"{arn} is not the whole ARN, which is {found['ARN']}")
    return pick_value(arn, found.get("SecretString", "").strip(), keys)


def _secret_problem(name: str, arn: str, problem: ClientError) -> Iterator[Finding]:
    code = problem.response.get("Error", {}).get("Code", "")
    if code == "ResourceNotFoundException":
        how = f"Create it ({page('deploy.md')}, step 2), and copy its whole ARN."
        yield error(f"{name}: there is no secret {arn}. {how}")
    else:
        yield warning(
            f"{name} could not be checked ({code}): you may not read it. The functions get their own permission."
        )


def mongodb_findings(uri: str) -> Iterator[Finding]:
    """Check that the URI is complete and uses TLS, and its login, if the server can be reached from here."""
    if re.search(r"<[^>]*>", uri):
        yield error("The MongoDB secret still has a placeholder in <brackets>: insert the database user and password.")
        return
    if not uri.startswith(("mongodb://", "mongodb+srv://")):
        yield error("The MongoDB secret is not a connection string: it must begin with mongodb+srv:// or mongodb://.")
        return
    try:
        require_mongodb_tls(uri)
        client: MongoClient[dict[str, Any]] = MongoClient(uri, serverSelectionTimeoutMS=CONNECT_SECONDS * 1000)
    except (ConfigurationError, InvalidURI) as problem:
        yield error(f"The MongoDB secret cannot be used: {problem}. Percent-encode special characters of the password.")
        return
    except MongoConfigurationError as problem:
        yield warning(f"The MongoDB cluster could not be found from here: {problem}.")
        return
    with client:
        if "MONGODB-AWS" in uri.upper():
            return  # the role of a function logs in, not you
        try:
            client.admin.command("ping")
        except OperationFailure as problem:
            if problem.code in (BAD_LOGIN, 8000):
                yield error("MongoDB refuses the secret's login: check the database user and the password in it.")
        except PyMongoError:
            yield warning(
                "MongoDB could not be reached from here. Lambda's addresses are not yours: allow them in the cluster's "
                f"network access ({page('deploy.md')}, step 1)."
            )


def key_findings(key: str) -> Iterator[Finding]:
    if re.search(r"\s", key) or "…" in key or "..." in key:
        yield error("The OpenAI secret is not a key: it contains spaces or dots. Store the whole key and nothing else.")


def signing_findings(secret: str) -> Iterator[Finding]:
    """Check that events can be signed with the secret."""
    try:
        signed_headers(secret, "preflight", b"")
    except ConfigurationError as problem:
        yield error(f"WebhookSecretArn: {problem}.")


CONTENTS = {
    "MongoSecretArn": mongodb_findings,
    "OpenAISecretArn": key_findings,
    "WebhookSecretArn": signing_findings,
}


def model_findings(session: boto3.Session, parameters: Mapping[str, str]) -> Iterator[Finding]:
    """Check that no server of a model announces its end within 60 days."""
    arn = parameters.get("OpenAISecretArn", "")
    try:
        key = (
            ""
            if not arn and _needs_no_key("OpenAISecretArn", parameters)
            else _secret(session, arn, SECRETS["OpenAISecretArn"])
        )
    except (BotoCoreError, ClientError, ConfigurationError):
        return  # `secret_findings` has reported it
    variables = {
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("functions", "layers/core")),
        "OMNIAGENT_MODEL": parameters.get("Model", ""),
        "OPENAI_BASE_URL": parameters.get("OpenAIBaseUrl", ""),
        "OPENAI_API_KEY": key,
        "ANTHROPIC_API_KEY": key,
        "MODEL_TIMEOUT_SECONDS": str(CONNECT_SECONDS),
    }
    try:
        program = [str(project_environment() / "bin" / "python"), "-B", str(ENDING_MODELS)]
    except ServiceError as problem:
        yield warning(f"The end of the models could not be checked: {problem}")
        return
    done = subprocess.run(program, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        yield warning(f"The end of the models could not be checked: {reason}")
        return
    for end in json.loads(done.stdout.splitlines()[-1]):
        yield warning(
            f"The model {end['model']} is shut down on {end['shutdown_date']} ({end['days_left']} days left). "
            "Set Model, or the model in functions/, to another one."
        )


def issuer_findings(parameters: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the issuer publishes keys at the address that the functions use."""
    if parameters.get("AuthMode") != "jwt" or not parameters.get("JwtIssuer"):
        return
    url = parameters.get("JwtJwksUrl") or parameters["JwtIssuer"].rstrip("/") + "/.well-known/jwks.json"
    try:
        response = httpx.get(url, timeout=CONNECT_SECONDS)
    except httpx.HTTPError as problem:
        yield warning(f"The issuer's keys could not be fetched from here: {url}: {type(problem).__name__}.")
        return
    try:
        keys = response.json()["keys"]
    except (ValueError, KeyError, TypeError):
        keys = []
    if not response.is_success or not keys:
        yield error(f"{url} has no keys ({response.status_code}). Set JwtJwksUrl to the `jwks_uri` of your issuer.")


def _reason(problem: BotoCoreError | ClientError) -> str:
    return str(problem.response["Error"]["Code"] if isinstance(problem, ClientError) else problem)


def findings(stage: str) -> Iterator[Finding]:
    """Check everything, cheap checks first. If the parameters or the account are wrong, the rest is skipped."""
    found = list(stage_findings(stage))
    yield from found
    if found:
        return
    try:
        parameters = read_parameters(stage)
    except ValueError as problem:
        yield error(str(problem))
        return
    found = list(parameter_findings(parameters))
    yield from found
    session = boto3.Session()
    account = list(account_findings(session, parameters))
    yield from account
    if any(finding.level == "error" for finding in [*found, *account]):
        return
    yield from environment_findings(parameters)
    yield from quota_findings(session, parameters)
    yield from secret_findings(session, parameters)
    yield from model_findings(session, parameters)
    yield from issuer_findings(parameters)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=command("preflight"), description=__doc__)
    parser.add_argument("stage", nargs="?", default=os.environ.get("STAGE", "dev"))
    stage = parser.parse_args(arguments).stage
    errors = 0
    try:
        for finding in findings(stage):
            errors += finding.level == "error"
            print(f"{finding.level}: {finding.text}", file=sys.stderr)
    except NoRegionError:
        errors += 1
        print("error: No region is set. Set AWS_REGION.", file=sys.stderr)
    if errors:
        print(f"{stage} is not ready: {errors} to correct in parameters/{stage}.yaml or at AWS.", file=sys.stderr)
        return 1
    print(f"{stage} is ready to be deployed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
