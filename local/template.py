"""The functions, tables and queues of template.yaml, as typed values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from local import places
from local.cloudformation import Attributes, Document, TemplateError

ROOT = places.ROOT
TEMPLATE = ROOT / "template.yaml"


@dataclass(frozen=True)
class Cors:
    """What browsers from other origins may do with a Function URL."""

    allow_origins: tuple[str, ...] = ()
    allow_methods: tuple[str, ...] = ()
    allow_headers: tuple[str, ...] = ()
    expose_headers: tuple[str, ...] = ()
    allow_credentials: bool = False
    max_age: int = 0


@dataclass(frozen=True)
class FunctionUrl:
    """A function's own HTTPS address."""

    auth_type: str = "NONE"
    invoke_mode: str = "BUFFERED"
    cors: Cors | None = None


@dataclass(frozen=True)
class QueueSource:
    """A queue whose messages invoke a function."""

    queue_arn: str
    batch_size: int = 10
    max_concurrency: int = 5
    reports_failures: bool = False


@dataclass(frozen=True)
class Schedule:
    """An event that invokes a function once in so many seconds."""

    seconds: float
    event: bytes


def short_name(logical_id: str) -> str:
    """The name people type: `chat` for ChatFunction."""
    return logical_id.removesuffix("Function").lower()


@dataclass(frozen=True)
class Function:
    """A Lambda function, with the folders of its code and its layers."""

    logical_id: str
    code: Path
    handler: str
    name: str = ""
    runtime: str = "python3.13"
    timeout: float = 3
    memory: int = 128
    concurrency: int | None = None
    requests_at_once: int = 1
    """Of one process: more than one only on Lambda Managed Instances."""
    environment: Mapping[str, str] = field(default_factory=dict)
    layers: tuple[Path, ...] = ()
    url: FunctionUrl | None = None
    queues: tuple[QueueSource, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    log_group: str = ""
    log_format: str = "Text"
    log_level: str = ""
    snap_start: bool = False

    @property
    def short_name(self) -> str:
        return short_name(self.logical_id)

    def having(self, environment: Mapping[str, str] | None = None, **changes: Any) -> Self:
        """Return this function with other settings, and with `environment` added to its own."""
        return replace(self, environment={**self.environment, **(environment or {})}, **changes)

    def one_by_one(self) -> Self:
        """Return this function with queues that give it one message at a time."""
        return replace(self, queues=tuple(replace(queue, batch_size=1) for queue in self.queues))

    def without_signatures(self) -> Self:
        """Return this function with an address that anyone may call."""
        return replace(self, url=replace(self.url, auth_type="NONE")) if self.url else self


@dataclass(frozen=True)
class Table:
    """A DynamoDB table, with its properties in CreateTable's format."""

    logical_id: str
    name: str
    attributes: list[dict[str, str]]
    key: list[dict[str, str]]
    ttl: str | None


@dataclass(frozen=True)
class Queue:
    """An SQS queue; `dead_letters` is the ARN of the queue for messages that failed `max_receives` times."""

    logical_id: str
    name: str
    visibility_timeout: int
    dead_letters: str | None = None
    max_receives: int = 0


class Template:
    """The part of a template, source or built, that runs on a laptop.

    Tables and queues need no parameters, so they can be deployed first; functions need the parameters, and
    `attributes`: the values of the resources that they refer to.
    """

    def __init__(
        self,
        path: Path = TEMPLATE,
        *,
        parameters: Mapping[str, str] | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        """Read the file. Its values are resolved on first use."""
        self.folder = path.absolute().parent
        self._document = Document(path, parameters=parameters, attributes=attributes)

    @cached_property
    def functions(self) -> dict[str, Function]:
        """The functions by logical id."""
        defaults = self._document.section("Globals", "Function")
        found = self._document.resources("AWS::Serverless::Function")
        return {name: self._function(name, _merge(defaults, properties)) for name, properties in found.items()}

    @cached_property
    def layers(self) -> dict[str, Path]:
        """The folders of the layers by name, which is what functions refer to."""
        found = self._document.resources("AWS::Serverless::LayerVersion")
        return {self._document.name_of(name): self.folder / layer["ContentUri"] for name, layer in found.items()}

    @property
    def built(self) -> bool:
        """Whether `sam build` made this: a built layer has its packages in `python`."""
        return any((layer / "python").is_dir() for layer in self.layers.values())

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The tables by logical id."""
        found = self._document.resources("AWS::DynamoDB::Table")
        return {name: _table(name, self._document, properties) for name, properties in found.items()}

    @cached_property
    def queues(self) -> dict[str, Queue]:
        """The queues by logical id."""
        found = self._document.resources("AWS::SQS::Queue")
        return {name: _queue(name, self._document, properties) for name, properties in found.items()}

    def function(self, name: str) -> Function:
        """Return a function by its logical id, its name or the name people type."""
        return self.functions[self.find_function(name)]

    def find_function(self, name: str) -> str:
        """Return the logical id of a function. Needs no parameters."""
        found = self._document.logical_ids("AWS::Serverless::Function")
        for logical_id in found:
            if name in {logical_id, self._document.name_of(logical_id), short_name(logical_id)}:
                return logical_id
        raise TemplateError(f"There is no function {name}. There are: {', '.join(map(short_name, found))}.")

    def _function(self, logical_id: str, properties: Mapping[str, Any]) -> Function:
        variables = properties.get("Environment", {}).get("Variables", {})
        logging = properties.get("LoggingConfig", {})
        url = properties.get("FunctionUrlConfig")
        name = properties.get("FunctionName", logical_id)
        return Function(
            logical_id=logical_id,
            name=name,
            code=self.folder / properties["CodeUri"],
            handler=properties["Handler"],
            runtime=properties["Runtime"],
            timeout=float(properties.get("Timeout", 3)),
            memory=int(properties.get("MemorySize", 128)),
            concurrency=_optional_int(properties.get("ReservedConcurrentExecutions")),
            requests_at_once=int(
                properties.get("CapacityProviderConfig", {}).get("PerExecutionEnvironmentMaxConcurrency", 1)
            ),
            environment={key: str(value) for key, value in variables.items()},
            layers=tuple(self.layers[layer] for layer in properties.get("Layers", ())),
            url=_url(url) if url is not None else None,
            queues=tuple(
                _queue_source(event["Properties"])
                for event in properties.get("Events", {}).values()
                if event["Type"] == "SQS"
            ),
            schedules=tuple(
                _schedule(event["Properties"])
                for event in properties.get("Events", {}).values()
                if event["Type"] == "Schedule"
            ),
            log_group=logging.get("LogGroup", f"/aws/lambda/{name}"),
            log_format=logging.get("LogFormat", "Text"),
            log_level=logging.get("ApplicationLogLevel", ""),
            snap_start=properties.get("SnapStart", {}).get("ApplyOn") == "PublishedVersions",
        )


def _merge(defaults: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Merge as SAM does Globals: maps by key, lists by concatenation, the function's own values last."""
    merged = dict(defaults)
    for key, value in properties.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        elif isinstance(value, list) and isinstance(merged.get(key), list):
            merged[key] = merged[key] + value
        else:
            merged[key] = value
    return merged


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def _url(config: Mapping[str, Any]) -> FunctionUrl:
    cors = config.get("Cors")
    return FunctionUrl(
        auth_type=config.get("AuthType", "NONE"),
        invoke_mode=config.get("InvokeMode", "BUFFERED"),
        cors=None
        if cors is None
        else Cors(
            allow_origins=tuple(cors.get("AllowOrigins", ())),
            allow_methods=tuple(cors.get("AllowMethods", ())),
            allow_headers=tuple(cors.get("AllowHeaders", ())),
            expose_headers=tuple(cors.get("ExposeHeaders", ())),
            allow_credentials=bool(cors.get("AllowCredentials", False)),
            max_age=int(cors.get("MaxAge", 0)),
        ),
    )


def _queue_source(properties: Mapping[str, Any]) -> QueueSource:
    return QueueSource(
        queue_arn=properties["Queue"],
        batch_size=int(properties.get("BatchSize", 10)),
        max_concurrency=int(properties.get("ScalingConfig", {}).get("MaximumConcurrency", 5)),
        reports_failures="ReportBatchItemFailures" in properties.get("FunctionResponseTypes", ()),
    )


def _schedule(properties: Mapping[str, Any]) -> Schedule:
    rate = re.fullmatch(r"rate\((\d+) (minute|hour|day)s?\)", properties["Schedule"])
    if rate is None:
        raise TemplateError(f"Only rates can be scheduled here, not {properties['Schedule']}.")
    seconds = int(rate[1]) * {"minute": 60, "hour": 3600, "day": 86400}[rate[2]]
    return Schedule(seconds, properties["Input"].encode())


def _table(logical_id: str, document: Document, properties: Mapping[str, Any]) -> Table:
    return Table(
        logical_id=logical_id,
        name=document.name_of(logical_id),
        attributes=properties["AttributeDefinitions"],
        key=properties["KeySchema"],
        ttl=properties.get("TimeToLiveSpecification", {}).get("AttributeName"),
    )


def _queue(logical_id: str, document: Document, properties: Mapping[str, Any]) -> Queue:
    redrive = properties.get("RedrivePolicy", {})
    return Queue(
        logical_id=logical_id,
        name=document.name_of(logical_id),
        visibility_timeout=int(properties.get("VisibilityTimeout", 30)),
        dead_letters=redrive.get("deadLetterTargetArn"),
        max_receives=int(redrive.get("maxReceiveCount", 0)),
    )
