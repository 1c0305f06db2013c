"""AWS on this machine: moto's server with the tables, queues and secrets of the template."""

import json
import os
import re
import signal
import sys
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

from local.cloudformation import ACCOUNT, REGION
from local.places import HOME
from local.ports import LOOPBACK
from local.processes import LocalServer, Service
from local.template import Queue, Table, Template

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_secretsmanager import SecretsManagerClient
    from mypy_boto3_sqs import SQSClient

START_SECONDS = 60.0
# By default, moto lets pages of every site read its answers.
MOTO = {"MOTO_DISABLE_GLOBAL_CORS": "1", "PYTHONPATH": str(HOME), "PYTHONUNBUFFERED": "1"}


class Aws(LocalServer):
    """A moto server. Its data is in memory, so a restart deploys everything again."""

    def __init__(self, *, port: int = 0, folder: Path | None = None, access_key: str = "local") -> None:
        """Set the port (0 for a free one), the folder of the log, and the access key that callers must have."""
        super().__init__("moto", folder)
        self._deployed: list[Template] = []
        self._secrets: dict[str, str] = {}
        self._access_key = access_key
        self.port = port

    @property
    def endpoint(self) -> str:
        """The address of every service."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment that sends an AWS SDK here."""
        return {"AWS_ENDPOINT_URL": self.endpoint, **self._credentials}

    def start(self) -> None:
        """Start the server. After a restart, it has the same port and the same deployments as before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "local.moto_server", str(self.port)]
        variables = {**self._credentials, **MOTO}
        service = self._service = Service("moto", command, log=self.folder / "moto.log", variables=variables)
        service.wait_until(lambda: _port(service.log) is not None, seconds=START_SECONDS)
        self.port = _port(service.log) or self.port
        for name, value in self._secrets.items():
            self.put_secret(name, value)
        for template in self._deployed:
            self._create(template)

    def pause(self) -> None:
        """Stop answering: callers hang, as they do when a service is unreachable."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Answer again."""
        os.kill(self.pid, signal.SIGCONT)

    def deploy(self, template: Template) -> dict[str, dict[str, str]]:
        """Create the template's missing tables and queues. Returns the attributes of all of them, by logical id."""
        self._deployed.append(template)
        return self._create(template)

    def put_secret(self, name: str, value: str) -> str:
        """Store a secret and return its ARN, without the random ending so that a restart does not change it."""
        self._secrets[name] = value
        secrets = self.secrets
        try:
            secrets.put_secret_value(SecretId=name, SecretString=value)
        except secrets.exceptions.ResourceNotFoundException:
            secrets.create_secret(Name=name, SecretString=value)
        return f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:{name}"

    @cached_property
    def dynamodb(self) -> "DynamoDBClient":
        """A client of the tables."""
        return self._session.client("dynamodb", endpoint_url=self.endpoint, config=_NO_PATIENCE)

    @cached_property
    def sqs(self) -> "SQSClient":
        """A client of the queues."""
        return self._session.client("sqs", endpoint_url=self.endpoint, config=_NO_PATIENCE)

    @cached_property
    def secrets(self) -> "SecretsManagerClient":
        """A client of the secrets."""
        return self._session.client("secretsmanager", endpoint_url=self.endpoint, config=_NO_PATIENCE)

    @cached_property
    def _session(self) -> boto3.Session:
        return boto3.Session(
            aws_access_key_id=self._credentials["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self._credentials["AWS_SECRET_ACCESS_KEY"],
            region_name=REGION,
        )

    @property
    def _credentials(self) -> dict[str, str]:
        """Credentials for the SDK, so that it does not look for real ones. moto checks no signature."""
        return {
            "AWS_ACCESS_KEY_ID": self._access_key,
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_SESSION_TOKEN": "local",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }

    def _create(self, template: Template) -> dict[str, dict[str, str]]:
        created = {table.logical_id: self._create_table(table) for table in template.tables.values()}
        # A queue refers to its dead-letter queue, which must exist first.
        queues = sorted(template.queues.values(), key=lambda queue: queue.dead_letters is not None)
        return created | {queue.logical_id: self._create_queue(queue) for queue in queues}

    def _create_table(self, table: Table) -> dict[str, str]:
        with suppress(self.dynamodb.exceptions.ResourceInUseException):
            self.dynamodb.create_table(
                TableName=table.name,
                AttributeDefinitions=table.attributes,  # type: ignore[arg-type] # as written in the template
                KeySchema=table.key,  # type: ignore[arg-type]
                BillingMode="PAY_PER_REQUEST",
            )
            if table.ttl:
                self.dynamodb.update_time_to_live(
                    TableName=table.name,
                    TimeToLiveSpecification={"AttributeName": table.ttl, "Enabled": True},
                )
        return {"Ref": table.name, "Arn": f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{table.name}"}

    def _create_queue(self, queue: Queue) -> dict[str, str]:
        attributes: dict[str, str] = {"VisibilityTimeout": str(queue.visibility_timeout)}
        if queue.dead_letters:
            policy = {"deadLetterTargetArn": queue.dead_letters, "maxReceiveCount": queue.max_receives}
            attributes["RedrivePolicy"] = json.dumps(policy)
        url = self.sqs.create_queue(QueueName=queue.name, Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]
        return {"Ref": url, "Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue.name}", "QueueName": queue.name}


# The server is on this machine, so retries do not help.
_NO_PATIENCE = Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 1})


def _port(log: Path) -> int | None:
    """Return the port that the server has logged."""
    match = re.search(rf"Running on http://{re.escape(LOOPBACK)}:(\d+)", log.read_text(errors="replace"))
    return int(match[1]) if match else None
