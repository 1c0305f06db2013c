"""The application of a Lambda function: turns in DynamoDB, jobs through SQS, secrets in Secrets Manager."""

import os
from collections.abc import Mapping
from functools import cache
from typing import Final

from omniagent.app.application import Application
from omniagent.app.platform import SECRET_SETTINGS, Platform, SecretName
from omniagent.aws.client import DYNAMODB, AwsJson
from omniagent.aws.secrets import SecretStore
from omniagent.aws.sqs import SqsQueue
from omniagent.aws.turn_table import DynamoCounter, DynamoRegistry
from omniagent.budget.spending import MemoryCounter, SpendingCounter
from omniagent.errors import ConfigurationError
from omniagent.persistence.store import ConversationStore
from omniagent.project import Project
from omniagent.settings import Settings
from omniagent.tls import check_url
from omniagent.tracing.logs import setup_logging
from omniagent.turns.registry import MemoryRegistry, TurnRegistry

SECRET_KEYS: Final = {
    name: (setting.upper(), setting, setting.partition("_")[2]) for name, setting in SECRET_SETTINGS.items()
}
"""The keys under which a secret that is a JSON object has its value: `MONGODB_URI`, `mongodb_uri` or `uri`."""


class AwsPlatform(Platform):
    """AWS. What its setting leaves out, such as a queue, is not there; without a table, turns are kept in memory."""

    def __init__(self, settings: Settings, secrets: SecretStore | None = None) -> None:
        super().__init__(settings)
        self.run_queue = _queue(settings.run_queue_url)
        self.summary_queue = _queue(settings.summary_queue_url)
        self._secrets = secrets or SecretStore()
        table, days = settings.turns_table, settings.journal_days
        self._dynamodb = AwsJson(DYNAMODB)  # the registry and the counter share its connections
        self._registry: TurnRegistry = (
            DynamoRegistry(table, api=self._dynamodb, kept_days=days) if table else MemoryRegistry()
        )

    def registry(self, store: ConversationStore | None) -> TurnRegistry:  # noqa: ARG002 - turns are not kept in it
        return self._registry

    def counter(self, store: ConversationStore | None) -> SpendingCounter:  # noqa: ARG002 - spending is not kept in it
        table = self.settings.turns_table
        return DynamoCounter(table, api=self._dynamodb) if table else MemoryCounter()

    def has_changing_secret(self, name: SecretName) -> bool:
        return bool(self._arn(name))

    async def secret(self, name: SecretName, *, refresh: bool = False) -> str:
        arn = self._arn(name)
        if not arn:
            return await super().secret(name)
        return await self._secrets.get(arn, *SECRET_KEYS[name], refresh=refresh)

    def load(self) -> None:
        import aws_lambda_powertools.metrics  # noqa: F401 - imported to be loaded

    def emit(self, counts: Mapping[str, int], milliseconds: Mapping[str, int] | None = None) -> None:
        """Print the metrics as one EMF line. The service's name distinguishes the stacks of an account."""
        # Imported after the answer, so that the first byte does not wait for it.
        from aws_lambda_powertools.metrics import Metrics, MetricUnit

        metrics = Metrics(
            namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "OmniAgent"),
            # Turns finished by the run function count as the chat function's.
            service=os.environ.get("METRICS_SERVICE_NAME") or os.environ.get("POWERTOOLS_SERVICE_NAME", "omniagent"),
        )
        for unit, values in ((MetricUnit.Count, counts), (MetricUnit.Milliseconds, milliseconds or {})):
            for name, value in values.items():
                metrics.add_metric(name=name, unit=unit, value=value)
        metrics.flush_metrics()

    def _arn(self, name: SecretName) -> str:
        settings = self.settings
        if name == "webhook":
            return settings.webhook_secret if settings.webhook_secret.startswith("arn:") else ""
        return settings.mongodb_secret_arn if name == "mongodb" else settings.openai_secret_arn


def _queue(url: str) -> SqsQueue | None:
    return SqsQueue(url) if url else None


def get_application(project: Project) -> Application:
    """Return the application of this process. Sets up logging and tracing from the environment."""
    if not isinstance(project, Project):
        raise ConfigurationError(f"project.py must say `project = Project(agent=…)`, not {project!r:.100}")
    return _process_application(project)


@cache
def _process_application(project: Project) -> Application:
    settings = project.read_settings()
    service = os.environ.get("POWERTOOLS_SERVICE_NAME", "omniagent")
    setup_logging(settings.log_level, service)
    for name in (name for name in os.environ if name.startswith("AWS_ENDPOINT_URL")):
        check_url(name, os.environ[name])
    check_url("OTEL_EXPORTER_OTLP_ENDPOINT", settings.otel_exporter_otlp_endpoint)
    if settings.otel_exporter_otlp_endpoint:
        from omniagent.tracing.export import configure_tracing  # imports the SDK

        configure_tracing(
            settings.otel_exporter_otlp_endpoint,
            service_name=service,
            headers=settings.otel_exporter_otlp_headers,
            capture_content=settings.trace_content,
        )
    return Application(project, AwsPlatform(settings))
