"""The functions of a template with everything they call, on this machine."""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local.aws import Aws
from local.emulator import Emulator
from local.model import OfflineModel
from local.mongod import Mongod
from local.template import ROOT, TEMPLATE, Function, Template

DATA = ROOT / ".local"


@dataclass(frozen=True)
class StackOptions:
    """What to run. Whatever is not given is started.

    `folder` keeps the data of MongoDB; without it the data is gone afterwards. `functions` limits what runs, by the
    names people type. `change` has the last word on each function. `auth` is iam, jwt or none; for jwt the issuer
    goes into `parameters`. `emulator` holds further arguments of the emulator.
    """

    template: Path = TEMPLATE
    folder: Path | None = None
    mongodb_uri: str = ""
    openai_api_key: str = ""
    openai_base_url: str = ""
    aws: Aws | None = None
    auth: str = "iam"
    functions: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    change: Callable[[Function], Function] = lambda function: function
    emulator: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, **options: Any) -> "StackOptions":
        """Use the MongoDB server and the model that the caller's environment names, if it does."""
        return cls(
            mongodb_uri=os.environ.get("MONGODB_URI", ""),
            openai_api_key=os.environ.get("OPENAI_API_KEY", ""),
            openai_base_url=os.environ.get("OPENAI_BASE_URL", ""),
            **options,
        )


@dataclass(frozen=True)
class Stack:
    """What runs. `model` is None when a real one is called."""

    emulator: Emulator
    aws: Aws
    mongodb_uri: str
    model: OfflineModel | None


@asynccontextmanager
async def local_stack(options: StackOptions) -> AsyncIterator[Stack]:
    """Run the functions until the context ends."""
    async with AsyncExitStack() as stack:
        uri = options.mongodb_uri
        if not uri:
            folder = options.folder / "mongod" if options.folder else None
            uri = stack.enter_context(Mongod(folder)).uri
        aws = options.aws or stack.enter_context(Aws())
        model: OfflineModel | None = None
        if not options.openai_api_key and not options.openai_base_url:
            model = await stack.enter_async_context(OfflineModel())
        template = _deploy(options, aws, uri, model)
        emulator = Emulator(
            _functions(options, template),
            environment={**aws.environment, **options.environment},
            built=template.built,
            **{"sqs": aws.sqs, **options.emulator},
        )
        yield Stack(await stack.enter_async_context(emulator), aws, uri, model)


def _deploy(options: StackOptions, aws: Aws, uri: str, model: OfflineModel | None) -> Template:
    """Deploy what the template's functions refer to, and return it with its parameters filled in."""
    parameters = {
        "MongoSecretArn": aws.put_secret("mongodb", uri),
        "OpenAISecretArn": aws.put_secret("openai", options.openai_api_key or "offline"),
        "OpenAIBaseUrl": model.base_url if model else options.openai_base_url,
        **({"AuthMode": options.auth} if options.auth != "none" else {}),
        **options.parameters,
    }
    attributes = aws.deploy(Template(options.template))
    return Template(options.template, parameters=parameters, attributes=attributes)


def _functions(options: StackOptions, template: Template) -> list[Function]:
    wanted = [template.function(name) for name in options.functions] or list(template.functions.values())
    if options.auth == "none":
        wanted = [function.having({"AUTH_MODE": "none"}).without_signatures() for function in wanted]
    return [options.change(function) for function in wanted]
