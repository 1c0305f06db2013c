"""The functions of a template, with all services that they call, on this machine."""

import asyncio
import json
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from local.aws import Aws
from local.causes import Causes
from local.controls import Controls
from local.emulator import Emulator, Process
from local.emulator.emulator import log_line
from local.front import PLAYGROUND, Front
from local.heartbeat import heartbeat
from local.info import StackInfo
from local.model.process import ModelProcess
from local.model_choice import TabModels
from local.mongod import Mongod, check_mongodb, find_mongod
from local.processes import ServiceError, make_private
from local.secrets_api import SecretsApi, secret_arn
from local.template import ROOT, TEMPLATE, Function, Template
from local.traces import Traces
from omniagent.settings import Settings, env_name

DATA = ROOT / ".local"
# Set by the stack itself. Any other setting reaches the functions from the caller's environment.
DECIDED = frozenset(
    {
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_BASE_URL",
        "AUTH_MODE",
        "JWT_AUDIENCE",
        "JWT_CLIENT_IDS",
        "JWT_ISSUER",
        "JWT_JWKS_URL",
        "JWT_TOKEN_USE",
        "MONGODB_SECRET_ARN",
        "MONGODB_URI",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_SECRET_ARN",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "RUN_QUEUE_URL",
        "SUMMARY_QUEUE_URL",
        "TRUSTED_PRINCIPALS",
        "TURNS_TABLE",
    }
)

QUEUE_READERS = {"RUN_QUEUE_URL": "run"}
"""The function that reads a queue. If it does not run, the others have no such queue."""


class Startable(Protocol):
    """A service in its own process."""

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def check(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True)
class StackOptions:
    """What to run. Servers that are not given are started.

    `folder` keeps MongoDB's data; without it the data is deleted at the end. `functions` limits which functions run, by
    name. `change` is applied last to each function. `auth` is iam, jwt or none; jwt needs the issuer in `parameters`.
    `emulator` holds further arguments of the emulator, such as `freeze` and `ports`. `port` is the one origin of the
    playground and the functions, 0 for a free one; with None there is no front and there are no traces. `playground` is
    the folder of the page.
    `tokens_per_second` is the pace of the offline model, 0 for no limit. `on_ready` is called with each part that is
    ready and the seconds it took.
    """

    template: Path = TEMPLATE
    folder: Path | None = None
    mongodb_uri: str = ""
    openai_api_key: str = ""
    openai_base_url: str = ""
    anthropic_api_key: str = ""
    anthropic_base_url: str = ""
    aws: Aws | None = None
    auth: str = "iam"
    functions: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    change: Callable[[Function], Function] = lambda function: function
    emulator: Mapping[str, Any] = field(default_factory=dict)
    port: int | None = None
    playground: Path = PLAYGROUND
    tokens_per_second: float = 0
    on_ready: Callable[[str, float], None] = lambda _name, _seconds: None

    @classmethod
    def from_environment(cls, **options: Any) -> "StackOptions":
        """Use the MongoDB server, the model and the settings that the caller's environment names, if it does.

        They take precedence over `environment`.
        """
        names = {env_name(setting) for setting in fields(Settings)} - DECIDED
        settings = {name: os.environ[name] for name in sorted(names & os.environ.keys())}
        return cls(
            mongodb_uri=os.environ.get("MONGODB_URI", ""),
            openai_api_key=os.environ.get("OPENAI_API_KEY", ""),
            openai_base_url=os.environ.get("OPENAI_BASE_URL", ""),
            anthropic_api_key=os.environ.get("ANTHROPIC_API_KEY", ""),
            anthropic_base_url=os.environ.get("ANTHROPIC_BASE_URL", ""),
            environment={**options.pop("environment", {}), **settings},
            **options,
        )

    @property
    def offline(self) -> bool:
        """Whether the offline model answers."""
        keys = (self.openai_api_key, self.anthropic_api_key)
        return not any((*keys, self.openai_base_url, self.anthropic_base_url))

    @property
    def model_secret(self) -> str:
        """The secret of the models: one key, which fits the offline model, or an object with the key of each vendor."""
        if not self.anthropic_api_key:
            return self.openai_api_key or "offline"
        return json.dumps({"OPENAI_API_KEY": self.openai_api_key, "ANTHROPIC_API_KEY": self.anthropic_api_key})


@dataclass(frozen=True)
class Stack:
    """The running stack. `mongod` and `model` are None if external ones are used, `front` if none was requested."""

    functions: list[Function]
    emulator: Emulator
    aws: Aws
    mongodb_uri: str
    mongod: Mongod | None
    model: ModelProcess | None
    front: Front | None
    traces: Traces

    @property
    def url(self) -> str:
        """The one origin of everything."""
        if self.front is None:
            raise RuntimeError("the stack was started without a port")
        return self.front.url

    def changed(self) -> None:
        """Tell the pages that the functions were replaced."""
        if self.front:
            self.front.changed()

    def check(self) -> None:
        """Raise ServiceError if a service has ended by itself."""
        for service in self._services():
            service.check()

    def kill(self) -> None:
        """End every process at once."""
        everything: list[Startable | Process] = [*self._services(), *self.emulator.processes()]
        for running in everything:
            # Already ended.
            with suppress(ProcessLookupError, ServiceError):
                # Each is a process group leader.
                os.killpg(running.pid, signal.SIGKILL)

    def _services(self) -> list[Startable]:
        return [service for service in (self.mongod, self.aws, self.model) if service is not None]


@asynccontextmanager
async def local_stack(options: StackOptions) -> AsyncIterator[Stack]:
    """Run the functions until the context ends."""
    if options.folder and DATA in (options.folder, *options.folder.parents):
        make_private(DATA)
    for name in options.functions:
        Template(options.template).find_function(name)  # fail early on a wrong name
    async with AsyncExitStack() as stack:
        traces, causes = Traces(), Causes()
        # First, to fail early on a port in use or an unreachable server.
        front = await _open_front(options, Front(traces, causes, playground=options.playground), stack)
        if options.mongodb_uri:
            await asyncio.to_thread(check_mongodb, options.mongodb_uri)
        mongod, aws, model = await _start_services(options, stack)
        uri = mongod.uri if mongod else options.mongodb_uri
        secret_values = {"mongodb": uri, "openai": options.model_secret}
        secrets_api = SecretsApi()
        stack.push_async_callback(secrets_api.close)
        await secrets_api.start()
        secrets_at = secrets_api.serve(secret_values)
        template = await asyncio.to_thread(_deploy, options, aws, model)
        functions = _functions(options, template)
        # The collector is this process: message text stays on this machine.
        traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": front.url, "TRACE_CONTENT": "true"} if front else {}
        claude = {"ANTHROPIC_BASE_URL": model.base_url if model else options.anthropic_base_url}
        environment = {**aws.environment, **secrets_at, **traced, **claude, **options.environment}
        on_line = options.emulator.get("on_line", log_line)

        def hear(function: str, line: str) -> None:
            causes.add(function, line)
            on_line(function, line)

        models = TabModels(
            secrets_api,
            secret_values,
            lambda variables: emulator.retire(variables),  # noqa: PLW0108 - it is created below
            offline_url=model.base_url if model else "",
        )
        emulator = await stack.enter_async_context(
            Emulator(
                functions,
                environment=environment,
                built=template.built,
                variables_of=models.variables_of,
                **{"sqs": aws.sqs, **options.emulator, "on_line": hear},
            )
        )
        if front:
            urls = {function.short_name: emulator.url_of(function.short_name) for function in functions if function.url}
            info = StackInfo(functions, environment, built=template.built)

            turns = functions[0].environment.get("TURNS_TABLE", "")
            journal = partial(heartbeat, aws.dynamodb, turns)
            controls = Controls(emulator, info, models, {"mongodb": mongod, "model": model}, journal)
            front.open_to(urls, controls.routes, models)
        yield Stack(functions, emulator, aws, uri, mongod, model, front, traces)


async def _open_front(options: StackOptions, front: Front, stack: AsyncExitStack) -> Front | None:
    if options.port is None:
        return None
    stack.push_async_callback(front.close)
    await front.start(options.port)
    return front


async def _start_services(
    options: StackOptions, stack: AsyncExitStack
) -> tuple[Mongod | None, Aws, ModelProcess | None]:
    """Start the missing servers concurrently."""
    mongod = None if options.mongodb_uri else Mongod(options.folder / "mongod" if options.folder else None)
    aws = options.aws or Aws(access_key=secrets.token_urlsafe())
    model = ModelProcess(tokens_per_second=options.tokens_per_second) if options.offline else None
    wanted: dict[str, Startable] = {}
    if mongod:
        # Fail early on a missing one.
        find_mongod()
        wanted["MongoDB"] = mongod
    if not options.aws:
        wanted["AWS (moto)"] = aws
    if model:
        wanted["offline model"] = model
    # A service lives as long as the thread that started it, so the threads are the stack's own.
    threads = stack.enter_context(ThreadPoolExecutor(max_workers=max(1, len(wanted))))
    for service in wanted.values():
        # In a thread, so that a second Ctrl-C still works while it ends.
        stack.push_async_callback(asyncio.to_thread, service.__exit__)
    starts = (_start(name, service, threads, options.on_ready) for name, service in wanted.items())
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome
    return mongod, aws, model


async def _start(
    name: str, service: Startable, threads: ThreadPoolExecutor, on_ready: Callable[[str, float], None]
) -> None:
    began = time.monotonic()
    starting = asyncio.get_running_loop().run_in_executor(threads, service.start)
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        # A thread cannot be cancelled, so its service can only be ended now.
        await asyncio.wait([starting])
        raise
    on_ready(name, time.monotonic() - began)


def _deploy(options: StackOptions, aws: Aws, model: ModelProcess | None) -> Template:
    """Deploy what the template's functions refer to, and return it with its parameters filled in."""
    parameters = {
        "MongoSecretArn": secret_arn("mongodb"),
        "OpenAISecretArn": secret_arn("openai"),
        "OpenAIBaseUrl": model.base_url if model else options.openai_base_url,
        **({"AuthMode": options.auth} if options.auth != "none" else {}),
        **options.parameters,
    }
    attributes = aws.deploy(Template(options.template))
    return Template(options.template, parameters=parameters, attributes=attributes)


def _functions(options: StackOptions, template: Template) -> list[Function]:
    wanted = [template.function(name) for name in options.functions] or list(template.functions.values())
    names = {function.short_name for function in wanted}
    unread = {url: "" for url, reader in QUEUE_READERS.items() if reader not in names}
    wanted = [function.having(unread) for function in wanted]
    if options.auth == "none":
        unguarded = {"AUTH_MODE": "none", "OMNIAGENT_LOCAL": "1"}
        wanted = [function.having(unguarded).without_signatures() for function in wanted]
    if options.port is not None:
        # A tab's processes serve the jobs of its own sessions only.
        wanted = [function.one_by_one() for function in wanted]
    return [options.change(function) for function in wanted]
